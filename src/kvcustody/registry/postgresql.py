"""The registry in PostgreSQL, for several hosts that share tiers.

Nothing here waits long: a registry that hangs must cost requests their cache, not their answer.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, Insert, Table, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.registry.postgresql_errors import LOCKED, Symptom, sqlstate, symptom

_CONNECT_SECONDS = 2  # the least that psycopg and libpq know
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
# A host that is gone ends a connection as fast; in milliseconds.
_TCP_LIMIT = 3000

# "kvcustod" as a number: the lock that one process at a time has to change the tables.
_ADVISORY_LOCK = int.from_bytes(b"kvcustod")

_FORM = "postgresql://USER@HOST/DATABASE"
# Options of libpq that say where the server is and how to trust it. Time limits are ours to set,
# and a password has a place in the URL where no message shows it.
_OPTIONS = frozenset(
    {
        "application_name",
        "channel_binding",
        "gssencmode",
        "host",
        "hostaddr",
        "krbsrvname",
        "load_balance_hosts",
        "passfile",
        "port",
        "require_auth",
        "service",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "target_session_attrs",
    }
)


class PostgreSQL:
    """A registry's PostgreSQL database.

    Args:
        url: `postgresql://[USER[:PASSWORD]@][HOST[:PORT]]/DATABASE[?OPTIONS]`.

    Raises:
        ConfigurationError: the URL is not usable, or psycopg is not installed.

    """

    def __init__(self, url: URL) -> None:
        _check(url)
        self._url = url
        self._writer = _create_engine(url)
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


def _check(url: URL) -> None:
    # An unescaped @ makes a part of the password look like a part of the host or the database.
    if any("@" in (part or "") for part in (url.username, url.host, url.database)):
        raise ConfigurationError(
            "write @ as %40 and / as %2F in a user name or password", field="registry"
        )
    if unknown := url.query.keys() - _OPTIONS:
        name = min(unknown)
        hint = f"leave out '{name}'" if name.isidentifier() else "leave out what it does not know"
        raise ConfigurationError(
            f"the URL has an option that is not for a registry; {hint}", field="registry"
        )
    if not url.database and "service" not in url.query:
        raise ConfigurationError(f"the URL names no database; write {_FORM}", field="registry")


def _create_engine(url: URL) -> Engine:
    try:
        from kvcustody.registry.bounded_connection import Connector  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "PostgreSQL needs psycopg; run pip install 'kvcustody[postgresql]'", field="registry"
        ) from None
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_size=_POOL_SIZE,
        max_overflow=_POOL_OVERFLOW,
        pool_timeout=_POOL_WAIT_SECONDS,
        use_native_hstore=False,  # it would cost a query for each connection
        connect_args={
            "client_encoding": "utf8",
            "connect_timeout": _CONNECT_SECONDS,
            "tcp_user_timeout": _TCP_LIMIT,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 2,
            "options": " ".join(f"-c {name}={value}" for name, value in _SERVER_LIMITS.items()),
            "prepare_threshold": None,  # a pooler between us and the server would lose them
        },
    )
    event.listen(engine, "do_connect", Connector().connect)
    return engine
