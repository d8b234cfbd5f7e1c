"""The registry in one SQLite file, for the processes of one host."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Insert, Table, create_engine, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.private_folders import make_private_folder, what_is_open_to_others

# The scheduler waits for the registry when a namespace is used first; a writer takes milliseconds.
_LOCK_WAIT_SECONDS = 0.5

# A reader in the way is gone after milliseconds, and each attempt waits for one.
_SCRUB_ATTEMPTS = 4

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# What SQLite says of the host rather than of the file's content.
_HOST_FAILURES = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


class SQLite:
    """A registry's SQLite file; made, for its owner only, if it is not there.

    Args:
        url: `sqlite:///PATH`.

    Raises:
        ConfigurationError: the file can't be opened, or others may read it.

    """

    def __init__(self, url: URL) -> None:
        self._path = Path(url.database or "")
        _create_private(self._path)
        self._reader = create_engine(url, connect_args={"timeout": _LOCK_WAIT_SECONDS})
        event.listen(self._reader, "connect", _configure)
        event.listen(self._reader, "begin", _begin)
        self._writer = self._reader.execution_options(writes=True)

    @property
    def reader(self) -> Engine:
        """Connections that see the file as it was at their first query."""
        return self._reader

    @property
    def writer(self) -> Engine:
        """Connections that take the file's lock when a transaction begins."""
        return self._writer

    @contextmanager
    def begin_exclusively(self) -> Iterator[Connection]:
        """A transaction that holds the file's lock.

        Raises:
            SQLAlchemyError: another process holds it, or the file is damaged.

        """
        with self._writer.begin() as connection:
            yield connection

    def insert_if_absent(self, table: Table, values: Mapping[str, Any]) -> Insert:
        """A statement that adds a row unless there is one with its key."""
        return insert(table).values(**values).on_conflict_do_nothing()

    def scrub(self) -> None:
        """Empty the write-ahead log; in the file itself, `secure_delete` has overwritten all.

        Raises:
            SQLAlchemyError: the file is damaged.

        """
        autocommit = self._reader.execution_options(outside_transactions=True)
        for _ in range(_SCRUB_ATTEMPTS):
            with autocommit.connect() as connection:
                busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            if not busy:
                return

    def is_locked(self, error: SQLAlchemyError) -> bool:
        """Whether another process holds the lock."""
        return _code(error) in _LOCKED

    def refusal(self, message: str) -> ConfigurationError:
        """An error that names the file."""
        return ConfigurationError(message, self._path)

    def explain(self, error: SQLAlchemyError) -> CustodyError:
        """An error for a person."""
        code = _code(error)
        if code in _LOCKED:
            return UnavailableError(f"{self._path}: the registry is locked by another process")
        if code in _HOST_FAILURES:
            return self.refusal(f"{_text(error)}; check permissions and free space")
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}:
            return self.refusal(f"not a usable registry ({_text(error)}); restore it from a backup")
        return UnavailableError(f"the registry failed: {type(error).__name__}")


def _code(error: SQLAlchemyError) -> int | None:
    """SQLite's primary result code."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    # Python's own checks, such as for a closed connection, carry no code.
    extended = getattr(cause, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


def _text(error: SQLAlchemyError) -> str:
    """What SQLite said: it names tables and columns, never values."""
    return str(error.orig) if isinstance(error, DBAPIError) else type(error).__name__


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


def _configure(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are ours to begin, see _begin
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA secure_delete=ON")  # a destroyed key must not survive in free pages


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get("outside_transactions", False):
        return
    # A writer takes the lock at once: two writers then queue instead of one failing half-way.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
