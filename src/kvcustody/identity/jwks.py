"""The keys of an identity provider (RFC 7517), fetched when needed and kept for a while."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from kvcustody.errors import CustodyError, UnavailableError

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_FRESH_SECONDS = 300.0
# Signed in for the day, people should work on while the provider restarts; a key that it withdrew
# is believed for no longer than this.
_STALE_SECONDS = 3600.0
# A stranger can name any key id; it must not make us a burden for the provider.
_FETCHED_AT_MOST_EVERY_SECONDS = 10.0
# How long a caller waits for a fetch that another began; threads are few.
_PATIENCE_SECONDS = 2.0
_MOST_KEYS = 100
_LEAST_RSA_BITS = 2048

_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProviderKey:
    """A key that verifies signatures.

    Args:
        kid: its id; `None` if the provider gave it none.
        algorithm: the only algorithm that it is for; `None` if the provider doesn't say.
        key: the key itself.

    """

    kid: str | None
    algorithm: str | None
    key: PublicKey

    def fits(self, algorithm: str) -> bool:
        """Whether a signature by an algorithm may be this key's."""
        if self.algorithm not in {None, algorithm}:
            return False
        if algorithm.startswith(("RS", "PS")):
            return isinstance(self.key, RSAPublicKey)
        if algorithm in _CURVES:
            return (
                isinstance(self.key, EllipticCurvePublicKey)
                and self.key.curve.name == _CURVES[algorithm]
            )
        return algorithm == "EdDSA" and isinstance(self.key, Ed25519PublicKey)


@dataclass(frozen=True, slots=True)
class _Fetched:
    keys: tuple[ProviderKey, ...]
    at: float


class KeySet:
    """An identity provider's keys.

    Args:
        fetch: gives the key set's bytes, or raises a `CustodyError`.
        clock: monotonic seconds.

    """

    def __init__(
        self, fetch: Callable[[], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._current: _Fetched | None = None
        # Guards _tried, and lets one thread fetch at a time. _current is replaced as a whole.
        self._fetching = threading.Lock()
        self._tried = float("-inf")

    def find(self, kid: str | None, algorithm: str) -> list[PublicKey]:
        """The keys that may have made a signature.

        Args:
            kid: id of the key, as the token names it; `None` if it names none. Then the key must be
                the only one that fits.
            algorithm: the signature's algorithm.

        Raises:
            UnavailableError: the provider's keys can't be had.

        """
        current = self._usable()
        if current is None or self._clock() - current.at >= _FRESH_SECONDS:
            # Whoever has keys to go on with waits for nobody.
            self._refresh(_PATIENCE_SECONDS if current is None else 0.0)
            current = self._usable()
        if current is not None and kid is not None and not _has(current.keys, kid):
            # The first who names a new key fetches; a stranger's inventions make nobody wait.
            self._refresh(0.0)
            current = self._usable()
        if current is None:
            raise UnavailableError("the identity provider's keys can't be had")
        fitting = [
            key.key
            for key in current.keys
            if (kid is None or key.kid == kid) and key.fits(algorithm)
        ]
        return fitting if kid is not None or len(fitting) == 1 else []

    def _usable(self) -> _Fetched | None:
        current = self._current
        if current is None or self._clock() - current.at >= _STALE_SECONDS:
            return None
        return current

    def _refresh(self, patience: float) -> None:
        """Fetch, unless that was tried a moment ago; a failure leaves what there was."""
        if not self._fetching.acquire(timeout=patience):
            return
        try:
            now = self._clock()
            if now - self._tried < _FETCHED_AT_MOST_EVERY_SECONDS:
                return
            self._tried = now
            self._current = _Fetched(parse_key_set(self._fetch()), now)
        except CustodyError as error:
            logger.warning("The identity provider's keys can't be fetched: %s", error)
        finally:
            self._fetching.release()


def parse_key_set(content: bytes) -> tuple[ProviderKey, ...]:
    """The keys of a key set that verify signatures; all others are passed over.

    Args:
        content: JSON, of at most some hundred kilobytes.

    Raises:
        UnavailableError: this is no key set, or none of its keys is of use.

    """
    try:
        document = json.loads(content.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UnavailableError("the key set is not JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or len(entries) > _MOST_KEYS:
        raise UnavailableError(f"not a key set: needs a list `keys` of at most {_MOST_KEYS}")
    keys = tuple(key for entry in entries if (key := _parse_key(entry)) is not None)
    if entries and not keys:
        raise UnavailableError("the key set has no public key for signatures")
    return keys  # an empty list is an answer, too: that is how a provider withdraws its keys


def _parse_key(entry: object) -> ProviderKey | None:
    """A key; `None` for one that is for something else, or that nobody should trust."""
    if not isinstance(entry, dict) or not _verifies(entry):
        return None
    kid, algorithm = entry.get("kid"), entry.get("alg")
    if not (isinstance(kid, str | None) and isinstance(algorithm, str | None)):
        return None
    try:
        key = _public_key(entry)
    except Exception:  # noqa: BLE001 - whatever a malformed key makes the parser raise, it is no key
        return None
    return None if key is None else ProviderKey(kid, algorithm, key)


def _verifies(entry: Mapping[str, Any]) -> bool:
    operations = entry.get("key_ops")
    return entry.get("use") in {None, "sig"} and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )


def _public_key(entry: dict[str, Any]) -> PublicKey | None:
    kind = entry.get("kty")
    key: object = None
    if kind == "RSA":
        key = RSAAlgorithm.from_jwk(entry)
    elif kind == "EC":
        key = ECAlgorithm.from_jwk(entry)
    elif kind == "OKP":
        key = OKPAlgorithm.from_jwk(entry)
    if isinstance(key, RSAPublicKey):
        return key if key.key_size >= _LEAST_RSA_BITS else None
    if isinstance(key, EllipticCurvePublicKey | Ed25519PublicKey):
        return key
    return None  # a private key, too: once published it is anybody's


def _has(keys: tuple[ProviderKey, ...], kid: str) -> bool:
    return any(key.kid == kid for key in keys)


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")
