"""What API keys are allowed, and when they were last used."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add columns, all empty in the rows that are there: those keys have no such right."""
    op.add_column("api_keys", sa.Column("admin", sa.Boolean))
    op.add_column("api_keys", sa.Column("sharing_group", sa.String(64)))
    op.add_column("api_keys", sa.Column("last_used", sa.Float))
