"""Bring the tables up to date when the registry is opened; one process does it, others wait."""

import time

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from kvcustody.registry.database import Database
from kvcustody.registry.schema import REVISION, metadata

# Long enough for every process of a deployment that starts anew to have its turn.
_START_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 0.02

_alembic_version = Table(
    # As Alembic makes it.
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def bring_up_to_date(database: Database) -> None:
    """Make the tables what this version expects; nothing is written if they are.

    Args:
        database: what the registry lies in.

    Raises:
        ConfigurationError: a newer version, or another program, made the tables.
        SQLAlchemyError: the database failed, or stayed locked.

    """
    deadline = time.monotonic() + _START_WAIT_SECONDS
    while True:
        try:
            _try_to_bring_up_to_date(database)
        except SQLAlchemyError as error:
            # Others that start at once; SQLite itself doesn't wait while one switches to its WAL.
            if not database.is_locked(error) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def revision_of(connection: Connection) -> str | None:
    """The migration that the tables are at; `None` if Alembic never ran."""
    if not inspect(connection).has_table(_alembic_version.name):
        return None
    return connection.scalar(select(_alembic_version.c.version_num))


def _try_to_bring_up_to_date(database: Database) -> None:
    with database.reader.connect() as connection:
        if revision_of(connection) == REVISION:
            return
    with database.begin_exclusively() as connection:
        # Read again: another process may have been faster.
        found = revision_of(connection)
        if found == REVISION:
            return
        if not inspect(connection).get_table_names():
            _create(connection)
            return
        # Importing Alembic takes far longer than all else here.
        from kvcustody.registry.migrations import upgrade  # noqa: PLC0415

        if (problem := upgrade(connection, found)) is not None:
            raise database.refusal(problem)


def _create(connection: Connection) -> None:
    """Make the tables as they are now, which is what all migrations would come to."""
    metadata.create_all(connection, checkfirst=False)
    _alembic_version.create(connection, checkfirst=False)
    connection.execute(insert(_alembic_version).values(version_num=REVISION))
