"""What went wrong with PostgreSQL, in words for a person.

The driver's own text is read, never shown: it may quote statements, values and parts of the URL.
"""

import re
from enum import Enum, auto

from sqlalchemy import exc

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_DEADLOCK = "40P01"
_LOCK_NOT_AVAILABLE = "55P03"
LOCKED = frozenset({_DEADLOCK, _LOCK_NOT_AVAILABLE})
"""States in which others were in the way."""


class Symptom(Enum):
    """What can be done about an error."""

    WRONG = auto()
    """Correct the URL or the database."""
    AWAY = auto()
    """Wait, or start the server."""
    OTHER = auto()
    """Nothing that we know of."""


_NOT_ALLOWED = (
    Symptom.WRONG,
    "the role may not create or use tables; make it the database's owner, or GRANT it CREATE",
)
_DAMAGED = (Symptom.WRONG, "not a usable registry (tables differ); restore it from a backup")
_READ_ONLY = (Symptom.WRONG, "the server is read-only; name the primary server")

_BY_STATE = {
    "42501": _NOT_ALLOWED,  # insufficient_privilege
    "3F000": _NOT_ALLOWED,  # invalid_schema_name: none on the search path that the role may use
    "42P01": _DAMAGED,  # undefined_table
    "42P07": _DAMAGED,  # duplicate_table
    "42703": _DAMAGED,  # undefined_column
    "42701": _DAMAGED,  # duplicate_column
    "25006": _READ_ONLY,
    "57014": (Symptom.AWAY, "the server took too long"),  # query_canceled, by statement_timeout
    _DEADLOCK: (Symptom.AWAY, "the registry is locked by another process"),
    _LOCK_NOT_AVAILABLE: (Symptom.AWAY, "the registry is locked by another process"),
    "53300": (Symptom.AWAY, "the server has no connection left"),
}

# libpq gives no state for what fails while it connects, only text.
_BY_TEXT = [
    (
        r"authentication failed|no password supplied|no pg_hba\.conf|role .* (not exist|log in)",
        Symptom.WRONG,
        "the server refused the user or password; check them in the URL or in ~/.pgpass",
    ),
    (
        r"database .* does not exist",
        Symptom.WRONG,
        "there is no such database; create it, or correct the URL",
    ),
    (
        r"permission denied for database",
        Symptom.WRONG,
        "the role may not connect to it; grant it CONNECT on the database",
    ),
    (
        r"definition of service|service file",
        Symptom.WRONG,
        "the service file doesn't define it; check PGSERVICEFILE or ~/.pg_service.conf",
    ),
    (
        r"certificate|support SSL|SSL error|GSSAPI|channel binding|authentication method",
        Symptom.WRONG,
        "no trusted connection; check sslmode, sslrootcert and the server's certificate",
    ),
    (
        r"invalid \S+ value|invalid port number|invalid integer value|could not match",
        Symptom.WRONG,
        "an option in the URL has a wrong value; correct it",
    ),
    (
        r"session is (read-only|not read-only)|server is (not )?in hot standby",
        *_READ_ONLY,
    ),
    (
        r"too many clients|remaining connection slots|too many connections",
        Symptom.AWAY,
        "the server has no connection left",
    ),
    (
        r"starting up|shutting down|recovery mode|terminating connection",
        Symptom.AWAY,
        "the server is starting or stopping; try again",
    ),
    (
        r"failed to resolve host|could not translate host name",
        Symptom.AWAY,
        "the host's name is not known; check it, and DNS",
    ),
    (r"timeout|no answer in time|timed out", Symptom.AWAY, "the server does not answer"),
    (
        r"connection",
        Symptom.AWAY,
        "can't be reached; check that the server runs, and host and port",
    ),
]


def sqlstate(error: exc.SQLAlchemyError) -> str | None:
    """PostgreSQL's code for the error, if the server sent one."""
    state: str | None = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state


def symptom(error: exc.SQLAlchemyError) -> tuple[Symptom, str]:
    """What can be done about an error, and a text that says so."""
    state = sqlstate(error)
    if state in _BY_STATE:
        return _BY_STATE[state]
    if isinstance(error, exc.TimeoutError):
        return Symptom.AWAY, "all connections are in use"
    if state is None and isinstance(error, exc.OperationalError):
        found = str(error.orig)
        for pattern, kind, message in _BY_TEXT:
            if re.search(pattern, found):
                return kind, message
    return Symptom.OTHER, ""
