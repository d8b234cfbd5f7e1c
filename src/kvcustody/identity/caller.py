"""Who sent a request, by the credential that came with it."""

from dataclasses import dataclass
from enum import StrEnum

from kvcustody.identity.principal import Principal


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a credential proves.

    Args:
        principal: whom the caller's requests are for.
        credential: public id of the credential, for the audit; `None` for anonymous callers.
        admin: whether the caller may use the server's administrative routes.
        group: the sharing group that the credential asks for.

    """

    principal: Principal
    credential: str | None
    admin: bool = False
    group: str | None = None


class AuthenticationFailure(StrEnum):
    """Why nobody is proven."""

    NO_KEY = "no-key"
    INVALID_KEY = "invalid-key"
    UNKNOWN_TENANT = "unknown-tenant"
