"""The tables of the first version, which kept its version in a table of its own.

Never change a migration: registries that ran it won't run it again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    version = op.create_table("schema_version", sa.Column("version", sa.Integer, primary_key=True))
    op.bulk_insert(version, [{"version": 1}])
    op.create_table(
        "service_keys",
        sa.Column("purpose", sa.String(64), primary_key=True),
        sa.Column("wrapped", sa.LargeBinary, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_table(
        "namespaces",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("workload", sa.String(64)),
        sa.Column("subject", sa.String(256)),
        sa.Column("model_revision", sa.String(128), nullable=False),
        sa.Column("layout", sa.String(64), nullable=False),
        sa.Column("wrapped_naming_key", sa.LargeBinary),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("destroyed", sa.Float),
    )
    op.create_table(
        "data_keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("namespace", sa.String(32), sa.ForeignKey("namespaces.id"), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("wrapped", sa.LargeBinary),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("destroyed", sa.Float),
    )
    op.create_index("one_key_per_epoch", "data_keys", ["namespace", "epoch"], unique=True)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("workload", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(256)),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float),
        sa.Column("revoked", sa.Float),
    )
