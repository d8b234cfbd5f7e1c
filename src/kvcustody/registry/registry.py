"""Open the registry in SQLite or PostgreSQL; every statement is short and bounded."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Table
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.registry.database import Database
from kvcustody.registry.postgresql import PostgreSQL
from kvcustody.registry.sqlite import SQLite
from kvcustody.registry.upgrading import bring_up_to_date

logger = logging.getLogger(__name__)

_SUPPORTED = "sqlite:///PATH or postgresql://USER@HOST/DATABASE"


class Registry:
    """Connections to the registry's database.

    Args:
        database: one whose tables are up to date; see `open_registry`.

    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for queries.

        Raises:
            UnavailableError: the database can't be reached or is locked.

        """
        with self._translated_errors(), self._database.reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in a transaction, committed when the block ends without an error.

        Raises:
            UnavailableError: the database can't be reached or is locked.

        """
        with self._translated_errors(), self._database.writer.begin() as connection:
            yield connection

    def insert_if_absent(self, connection: Connection, table: Table, /, **values: Any) -> bool:
        """Add a row unless there is one with its key; whether this call added it.

        If another process is adding the same row, this waits until it is known who was first. A
        query that follows on the connection then finds the row, whoever added it.

        Args:
            connection: from `write`.
            table: a table of `kvcustody.registry.schema`.
            values: the row, by column.

        """
        statement = self._database.insert_if_absent(table, values)
        # Without this option, SQLAlchemy forgets the count of an INSERT with some drivers.
        options = {"preserve_rowcount": True}
        return connection.execute(statement, execution_options=options).rowcount == 1

    def scrub(self) -> None:
        """Drop what the database still keeps of values that were deleted or replaced.

        What was done before stays done if this fails, so it warns and doesn't raise.
        """
        try:
            self._database.scrub()
        except SQLAlchemyError as error:
            logger.warning(
                "The database may still keep what was deleted: %s", self._database.explain(error)
            )

    def close(self) -> None:
        """Close all connections."""
        self._database.writer.dispose()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            # Not `from error`: its text carries statement parameters.
            raise UnavailableError(str(self._database.explain(error))) from None


def open_registry(url: str) -> Registry:
    """Open the registry at a URL; make its tables, or bring them up to date, if need be.

    Args:
        url: `sqlite:///PATH` or `postgresql://[USER[:PASSWORD]@][HOST[:PORT]]/DATABASE`.

    Raises:
        ConfigurationError: the URL or the database is unusable, or a newer version wrote it.
        UnavailableError: the database can't be reached.

    """
    database = _database_at(_parse(url))
    try:
        bring_up_to_date(database)
    except SQLAlchemyError as error:
        database.writer.dispose()
        raise database.explain(error) from None
    except CustodyError:
        database.writer.dispose()
        raise
    return Registry(database)


def _parse(url: str) -> URL:
    try:
        # A port that is no number is a ValueError. No message repeats the URL: it may hold a
        # password.
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or not url.isprintable():
        raise ConfigurationError(f"not a database URL; write {_SUPPORTED}", field="registry")
    return parsed


def _database_at(url: URL) -> Database:
    if url.drivername == "postgresql":
        return PostgreSQL(url)
    # An in-memory database would lose every key with the process.
    if url.drivername != "sqlite" or url.query or (url.database or "") in {"", ":memory:"}:
        raise ConfigurationError(f"this version supports {_SUPPORTED}", field="registry")
    return SQLite(url)
