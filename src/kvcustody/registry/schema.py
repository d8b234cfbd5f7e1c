"""Tables of the registry. It holds wrapped keys and hashed API keys, never a usable secret."""

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

SCHEMA_VERSION = 1
"""Raised with every change of the tables; an older program refuses a newer registry."""

metadata = MetaData()

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True),
)

service_keys = Table(
    # Random 32-byte keys of the deployment itself, one for each purpose (assertions, audit, ...).
    "service_keys",
    metadata,
    Column("purpose", String(64), primary_key=True),
    Column("wrapped", LargeBinary, nullable=False),
    Column("created", Float, nullable=False),
    Column("root", String(128)),
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("workload", String(64)),
    Column("subject", String(256)),
    Column("model_revision", String(128), nullable=False),
    Column("layout", String(64), nullable=False),
    Column("wrapped_naming_key", LargeBinary),  # NULL once destroyed
    Column("created", Float, nullable=False),
    Column("destroyed", Float),
    Column("root", String(128)),
    Column("sharing_group", String(64)),
    Column("adapter", String(64)),
)

data_keys = Table(
    "data_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("namespace", String(32), ForeignKey("namespaces.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("wrapped", LargeBinary),  # NULL once destroyed
    Column("created", Float, nullable=False),
    Column("destroyed", Float),
    Column("root", String(128)),
    Column("retired", Float),
    # Two engines that first use a namespace at once must end up with one key.
    Index("one_key_per_epoch", "namespace", "epoch", unique=True),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("workload", String(64), nullable=False),
    Column("subject", String(256)),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("revoked", Float),
)
