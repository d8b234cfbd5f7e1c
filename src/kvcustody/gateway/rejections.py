"""What a caller hears whose credential proves nobody."""

from http import HTTPStatus

from kvcustody.gateway.replies import INVALID_TOKEN, Refused
from kvcustody.identity.caller import AuthenticationFailure

_KEY = "invalid_api_key"
_TOKEN = "invalid_token"  # noqa: S105 - an error code, no secret

# To a stranger, a wrong key and a key that never was are the same.
_ANSWERS = {
    AuthenticationFailure.INVALID_KEY: (
        _KEY,
        "This credential is not valid. Send one key or token, as 'Authorization: Bearer …'.",
    ),
    AuthenticationFailure.EXPIRED_KEY: (_KEY, "This API key has expired."),
    AuthenticationFailure.REVOKED_KEY: (_KEY, "This API key was revoked."),
    AuthenticationFailure.INVALID_TOKEN: (
        _TOKEN,
        "This token is not valid, or lacks one of iss, aud and exp.",
    ),
    AuthenticationFailure.EXPIRED_TOKEN: (_TOKEN, "This token has expired, or is not valid yet."),
    AuthenticationFailure.WRONG_ISSUER: (_TOKEN, "This token's issuer is not trusted here."),
    AuthenticationFailure.WRONG_AUDIENCE: (_TOKEN, "This token is for another audience."),
    AuthenticationFailure.UNMAPPED_CLAIMS: (
        _TOKEN,
        "This token's claims don't name a tenant, a workload, or a subject where one is needed.",
    ),
}


def refusal_for(reason: AuthenticationFailure) -> Refused:
    """The answer to a caller that was not authenticated.

    Args:
        reason: why it wasn't.

    """
    if reason is AuthenticationFailure.NO_KEY:
        return Refused(
            HTTPStatus.UNAUTHORIZED,
            "missing_api_key",
            "Send your API key as 'Authorization: Bearer KEY'.",
        )
    if reason is AuthenticationFailure.UNKNOWN_TENANT:
        return Refused(
            HTTPStatus.FORBIDDEN,
            "unknown_tenant",
            "This credential's tenant is not served here.",
        )
    code, message = _ANSWERS[reason]
    return Refused(HTTPStatus.UNAUTHORIZED, code, message, challenge=INVALID_TOKEN)
