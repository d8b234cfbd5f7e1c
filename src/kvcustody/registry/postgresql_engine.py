"""Connections to PostgreSQL that never make anybody wait long."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event

from kvcustody.errors import ConfigurationError

_CONNECT_SECONDS = 2  # the least that psycopg and libpq know
# A host that is gone ends a connection as fast; in milliseconds.
_TCP_LIMIT = 3000

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


def check_url(url: URL, field: str) -> None:
    """Check that a URL says where a server is, and nothing that would get in our way.

    Args:
        url: `postgresql://[USER[:PASSWORD]@][HOST[:PORT]]/DATABASE[?OPTIONS]`.
        field: of custody.yaml, which it comes from.

    Raises:
        ConfigurationError: it doesn't.

    """
    # An unescaped @ makes a part of the password look like a part of the host or the database.
    if any("@" in (part or "") for part in (url.username, url.host, url.database)):
        raise ConfigurationError(
            "write @ as %40 and / as %2F in a user name or password", field=field
        )
    if unknown := url.query.keys() - _OPTIONS:
        name = min(unknown)
        hint = f"leave out '{name}'" if name.isidentifier() else "leave out what it does not know"
        raise ConfigurationError(
            f"the URL has an option that is not known here; {hint}", field=field
        )
    if not url.database and "service" not in url.query:
        raise ConfigurationError(f"the URL names no database; write {_FORM}", field=field)


def create_bounded_engine(
    url: URL, field: str, server_limits: Mapping[str, str], answer_seconds: float, **options: Any
) -> Engine:
    """SQLAlchemy's engine for a server; nothing is connected yet.

    Args:
        url: one that `check_url` accepts.
        field: of custody.yaml, which it comes from.
        server_limits: settings of the server for each connection.
        answer_seconds: how long an answer may take; more than the server allows a statement.
        options: for `sqlalchemy.create_engine`.

    Raises:
        ConfigurationError: psycopg is not installed.

    """
    try:
        from kvcustody.registry.bounded_connection import Connector  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "PostgreSQL needs psycopg; run pip install 'kvcustody[postgresql]'", field=field
        ) from None
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        use_native_hstore=False,  # it would cost a query for each connection
        connect_args={
            "client_encoding": "utf8",
            "connect_timeout": _CONNECT_SECONDS,
            "tcp_user_timeout": _TCP_LIMIT,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 2,
            "options": " ".join(f"-c {name}={value}" for name, value in server_limits.items()),
            "prepare_threshold": None,  # a pooler between us and the server would lose them
        },
        **options,
    )
    event.listen(engine, "do_connect", Connector(answer_seconds).connect)
    return engine
