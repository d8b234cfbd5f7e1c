"""Assertions: how the gateway tells the connector for whom a request is.

An assertion is a short-lived signed token that travels in the request's `kv_transfer_params`. It
is bound to the deployment, to one request id and to the request's cache salt, so it is no use for
another request. What is checked, in order:

1. it is there and has the right form;
2. its signature, under the deployment's assertion key, by the one algorithm that we use;
3. it has not expired, and was made for this deployment;
4. it was made for this request, and for the salt that the engine really uses.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import jwt

from kvcustody.identity.principal import Principal

ASSERTION_PARAMETER = "kvcustody"
"""Field of `kv_transfer_params` that holds the assertion."""

_PARTS = re.compile(r"[-_]")
_ALGORITHM = "HS256"
_ISSUER = "kvcustody"
_REQUIRED_CLAIMS = ("iss", "aud", "exp", "iat", "jti", "ten", "wl", "rid", "salt")
# Longer than any assertion that we sign; what is longer need not be parsed.
_MOST_CHARACTERS = 4096
# Gateway and engine may run on two hosts whose clocks differ a little.
_CLOCK_SKEW_SECONDS = 5.0


class AssertionFailure(StrEnum):
    """Why a request is not identified."""

    MISSING = "missing-assertion"
    FORGED = "forged"
    EXPIRED = "expired"
    WRONG_DEPLOYMENT = "wrong-deployment"
    WRONG_REQUEST = "wrong-request"
    WRONG_SALT = "wrong-salt"


@dataclass(frozen=True, slots=True)
class Verified:
    """What a valid assertion proves.

    Args:
        principal: for whom the request is.
        request_id: the gateway's id of the request, which its audit events carry, too.
        group: the sharing group whose namespace it uses; `None` for the principal's own.

    """

    principal: Principal
    request_id: str
    group: str | None


class AssertionSigner:
    """Signs assertions, in the gateway.

    Args:
        key: the deployment's assertion key, 32 bytes.
        deployment: name of the deployment.
        ttl: life of an assertion in seconds.
        clock: seconds since 1970.

    """

    def __init__(
        self, key: bytes, deployment: str, ttl: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._deployment = deployment
        self._ttl = ttl
        self._clock = clock

    def sign(
        self, principal: Principal, *, request_id: str, salt: str, group: str | None = None
    ) -> str:
        """Assert that a request is for a principal.

        Args:
            principal: for whom the request is.
            request_id: id that the engine's request id will contain; letters and digits.
            salt: the cache salt that goes with the request.
            group: the sharing group whose namespace the request uses, if not the principal's own.

        """
        now = self._clock()
        claims = {
            "iss": _ISSUER,
            "aud": self._deployment,
            "iat": now,
            "exp": now + self._ttl,
            "jti": secrets.token_hex(8),
            "ten": principal.tenant,
            "wl": principal.workload,
            "sub": principal.subject,
            "grp": group,
            "rid": request_id,
            "salt": _salt_digest(salt),
        }
        return jwt.encode(
            {name: value for name, value in claims.items() if value is not None},
            self._key,
            _ALGORITHM,
        )


class AssertionVerifier:
    """Verifies assertions, in the connector.

    Args:
        key: the deployment's assertion key, 32 bytes.
        deployment: name of the deployment.
        clock: seconds since 1970.

    """

    def __init__(self, key: bytes, deployment: str, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._deployment = deployment
        self._clock = clock

    def verify(
        self, assertion: object, *, request_id: str, cache_salt: str | None
    ) -> Verified | AssertionFailure:
        """What an assertion proves for a request; never raises.

        Args:
            assertion: what came with the request, of any type.
            request_id: the engine's id of the request; one of its parts is the gateway's id
                (vllm/entrypoints/serve/engine/serving.py, `_base_request_id`).
            cache_salt: the salt that the engine has for the request; `None` if it has none, as
                from endpoints that take none, so that the caller must set it.

        """
        if assertion is None:
            return AssertionFailure.MISSING
        if not isinstance(assertion, str) or len(assertion) > _MOST_CHARACTERS:
            return AssertionFailure.FORGED
        try:
            # Times are checked below, by our clock.
            claims = jwt.decode(
                assertion,
                self._key,
                algorithms=[_ALGORITHM],
                audience=self._deployment,
                issuer=_ISSUER,
                options={
                    "require": list(_REQUIRED_CLAIMS),
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.InvalidAudienceError:
            return AssertionFailure.WRONG_DEPLOYMENT
        except Exception:  # noqa: BLE001 - whatever a hostile token makes the parser raise, it is no proof
            return AssertionFailure.FORGED
        return self._check(claims, request_id, cache_salt)

    def _check(
        self, claims: dict[str, object], request_id: str, cache_salt: str | None
    ) -> Verified | AssertionFailure:
        tenant, workload, subject = claims["ten"], claims["wl"], claims.get("sub")
        group = claims.get("grp")
        expires, rid, salt = claims["exp"], claims["rid"], claims["salt"]
        if not (
            isinstance(expires, int | float)
            and isinstance(tenant, str)
            and isinstance(workload, str)
            and isinstance(subject, str | None)
            and isinstance(group, str | None)
            and isinstance(rid, str)
            and isinstance(salt, str)
        ):
            return AssertionFailure.FORGED
        if self._clock() > expires + _CLOCK_SKEW_SECONDS:
            return AssertionFailure.EXPIRED
        if rid not in _PARTS.split(request_id):
            return AssertionFailure.WRONG_REQUEST
        if cache_salt is not None and not hmac.compare_digest(_salt_digest(cache_salt), salt):
            return AssertionFailure.WRONG_SALT
        try:
            return Verified(Principal(tenant, workload, subject), rid, group)
        except ValueError:
            return AssertionFailure.FORGED


def _salt_digest(salt: str) -> str:
    """A salt's digest: an assertion that leaks must not tell the salt."""
    return hashlib.sha256(salt.encode(errors="surrogatepass")).hexdigest()
