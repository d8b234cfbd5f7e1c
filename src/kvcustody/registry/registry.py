"""Open the registry: one SQLite file for one host; every statement is short and bounded."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, insert, select
from sqlalchemy.dialects.sqlite import insert as insert_or
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from kvcustody.errors import ConfigurationError, UnavailableError
from kvcustody.private_folders import make_private_folder, what_is_open_to_others
from kvcustody.registry.schema import SCHEMA_VERSION, metadata, schema_version

# The scheduler waits for the registry when a namespace is used first; a writer takes milliseconds.
_LOCK_WAIT_SECONDS = 0.5
_START_WAIT_SECONDS = 2.0
_RETRY_SECONDS = 0.02


class Registry:
    """Connections to the registry's database.

    Args:
        engine: SQLAlchemy engine whose database holds the current schema; see `open_registry`.

    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for queries.

        Raises:
            UnavailableError: the database can't be reached or is locked.

        """
        with _translated_errors(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in a transaction, committed when the block ends without an error.

        Raises:
            UnavailableError: the database can't be reached or is locked.

        """
        with (
            _translated_errors(),
            self._engine.execution_options(writes=True).begin() as connection,
        ):
            yield connection

    def insert_if_absent(self, connection: Connection, table: Table, **values: object) -> bool:
        """Insert a row unless one with the same key is there; whether this call inserted it."""
        return (
            connection.execute(insert_or(table).values(**values).on_conflict_do_nothing()).rowcount
            == 1
        )

    def scrub(self) -> None:
        """Overwrite what the database still keeps of deleted values."""
        with self.read() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.exec_driver_sql("BEGIN")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def open_registry(url: str) -> Registry:
    """Open the registry at a SQLAlchemy URL and create its tables where they are missing.

    Args:
        url: `sqlite:///PATH`.

    Raises:
        ConfigurationError: the URL or the file is unusable, or a newer version wrote it.
        UnavailableError: the database can't be reached.

    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError(
            "not a database URL; write sqlite:///PATH", field="registry"
        ) from None
    # An in-memory database would lose every key with the process.
    database = parsed.database or ""
    if parsed.drivername != "sqlite" or parsed.query or database in {"", ":memory:"}:
        raise ConfigurationError("this version supports sqlite:///PATH", field="registry")
    path = Path(database)
    _create_private(path)
    engine = create_engine(parsed, connect_args={"timeout": _LOCK_WAIT_SECONDS})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin)
    try:
        _migrate_when_free(engine)
    except ConfigurationError:
        engine.dispose()
        raise
    except DBAPIError as error:
        engine.dispose()
        if _is_locked(error):
            raise UnavailableError(f"{path}: the registry is locked by another process") from None
        raise ConfigurationError(
            f"not a usable registry ({error.orig}); restore it from a backup", path
        ) from None
    return Registry(engine)


def _migrate_when_free(engine: Engine) -> None:
    """Wait for others that start at once: SQLite itself doesn't while one switches to its WAL."""
    deadline = time.monotonic() + _START_WAIT_SECONDS
    while True:
        try:
            _migrate(engine)
        except DBAPIError as error:
            if not _is_locked(error) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _is_locked(error: DBAPIError) -> bool:
    return isinstance(error.orig, sqlite3.OperationalError) and "locked" in str(error.orig)


def _create_private(path: Path) -> None:
    """Create the database file 0600 in a folder 0700, before SQLite would choose looser modes."""
    try:
        make_private_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        for place, readable in ((path.parent, True), (path, False)):
            if (problem := what_is_open_to_others(place, readable=readable)) is not None:
                raise ConfigurationError(problem, place)
    except OSError as error:
        raise ConfigurationError(
            f"can't be opened: {error.strerror}; check `state` and its permissions", path
        ) from None


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are ours to begin, see _begin
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA secure_delete=ON")  # a destroyed key must not survive in free pages


def _begin(connection: Connection) -> None:
    # A writer takes the lock at once: two writers then queue instead of one failing half-way.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(engine: Engine) -> None:
    with engine.execution_options(writes=True).begin() as connection:
        metadata.create_all(connection)
        found = connection.scalar(select(schema_version.c.version))
        if found is None:
            connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))
        elif found > SCHEMA_VERSION:
            raise ConfigurationError(
                f"a newer kvcustody wrote this registry (schema {found}, this one knows "
                f"{SCHEMA_VERSION}); upgrade kvcustody",
                Path(engine.url.database or ""),
            )


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        # Not `from error`: its text carries statement parameters.
        raise UnavailableError(f"the registry failed: {type(error).__name__}") from None
