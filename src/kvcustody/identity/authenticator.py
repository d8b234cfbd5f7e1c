"""Who presents a credential: an API key, or a bearer token of the organisation's identity provider.

What a credential proved is remembered for a quarter of a second, so that a stream of requests with
one key costs few look-ups. A revoked key is useless after that time. While the registry is away,
callers that it knew a moment ago stay good; nobody new is let in, and no key that is known to be
expired or revoked.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from kvcustody.errors import CustodyError, UnavailableError
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection
from kvcustody.identity.jwt_bearer import JwtBearer, is_jwt
from kvcustody.identity.key_usage import KeyUsage
from kvcustody.identity.tokens import KeyStore, key_id_of

REMEMBERED_SECONDS = 0.25
"""How long a credential counts as proven without another look, so how long a revoked key works."""

# A known caller's key stays good for so long while the registry is away.
_GRACE_SECONDS = 300.0
# After a failure the registry is left alone; a database that hangs takes seconds to say so.
_RETRY_SECONDS = 1.0
_MOST_REMEMBERED = 4096
# HTTP servers allow headers of 64 KiB and more; no key or token is that long.
_MOST_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class _Proof:
    """What was found out of a credential, and when.

    Args:
        outcome: a caller, or why a genuine key is good no more.
        checked: monotonic seconds, before the look-up.
        expires: end of the credential's life, seconds since 1970; `None` is never.
        outlasts: whether it stays good while the registry is away.

    """

    outcome: Caller | Rejection
    checked: float
    expires: float | None
    outlasts: bool


class Authenticator:
    """Authenticates callers.

    Args:
        keys: the API keys.
        usage: told of the keys that are used.
        tokens: verifies bearer tokens; `None` takes none.
        tenants: names of the tenants that are served here.
        clock: monotonic seconds.
        wall_clock: seconds since 1970.

    """

    def __init__(
        self,
        keys: KeyStore,
        usage: KeyUsage,
        tokens: JwtBearer | None,
        tenants: Container[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._usage = usage
        self._tokens = tokens
        self._tenants = tenants
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()  # guards _proofs and _away_until
        # By the credential's digest, never the credential itself.
        self._proofs: dict[bytes, _Proof] = {}
        self._away_until = float("-inf")

    def remembered(self, presented: str) -> Caller | None:
        """The caller, if it was proven a moment ago; waits for nothing.

        Args:
            presented: the credential.

        """
        if len(presented) > _MOST_CHARACTERS:
            return None
        name = _digest(presented)
        now = self._clock()
        with self._lock:
            proof = self._proofs.get(name)
            away = now < self._away_until
        if proof is None or not isinstance(proof.outcome, Caller):
            return None
        lifetime = _GRACE_SECONDS if away and proof.outlasts else REMEMBERED_SECONDS
        if now - proof.checked >= lifetime or self._has_expired(proof):
            return None
        return proof.outcome

    def authenticate(self, presented: str) -> Caller | Rejection:
        """Who presents a credential; this may wait for the registry or the identity provider.

        Args:
            presented: the credential.

        Raises:
            UnavailableError: it can't be found out now.

        """
        if len(presented) > _MOST_CHARACTERS:
            return Rejection(AuthenticationFailure.INVALID_KEY)
        if key_id_of(presented) is not None:
            return self._authenticate_key(presented)
        if self._tokens is not None and is_jwt(presented):
            return self._authenticate_token(self._tokens, presented)
        return Rejection(AuthenticationFailure.INVALID_KEY)

    def _authenticate_key(self, presented: str) -> Caller | Rejection:
        checked = self._clock()
        try:
            found = self._keys.authenticate(presented)
        except CustodyError as error:
            return self._while_away(presented, error)
        if isinstance(found, Rejection):
            if found.reason is not AuthenticationFailure.INVALID_KEY:
                self._remember(presented, _Proof(found, checked, None, outlasts=True))
            return found
        caller = Caller(found.principal, found.id, found.admin, found.group)
        outcome = self._served_here(caller)
        self._remember(presented, _Proof(outcome, checked, found.expires, outlasts=True))
        self._usage.note(found.id)
        return outcome

    def _authenticate_token(self, tokens: JwtBearer, presented: str) -> Caller | Rejection:
        checked = self._clock()
        found = tokens.authenticate(presented)
        if isinstance(found, Rejection):
            return found
        outcome = self._served_here(found)
        # A token's life ends within its leeway; the moment that it is remembered adds nothing.
        self._remember(presented, _Proof(outcome, checked, None, outlasts=False))
        return outcome

    def _served_here(self, caller: Caller) -> Caller | Rejection:
        if caller.principal.tenant in self._tenants:
            return caller
        return Rejection(AuthenticationFailure.UNKNOWN_TENANT, caller.credential)

    def _while_away(self, presented: str, error: CustodyError) -> Caller | Rejection:
        """What was known of a key before the registry went away.

        Raises:
            UnavailableError: nothing, or too long ago.

        """
        now = self._clock()
        with self._lock:
            self._away_until = now + _RETRY_SECONDS
            proof = self._proofs.get(_digest(presented))
        if proof is None or now - proof.checked >= _GRACE_SECONDS:
            raise UnavailableError(str(error)) from None
        if self._has_expired(proof):
            return Rejection(AuthenticationFailure.EXPIRED_KEY, key_id_of(presented))
        return proof.outcome

    def _has_expired(self, proof: _Proof) -> bool:
        return proof.expires is not None and proof.expires <= self._wall_clock()

    def _remember(self, presented: str, proof: _Proof) -> None:
        name = _digest(presented)
        with self._lock:
            before = self._proofs.pop(name, None)
            if before is not None and before.checked > proof.checked:
                proof = before  # a look-up that took longer must not bring a revoked key back
            elif len(self._proofs) >= _MOST_REMEMBERED:
                del self._proofs[next(iter(self._proofs))]  # looked up longest ago
            self._proofs[name] = proof


def _digest(presented: str) -> bytes:
    return hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest()
