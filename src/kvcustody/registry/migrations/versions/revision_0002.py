"""What rotation, sharing groups and LoRA adapters need; Alembic keeps the version from now on."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add columns, all empty in the rows that are there."""
    op.add_column("service_keys", sa.Column("root", sa.String(128)))
    op.add_column("namespaces", sa.Column("root", sa.String(128)))
    op.add_column("namespaces", sa.Column("sharing_group", sa.String(64)))
    op.add_column("namespaces", sa.Column("adapter", sa.String(64)))
    op.add_column("data_keys", sa.Column("root", sa.String(128)))
    op.add_column("data_keys", sa.Column("retired", sa.Float))
    op.drop_table("schema_version")
