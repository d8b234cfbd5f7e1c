"""What an API key gives beyond its principal, and when it was last used."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add columns, all empty in the rows that are there: no old key gains a right."""
    op.add_column("api_keys", sa.Column("admin", sa.Boolean))
    op.add_column("api_keys", sa.Column("sharing_group", sa.String(64)))
    op.add_column("api_keys", sa.Column("last_used", sa.Float))
