"""Tables of the registry. It holds wrapped keys and hashed API keys, never a usable secret."""

from sqlalchemy import (
    Boolean,
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

REVISION = "0003"
"""The newest migration, which makes the tables what they are here; see `migrations`."""

metadata = MetaData()

service_keys = Table(
    # Random 32-byte keys of the deployment itself, one for each purpose (assertions, audit, ...).
    "service_keys",
    metadata,
    Column("purpose", String(64), primary_key=True),
    Column("wrapped", LargeBinary, nullable=False),
    Column("root", String(128)),  # id of the root key that wrapped it
    Column("created", Float, nullable=False),
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
    Column("sharing_group", String(64)),  # the tenants that share it, if it isn't one tenant's
    Column("adapter", String(64)),  # digest of the LoRA adapter, if there is one
    Column("wrapped_naming_key", LargeBinary),  # NULL once destroyed
    Column("root", String(128)),  # id of the root key that wrapped it
    Column("created", Float, nullable=False),
    Column("destroyed", Float),
)

data_keys = Table(
    "data_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("namespace", String(32), ForeignKey("namespaces.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("wrapped", LargeBinary),  # NULL once destroyed
    Column("root", String(128)),  # id of the root key that wrapped it
    Column("created", Float, nullable=False),
    Column("retired", Float),  # when the next epoch began
    Column("destroyed", Float),
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
    Column("admin", Boolean),  # NULL is no, as in keys that were made before there were admins
    Column("sharing_group", String(64)),  # whose namespace the key's requests ask for
    Column("last_used", Float),  # behind by a minute or so
)
