"""What went wrong with an adapter, in words for a person.

The text of others' exceptions is never shown: it may quote a password. Their classes are.
"""

import re

from sqlalchemy import exc

from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.registry.postgresql_errors import Symptom, sqlstate, symptom

_NO_TABLE = "there is no such table; make it, or name the one there is (`arguments`: table_name)"
_NO_COLUMN = "the table lacks a column that the adapter reads"
_NOT_ALLOWED = "the database's user may not read the table; GRANT it SELECT"
_READ_ONLY = (
    "the adapter wants to write, which it may not; make the table yourself, and tell the adapter "
    "not to (`arguments`: create_table: false)"
)

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_WRONG_BY_STATE = {
    "42P01": _NO_TABLE,
    "42703": _NO_COLUMN,
    "42501": _NOT_ALLOWED,
    "3F000": _NOT_ALLOWED,
    "25006": _READ_ONLY,
}
_AWAY_BY_STATE = {
    "55P03": "somebody holds a lock on the table",
    "40P01": "somebody holds a lock on the table",
}
_WRONG_BY_TEXT = [
    (r"no such table|table .* doesn't exist", _NO_TABLE),
    (r"no such column|[Uu]nknown column", _NO_COLUMN),
    (r"attempt to write a readonly database", _READ_ONLY),
    (r"not a database|malformed", "the file is no SQLite database"),
    (r"[Aa]ccess denied", "the server refused the user or password"),
]

# Most drivers have exceptions of their own for a server that is away, named like these.
_AWAY = re.compile(r"Connection|Connect|Timeout|TimedOut|Unavailable|ServerSelection|Network")


def explain_adapter_error(error: BaseException, adapter: str) -> CustodyError:
    """An error for a person: without the URL, its password, statements and values.

    Args:
        error: what the adapter raised.
        adapter: its name.

    """
    if isinstance(error, CustodyError):
        return error
    if isinstance(error, exc.SQLAlchemyError):
        return _explain_database_error(error, adapter)
    kind = type(error).__name__
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return ConfigurationError(f"{adapter} can't read a file: {error.strerror}")
    away = any(_AWAY.search(each.__name__) for each in type(error).__mro__)
    if away or isinstance(error, OSError):
        return UnavailableError(f"{adapter}: what it reads can't be reached ({kind})")
    if isinstance(error, ImportError):
        return ConfigurationError(f"{adapter} needs a package that is not installed: {error.name}")
    return ConfigurationError(
        f"{adapter} failed ({kind}); look for a row without a type, or with NULL or brackets where "
        "none belong, and check `arguments`"
    )


def _explain_database_error(error: exc.SQLAlchemyError, adapter: str) -> CustodyError:
    state = sqlstate(error)
    if state in _WRONG_BY_STATE:
        return ConfigurationError(f"{adapter}: {_WRONG_BY_STATE[state]}")
    if state in _AWAY_BY_STATE:
        return UnavailableError(f"{adapter}: {_AWAY_BY_STATE[state]}")
    kind, message = symptom(error)
    if kind is Symptom.WRONG:
        return ConfigurationError(f"{adapter}: {message}")
    if kind is Symptom.AWAY:
        return UnavailableError(f"{adapter}: {message}")
    text = str(getattr(error, "orig", ""))
    for pattern, wrong in _WRONG_BY_TEXT:
        if re.search(pattern, text):
            return ConfigurationError(f"{adapter}: {wrong}")
    name = type(error).__name__
    if isinstance(error, exc.OperationalError | exc.InterfaceError):
        return UnavailableError(f"{adapter}: its database failed ({name})")
    return ConfigurationError(f"{adapter}: its database refused what it asked ({name})")
