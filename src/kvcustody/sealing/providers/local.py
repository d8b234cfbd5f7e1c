"""The root key as a file that only its owner may read, in memory once and wiped in the end."""

import hmac
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcustody.errors import CustodyError
from kvcustody.sealing.providers.base import KeyContext, WrappedKeyError
from kvcustody.sealing.providers.key_file import KEY_BYTES, read_key_file
from kvcustody.sealing.secret import wipe

# Random nonces under one key are safe for 2^32 messages (NIST SP 800-38D, section 8.3); a
# deployment wraps a few keys for each namespace.
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ROOT_DOMAIN = b"kvcustody/1 root key identifier"
_ROOT_CHARACTERS = 16


class LocalKeyProvider:
    """Wraps keys with AES-256-GCM under the root key of a key file.

    Args:
        path: the key file, owned by this user or root and closed to group and others.
        passphrase_file: the file with the key file's passphrase, as private; `None` for a plain
            key file.

    Raises:
        ConfigurationError: a file is missing, open to others, damaged, or not what it should be,
            or the passphrase is wrong.

    """

    def __init__(self, path: Path, passphrase_file: Path | None = None) -> None:
        self._path = path
        self._key: bytearray | None = read_key_file(path, passphrase_file)
        # Nothing may be wrapped with a key that is being wiped: zeros would unwrap it.
        self._lock = threading.Lock()
        # Says which key it is and nothing about it.
        identifier = hmac.digest(self._key, _ROOT_DOMAIN, "sha256").hex()
        self._root = f"local:{identifier[:_ROOT_CHARACTERS]}"

    def __repr__(self) -> str:
        return f"LocalKeyProvider({self._path})"

    @property
    def root(self) -> str:
        """Identifier of the root key."""
        return self._root

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        """Encrypt a key so that it unwraps only with the same context.

        Raises:
            CustodyError: the provider is closed.

        """
        nonce = os.urandom(_NONCE_BYTES)
        with self._key_in_use() as key:
            wrapped = AESGCM(key).encrypt(nonce, secret, context.encode())
            _clear_stack(len(secret))
        return nonce + wrapped

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        """Decrypt a wrapped key; the caller wipes what it gets.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.
            CustodyError: the provider is closed.

        """
        nonce, ciphertext = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        secret = bytearray(max(0, len(ciphertext) - _TAG_BYTES))
        try:
            with self._key_in_use() as key:
                AESGCM(key).decrypt_into(nonce, ciphertext, context.encode(), secret)
        except (InvalidTag, ValueError):
            wipe(secret)
            raise WrappedKeyError(
                f"{self._path}: this root key did not wrap the registry's keys; "
                "use the key file that belongs to the registry"
            ) from None
        finally:
            _clear_stack(len(secret))
        return secret

    def close(self) -> None:
        """Wipe the root key; nothing works afterwards."""
        with self._lock:
            if self._key is not None:
                wipe(self._key)
                self._key = None

    @contextmanager
    def _key_in_use(self) -> Iterator[bytearray]:
        with self._lock:
            if self._key is None:
                raise CustodyError(f"{self._path}: the key provider is closed; open it anew")
            # Its user makes a cipher for each use: that holds a key schedule, which OpenSSL wipes
            # when the cipher is freed.
            yield self._key


def _clear_stack(size: int) -> None:
    """Overwrite the round keys that OpenSSL leaves on the stack with those of a key of zeros."""
    nonce, key = bytes(_NONCE_BYTES), bytes(KEY_BYTES)
    sealed = AESGCM(key).encrypt(nonce, bytes(size), None)
    AESGCM(key).decrypt_into(nonce, sealed, None, bytearray(size))
