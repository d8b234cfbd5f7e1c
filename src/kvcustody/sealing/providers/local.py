"""The root key as a file that only its owner may read."""

import base64
import hmac
import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcustody.errors import ConfigurationError
from kvcustody.sealing.providers.base import KeyContext, WrappedKeyError

_FIRST_LINE = "kvcustody root key 1"
_KEY_BYTES = 32
# Random nonces under one key are safe for 2^32 messages (NIST SP 800-38D, section 8.3); a
# deployment wraps a few keys for each namespace.
_NONCE_BYTES = 12
_LARGEST_FILE_BYTES = 4096
_ROOT_DOMAIN = b"kvcustody/1 root key identifier"
_ROOT_CHARACTERS = 16


def create_key_file(path: Path) -> None:
    """Write a new random root key to `path`, 0600.

    Raises:
        ConfigurationError: the file exists already or can't be written; nothing is overwritten.

    """
    text = f"{_FIRST_LINE}\n{base64.b64encode(os.urandom(_KEY_BYTES)).decode()}\n"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ConfigurationError("a key file exists already; it is kept", path) from None
    except OSError as error:
        raise ConfigurationError(f"can't be written: {error.strerror}", path) from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigurationError(f"can't be written: {error.strerror}", path) from None


class LocalKeyProvider:
    """Wraps keys with AES-256-GCM under the root key of a key file.

    Args:
        path: the key file, owned by this user or root and closed to group and others.

    Raises:
        ConfigurationError: the file is missing, open to others, or not a key file.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        key = _read_key_file(path)
        self._aead = AESGCM(key)
        # Says which key it is and nothing about it.
        self.root = f"local:{hmac.digest(key, _ROOT_DOMAIN, 'sha256').hex()[:_ROOT_CHARACTERS]}"

    def __repr__(self) -> str:
        return f"LocalKeyProvider({self._path})"

    def wrap(self, secret: bytes | bytearray, context: KeyContext) -> bytes:
        """Encrypt a key so that it unwraps only with the same context."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, secret, context.encode())

    def unwrap(self, wrapped: bytes, context: KeyContext) -> bytearray:
        """Decrypt a wrapped key.

        Raises:
            WrappedKeyError: wrong root key, wrong context, or altered.

        """
        try:
            nonce, ciphertext = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
            return bytearray(self._aead.decrypt(nonce, ciphertext, context.encode()))
        except (InvalidTag, ValueError):
            raise WrappedKeyError(
                f"{self._path}: this root key did not wrap the registry's keys; "
                "use the key file that belongs to the registry"
            ) from None

    def close(self) -> None:
        """Forget the root key."""
        vars(self).pop("_aead", None)


def _read_key_file(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ConfigurationError(
            "no such key file; restore it, or `kvcustody init` a new deployment",
            path,
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the key file can't be read: {error.strerror}", path) from None
    try:
        # Checked first: Python makes no file object of a folder.
        _check_private(os.fstat(descriptor), path)
        content = os.read(descriptor, _LARGEST_FILE_BYTES)
    except OSError as error:
        raise ConfigurationError(f"the key file can't be read: {error.strerror}", path) from None
    finally:
        os.close(descriptor)
    lines = content.decode("ascii", errors="replace").split("\n")
    if lines[:1] != [_FIRST_LINE]:
        raise ConfigurationError("not a kvcustody key file", path)
    try:
        key = base64.b64decode(lines[1], validate=True)
    except (ValueError, IndexError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigurationError("the key file is damaged; restore it from a backup", path)
    return key


def _check_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError("not a regular file", path)
    if status.st_mode & 0o077:
        raise ConfigurationError(
            f"open to group or others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "run chmod 600 on it",
            path,
        )
    if status.st_uid not in {os.geteuid(), 0}:
        raise ConfigurationError("owned by another user; chown it to the user that runs vLLM", path)
