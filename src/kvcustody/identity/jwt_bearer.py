"""Bearer tokens of an organisation's identity provider (JWT, RFC 7519).

What is checked, in order:

1. form and length; header and claims are JSON objects with one meaning (no name twice);
2. the algorithm is one that custody.yaml lists, and the header asks for no extension (`crit`);
3. the signature, by the provider's key that the header names. Keys and addresses that the header
   itself brings (`jwk`, `jku`, `x5c`, `x5u`) are not looked at;
4. issuer and audience; `exp`, which must be there; `nbf` and `iat`, if they are;
5. the claims name a tenant and a workload, in the form that names have.
"""

import json
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import jwt

from kvcustody.config.values import is_name
from kvcustody.errors import ConfigurationError
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection
from kvcustody.identity.jwks import KeySet
from kvcustody.identity.principal import Principal, is_canonical

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"}
)
"""Signatures that only the issuer can make: no `none`, and no shared secret (`HS…`)."""

_MOST_CHARACTERS = 8192
_NEVER = 2**53
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)
# The audit trail gets no text that could be anything else.
_TOKEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claims say for whom a token is.

    A name is looked up as it stands, then as a path: `realm.tenant` is the claim `tenant` within
    the claim `realm`.

    Args:
        tenant: names the tenant.
        workload: names the workload.
        subject: names the data subject; `None` for tokens that are about nobody in particular.
        group: names a sharing group; a token need not have it.
        admin: whether the caller may administer the server; only `true` itself says so.

    """

    tenant: str
    workload: str
    subject: str | None = None
    group: str | None = None
    admin: str | None = None


@dataclass(frozen=True, slots=True)
class JwtRules:
    """Which tokens are believed.

    Args:
        issuer: the claim `iss`.
        audience: the claim `aud`, or one of them.
        algorithms: the algorithms that a signature may use.
        claims: which claims say for whom a token is.
        tenants: names of tenants by the claim's value; `None` if the claim has the name itself.
        leeway: how far two clocks may differ, in seconds.

    Raises:
        ConfigurationError: an algorithm is not safe here.

    """

    issuer: str
    audience: str
    algorithms: frozenset[str]
    claims: ClaimNames
    tenants: Mapping[str, str] | None = None
    leeway: float = 30.0

    def __post_init__(self) -> None:
        if not self.algorithms or (unsafe := self.algorithms - ALGORITHMS):
            named = f"'{min(unsafe)}' is not safe here; " if self.algorithms else ""
            raise ConfigurationError(
                f"{named}use {', '.join(sorted(ALGORITHMS))}", field="algorithms"
            )


class JwtBearer:
    """Verifies bearer tokens.

    Args:
        rules: which tokens are believed.
        keys: the issuer's keys.
        clock: seconds since 1970.

    """

    def __init__(
        self, rules: JwtRules, keys: KeySet, clock: Callable[[], float] = time.time
    ) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock

    def authenticate(self, token: str) -> Caller | Rejection:
        """Whom a token proves, or why nobody.

        Args:
            token: what the caller presented, believed in nothing.

        Raises:
            UnavailableError: the issuer's keys can't be had.

        """
        if len(token) > _MOST_CHARACTERS or not is_jwt(token):
            return Rejection(AuthenticationFailure.INVALID_TOKEN)
        header, claims = (_parse(part) for part in token.split(".")[:2])
        if header is None or claims is None:
            return Rejection(AuthenticationFailure.INVALID_TOKEN)
        algorithm, kid = header.get("alg"), header.get("kid")
        if (
            not isinstance(algorithm, str)
            or algorithm not in self._rules.algorithms
            or not isinstance(kid, str | None)
            or not {"crit", "b64", "zip"}.isdisjoint(header)
        ):
            return Rejection(AuthenticationFailure.INVALID_TOKEN)
        failure: AuthenticationFailure | None = AuthenticationFailure.INVALID_TOKEN
        for key in self._keys.find(kid, algorithm):
            failure = self._verify(token, key, algorithm)
            if failure is not AuthenticationFailure.INVALID_TOKEN:
                break
        if failure is AuthenticationFailure.INVALID_TOKEN:
            return Rejection(failure)
        credential = _credential(claims)
        failure = failure or self._check_times(claims)
        if failure is not None:
            return Rejection(failure, credential)
        return self._map(claims, credential)

    def _verify(self, token: str, key: Any, algorithm: str) -> AuthenticationFailure | None:
        """Check signature, issuer and audience; what is wrong, if anything."""
        try:
            # Times are checked afterwards, by our clock.
            jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                options={
                    "require": ["iss", "aud", "exp"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.InvalidIssuerError:
            return AuthenticationFailure.WRONG_ISSUER
        except jwt.InvalidAudienceError:
            return AuthenticationFailure.WRONG_AUDIENCE
        except Exception:  # noqa: BLE001 - whatever a hostile token makes the parser raise, it is no proof
            return AuthenticationFailure.INVALID_TOKEN
        return None

    def _check_times(self, claims: Mapping[str, Any]) -> AuthenticationFailure | None:
        now, leeway = self._clock(), self._rules.leeway
        expires = claims.get("exp")
        begins = [claims[name] for name in ("nbf", "iat") if name in claims]
        if not (_is_time(expires) and all(_is_time(begin) for begin in begins)):
            return AuthenticationFailure.INVALID_TOKEN
        if now >= expires + leeway or any(now < begin - leeway for begin in begins):
            return AuthenticationFailure.EXPIRED_TOKEN
        return None

    def _map(self, claims: Mapping[str, Any], credential: str) -> Caller | Rejection:
        names, unmapped = self._rules.claims, AuthenticationFailure.UNMAPPED_CLAIMS
        tenant = _find(claims, names.tenant)
        if self._rules.tenants is not None:
            tenant = self._rules.tenants.get(tenant) if isinstance(tenant, str) else None
        workload = _find(claims, names.workload)
        if not (_is_name(tenant) and _is_name(workload)):
            return Rejection(unmapped, credential)
        subject = _find(claims, names.subject)
        # Without it, the data of a person would lie where they can't be erased by that name.
        if names.subject is not None and not (isinstance(subject, str) and is_canonical(subject)):
            return Rejection(unmapped, credential)
        group = _find(claims, names.group)
        if not (group is None or _is_name(group)):
            return Rejection(unmapped, credential)
        admin = _find(claims, names.admin) is True
        return Caller(Principal(tenant, workload, subject), credential, admin, group)


def is_jwt(presented: str) -> bool:
    """Whether a credential has the form of a signed JWT."""
    return _FORM.fullmatch(presented) is not None


def _parse(part: str) -> dict[str, Any] | None:
    """A part's object; `None` if it is none, or two parsers could read it differently."""
    try:
        text = urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique_names, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def _credential(claims: Mapping[str, Any]) -> str:
    """The audit's name for a genuine token: its id, which the issuer's logs have, too."""
    token_id = claims.get("jti")
    named = isinstance(token_id, str) and _TOKEN_ID.fullmatch(token_id)
    return f"jwt:{token_id}" if named else "jwt"


def _is_time(value: object) -> TypeGuard[float]:
    # Larger ones are no seconds since 1970, and an integer may be too large to calculate with.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _NEVER


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and is_name(value)


def _find(claims: Mapping[str, Any], name: str | None) -> Any:
    if name is None or name in claims:
        return None if name is None else claims[name]
    value: Any = claims
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value
