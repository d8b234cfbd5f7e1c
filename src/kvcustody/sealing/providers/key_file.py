"""The file of a local root key: what it looks like, and reading and writing it.

It is ASCII. A plain one has two lines, the second of which is the key, 32 bytes in base64:

    kvcustody root key 1
    <base64 of the key>

One that is encrypted with a passphrase has three:

    kvcustody encrypted root key 1
    scrypt n=131072 r=8 p=1 salt=<base64 of 16 bytes>
    <base64 of nonce (12 bytes), ciphertext (32) and tag (16)>

The third line is AES-256-GCM under the scrypt (RFC 7914) of the passphrase, with the first two
lines, line breaks included, as additional data. A reader takes n from 2^14 to 2^20 and
n·r·p ≤ 2^22 only: a file that someone else wrote must not demand 100 GB of memory.
"""

import base64
import os
import re
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from kvcustody.errors import ConfigurationError
from kvcustody.sealing.providers import wipeable_base64
from kvcustody.sealing.providers.secret_files import (
    create_secret_file,
    passphrase_in,
    secret_content,
)
from kvcustody.sealing.secret import wipe

KEY_BYTES = 32

_PLAIN = b"kvcustody root key 1\n"
_ENCRYPTED = b"kvcustody encrypted root key 1\n"
_SCRYPT = re.compile(rb"scrypt n=(\d{1,8}) r=(\d{1,3}) p=(\d{1,3}) salt=([A-Za-z0-9+/]{22}==)\n")
# 128 MiB and 0.4 s a guess: OWASP's choice for passwords.
_COST = (2**17, 8, 1)
_LEAST_N, _MOST_N = 2**14, 2**20
# Four times the work, and memory, of our own files.
_MOST_WORK = 2**22
_SALT_BYTES = 16
_NONCE_BYTES = 12
_TAG_BYTES = 16


def create_key_file(path: Path, passphrase: bytes | bytearray | memoryview | None = None) -> None:
    """Write a new random root key to `path`, 0600.

    Args:
        path: where to.
        passphrase: what to encrypt it with; `None` for a plain key file.

    Raises:
        ConfigurationError: the file exists already or can't be written; nothing is overwritten.

    """
    key = _random_key()
    content = bytearray()
    try:
        if passphrase is None:
            content = _lines(_PLAIN, key)
        else:
            salt = base64.b64encode(os.urandom(_SALT_BYTES))
            head = _ENCRYPTED + b"scrypt n=%d r=%d p=%d salt=%b\n" % (*_COST, salt)
            content = _lines(head, _encrypted(key, passphrase, head))
        create_secret_file(path, content)
    finally:
        wipe(key)
        wipe(content)


def read_key_file(path: Path, passphrase_file: Path | None = None) -> bytearray:
    """Read the root key; the caller wipes it.

    Args:
        path: the key file.
        passphrase_file: the file with its passphrase, if it is encrypted.

    Raises:
        ConfigurationError: a file is missing, open to others, damaged, or not what it should be,
            or the passphrase is wrong.

    """
    missing = "restore it, or make one with `kvcustody keys new-root`"
    with secret_content(path, "key file", missing=missing) as content:
        if content.startswith(_PLAIN):
            if passphrase_file is not None:
                raise ConfigurationError(
                    "this key file is not encrypted; remove keys.passphrase_file", path
                )
            return _decoded(content, len(_PLAIN), KEY_BYTES, path)
        if not content.startswith(_ENCRYPTED):
            raise ConfigurationError("not a kvcustody key file", path)
        if passphrase_file is None:
            raise ConfigurationError("this key file is encrypted; set keys.passphrase_file", path)
        return _decrypted(content, path, passphrase_file)


def _random_key() -> bytearray:
    # os.urandom would return the key as bytes, which nothing can wipe.
    key = bytearray(KEY_BYTES)
    with Path("/dev/urandom").open("rb", buffering=0) as source:
        if source.readinto(key) != KEY_BYTES:
            raise ConfigurationError("no random numbers; check this system's /dev/urandom")
    return key


def _lines(head: bytes, secret: bytearray) -> bytearray:
    text = wipeable_base64.encode(secret)
    try:
        # Of the final size at once: a buffer that grows leaves copies behind.
        content = bytearray(len(head) + len(text) + 1)
        content[: len(head)] = head
        content[len(head) : -1] = text
        content[-1:] = b"\n"
        return content
    finally:
        wipe(text)


def _decoded(content: bytearray, start: int, size: int, path: Path) -> bytearray:
    """What the last line, from `start` on, holds."""
    end = content.find(b"\n", start)
    try:
        with memoryview(content)[start : end if end >= 0 else len(content)] as line:
            secret = wipeable_base64.decode(line)
    except ValueError:
        raise _damaged(path) from None
    if len(secret) != size:
        wipe(secret)
        raise _damaged(path)
    return secret


def _damaged(path: Path) -> ConfigurationError:
    return ConfigurationError("the key file is damaged; restore it from a backup", path)


def _encrypted(
    key: bytearray, passphrase: bytes | bytearray | memoryview, head: bytes
) -> bytearray:
    found = _SCRYPT.fullmatch(head, len(_ENCRYPTED))
    assert found is not None  # noqa: S101 - we just wrote it
    nonce = os.urandom(_NONCE_BYTES)
    wrapping = _stretched(passphrase, found)
    try:
        return bytearray(nonce + AESGCM(wrapping).encrypt(nonce, key, head))
    finally:
        wipe(wrapping)


def _decrypted(content: bytearray, path: Path, passphrase_file: Path) -> bytearray:
    found = _SCRYPT.match(content, len(_ENCRYPTED))
    if found is None:
        raise _damaged(path)
    head = bytes(content[: found.end()])
    sealed = _decoded(content, found.end(), _NONCE_BYTES + KEY_BYTES + _TAG_BYTES, path)
    n, r, p = (int(found[group]) for group in (1, 2, 3))
    if not _LEAST_N <= n <= _MOST_N or n & (n - 1) or not 0 < n * r * p <= _MOST_WORK:
        raise ConfigurationError(
            f"scrypt n={n} r={r} p={p} is not a cost that kvcustody writes; restore the key file "
            "from a backup",
            path,
        )
    with passphrase_in(passphrase_file) as passphrase:
        wrapping = _stretched(passphrase, found)
    key = bytearray(KEY_BYTES)
    try:
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        AESGCM(wrapping).decrypt_into(nonce, ciphertext, head, key)
    except InvalidTag:
        raise ConfigurationError(
            f"the passphrase in {passphrase_file} is not the one of this key file", path
        ) from None
    finally:
        wipe(wrapping)
    return key


def _stretched(passphrase: bytes | bytearray | memoryview, cost: "re.Match[bytes]") -> bytearray:
    """The key that a passphrase stands for."""
    n, r, p = (int(cost[group]) for group in (1, 2, 3))
    salt = base64.b64decode(cost[4])
    wrapping = bytearray(KEY_BYTES)
    Scrypt(salt=salt, length=KEY_BYTES, n=n, r=r, p=p).derive_into(passphrase, wrapping)
    return wrapping
