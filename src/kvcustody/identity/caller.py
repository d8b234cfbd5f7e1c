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
    EXPIRED_KEY = "expired-key"
    REVOKED_KEY = "revoked-key"
    UNKNOWN_TENANT = "unknown-tenant"
    """The credential is good, but its tenant is not served here."""
    INVALID_TOKEN = "invalid-token"  # noqa: S105 - a reason, no secret
    """A JWT that can't be parsed, or whose signature is not the issuer's."""
    EXPIRED_TOKEN = "expired-token"  # noqa: S105 - a reason, no secret
    """Or not valid yet."""
    WRONG_ISSUER = "wrong-issuer"
    WRONG_AUDIENCE = "wrong-audience"
    UNMAPPED_CLAIMS = "unmapped-claims"
    """Genuine, but its claims name no tenant or workload, or not in the right form."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A credential that proves nobody.

    Args:
        reason: why.
        credential: public id of the credential, for the audit, if it has one.

    """

    reason: AuthenticationFailure
    credential: str | None = None
