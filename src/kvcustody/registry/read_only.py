"""Connections to a database of somebody else, of which we only read."""

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from kvcustody.errors import ConfigurationError
from kvcustody.registry.postgresql_engine import check_url, create_bounded_engine

# A table of a million rows takes seconds.
_SERVER_LIMITS = {
    "statement_timeout": "10s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "30s",
    "default_transaction_read_only": "on",
}
_ANSWER_SECONDS = 12.0
_SQLITE_LOCK_SECONDS = 2.0

_FORM = "postgresql://USER:PASSWORD@HOST/DATABASE"


def open_read_only(url: str, field: str) -> Engine:
    """SQLAlchemy's engine for a database; nothing is connected yet, nor kept open between uses.

    With PostgreSQL and SQLite, nothing can be written, and PostgreSQL isn't waited for long.

    Args:
        url: any that SQLAlchemy knows.
        field: of custody.yaml, which it comes from.

    Raises:
        ConfigurationError: it is none, or its driver is not installed.

    """
    try:
        # A port that is no number is a ValueError. No message repeats the URL: it may hold a
        # password.
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"not a database URL; write {_FORM}", field=field) from None
    if backend == "postgresql":
        check_url(parsed, field)
        return create_bounded_engine(
            parsed,
            field,
            _SERVER_LIMITS,
            _ANSWER_SECONDS,
            # All that is read in one go is of one state.
            isolation_level="REPEATABLE READ",
            poolclass=NullPool,
        )
    if backend == "sqlite":
        return _open_sqlite(url, parsed.database or "", field)
    try:
        return create_engine(url, poolclass=NullPool, hide_parameters=True)
    except ImportError as error:
        raise ConfigurationError(
            f"the database's driver is not installed: {error.name or 'its name is in the URL'}",
            field=field,
        ) from None
    except (ArgumentError, NoSuchModuleError, TypeError, ValueError):
        raise ConfigurationError("SQLAlchemy doesn't know such a database", field=field) from None


def _open_sqlite(url: str, path: str, field: str) -> Engine:
    if not Path(path).is_absolute():
        raise ConfigurationError("write an absolute path: sqlite:////PATH", field=field)
    if not Path(path).is_file():
        # SQLite would make an empty one.
        raise ConfigurationError("no such SQLite file", Path(path))
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _SQLITE_LOCK_SECONDS})
    event.listen(engine, "connect", _forbid_writing)
    return engine


def _forbid_writing(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")
