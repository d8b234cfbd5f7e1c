"""Secret keys in memory: in one place each, used without copies, and wiped when done with."""

import hmac
import threading
from typing import NoReturn

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class SecretKey:
    """A secret that others use but don't get, until it is wiped.

    Args:
        material: the secret; a `bytearray` is taken over and wiped in the end, `bytes` are copied.

    """

    __slots__ = ("_lock", "_material")

    def __init__(self, material: bytes | bytearray) -> None:
        self._material = material if isinstance(material, bytearray) else bytearray(material)
        # Guards `_material`: nothing may be derived from a secret that is half wiped.
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "SecretKey()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not copied or pickled")

    def derive(self, salt: bytes, info: bytes, length: int) -> bytearray | None:
        """HKDF-SHA256 (RFC 5869) of the secret; `None` once it is wiped."""
        derived = bytearray(length)
        with self._lock:
            if not self._material:
                return None
            HKDF(SHA256(), length, salt, info).derive_into(self._material, derived)
        return derived

    def digest(self, message: bytes) -> bytes | None:
        """HMAC-SHA256 of a message under the secret; `None` once it is wiped."""
        with self._lock:
            return hmac.digest(self._material, message, "sha256") if self._material else None

    def wipe(self) -> None:
        """Overwrite the secret; what is under way with it ends first."""
        with self._lock:
            wipe(self._material)
            self._material = bytearray()


class DataKey:
    """A namespace's key of one epoch.

    Args:
        key_id: 16 bytes that name it in headers.
        secret: 32 bytes; see `SecretKey` for whose they are afterwards.

    """

    __slots__ = ("key_id", "secret")

    def __init__(self, key_id: bytes, secret: bytes | bytearray) -> None:
        self.key_id = key_id
        self.secret = SecretKey(secret)

    def __repr__(self) -> str:
        return f"DataKey(key_id={self.key_id.hex()})"


def wipe(secret: bytearray) -> None:
    """Overwrite a secret with zeros, in place."""
    secret[:] = bytes(len(secret))
