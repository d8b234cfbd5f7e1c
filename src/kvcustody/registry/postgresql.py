"""The registry in PostgreSQL, for several hosts that share tiers.

Nothing here waits long: a registry that hangs must cost requests their cache, not their answer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, Insert, Table, text
from sqlalchemy.exc import SQLAlchemyError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.registry.postgresql_engine import check_url, create_bounded_engine
from kvcustody.registry.postgresql_errors import LOCKED, Symptom, sqlstate, symptom

_POOL_WAIT_SECONDS = 2.0
_POOL_SIZE = 4  # an engine and a gateway each use one or two at a time
_POOL_OVERFLOW = 12  # requests that come at once
# Statements touch a few rows by their key, so they take milliseconds.
_SERVER_LIMITS = {
    "statement_timeout": "1s",
    "lock_timeout": "500ms",
    # A process that was stopped in a transaction must not keep others from its rows.
    "idle_in_transaction_session_timeout": "10s",
}
# More than what the server allows a statement, so that its answer comes first if it lives.
_ANSWER_SECONDS = 1.5

# "kvcustod" as a number: the lock that one process at a time has to change the tables.
_ADVISORY_LOCK = int.from_bytes(b"kvcustod")


class PostgreSQL:
    """A registry's PostgreSQL database.

    Args:
        url: `postgresql://[USER[:PASSWORD]@][HOST[:PORT]]/DATABASE[?OPTIONS]`.

    Raises:
        ConfigurationError: the URL is not usable, or psycopg is not installed.

    """

    def __init__(self, url: URL) -> None:
        check_url(url, "registry")
        self._url = url
        self._writer = create_bounded_engine(
            url,
            "registry",
            _SERVER_LIMITS,
            _ANSWER_SECONDS,
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            pool_size=_POOL_SIZE,
            max_overflow=_POOL_OVERFLOW,
            pool_timeout=_POOL_WAIT_SECONDS,
        )
        # Set with the BEGIN that is sent anyway, so it costs nothing.
        self._reader = self._writer.execution_options(isolation_level="REPEATABLE READ")

    @property
    def reader(self) -> Engine:
        """Connections that see the database as it was at their first query."""
        return self._reader

    @property
    def writer(self) -> Engine:
        """Connections that see what others commit, so a row that they add late is found."""
        return self._writer

    @contextmanager
    def begin_exclusively(self) -> Iterator[Connection]:
        """A transaction that holds an advisory lock of the database.

        Raises:
            SQLAlchemyError: another process holds it, or the server failed.

        """
        with self._writer.begin() as connection:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            yield connection

    def insert_if_absent(self, table: Table, values: Mapping[str, Any]) -> Insert:
        """A statement that adds a row unless there is one with its key."""
        # SQLAlchemy's module for PostgreSQL takes as long to import as all else here.
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415

        return insert(table).values(**values).on_conflict_do_nothing()

    def scrub(self) -> None:
        """Free rows that nobody sees any more; their bytes stay until the space is used again.

        Raises:
            SQLAlchemyError: the server failed.

        """
        autocommit = self._writer.execution_options(isolation_level="AUTOCOMMIT")
        with autocommit.connect() as connection:
            connection.execute(text("VACUUM namespaces, data_keys, service_keys"))

    def is_locked(self, error: SQLAlchemyError) -> bool:
        """Whether others were in the way."""
        return sqlstate(error) in LOCKED

    def refusal(self, message: str) -> ConfigurationError:
        """An error that names the server and the database."""
        return ConfigurationError(f"{self._place}: {message}")

    def explain(self, error: SQLAlchemyError) -> CustodyError:
        """An error for a person. The server's own text is left out: it may quote values."""
        kind, message = symptom(error)
        if kind is Symptom.WRONG:
            return self.refusal(message)
        if kind is Symptom.AWAY:
            return UnavailableError(f"{self._place}: {message}")
        return UnavailableError(f"the registry failed: {type(error).__name__}")

    @property
    def _place(self) -> str:
        if service := self._url.query.get("service"):
            return f"PostgreSQL service '{service}'"
        host = self._url.host or self._url.query.get("host") or "local socket"
        port = f":{self._url.port}" if self._url.port else ""
        return f"PostgreSQL database '{self._url.database}' at {host}{port}"
