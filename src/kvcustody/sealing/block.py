"""Seal a block into a buffer and open it again; every check in the order of the specification.

Opening checks, in order: header form, version, expected namespace, expected name, expiry, layout,
key state, commitment, length, tag. Any failure is a value, and zeroes the destination.
"""

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcustody.sealing.format import (
    COMMITMENT_BYTES,
    HEADER_BYTES,
    MAX_PLAINTEXT_BYTES,
    OVERHEAD_BYTES,
    SALT_BYTES,
    Header,
    OpenFailure,
)
from kvcustody.sealing.secret import DataKey, wipe

Buffer = bytes | bytearray | memoryview

_AES_KEY_BYTES = 32
_KEY_DOMAIN = b"kvcustody/1 block key"
# Each key seals one message, so the nonce may be constant (NIST SP 800-38D, section 8.2.1).
_NONCE = bytes(12)


KeyLookup = Callable[[bytes], DataKey | OpenFailure]
"""Finds a data key by its id, or says `KEY_DESTROYED` or `KEY_UNAVAILABLE`."""


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """What a block must be to be of use here: its namespace, its name and its layout.

    Args:
        namespace: 16 bytes.
        name: 32 bytes.
        layout: 32 bytes.

    """

    namespace: bytes
    name: bytes
    layout: bytes


def sealed_size(plaintext_bytes: int) -> int:
    """Bytes that a sealed block of this much plaintext takes."""
    return plaintext_bytes + OVERHEAD_BYTES


def seal_into(
    destination: memoryview,
    plaintext: Buffer,
    identity: BlockIdentity,
    key: DataKey,
    *,
    created: int,
    expires: int,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> bool:
    """Seal a block in one pass over its data; nothing is written when anything is wrong.

    Args:
        destination: exactly `sealed_size(len(plaintext))` writable bytes.
        plaintext: the KV data, contiguous bytes; may be empty.
        identity: what the block is.
        key: the namespace's data key.
        created: milliseconds since 1970.
        expires: milliseconds since 1970, not before `created`.
        random_bytes: source of the per-block salt.

    Returns:
        False if the key was wiped meanwhile; then there is no block.

    Raises:
        ValueError: a size, a field's length or a time is not one that the format has.

    """
    content = memoryview(plaintext).cast("B")
    if len(content) > MAX_PLAINTEXT_BYTES:
        raise ValueError(f"a block holds at most {MAX_PLAINTEXT_BYTES} bytes")
    if len(destination) != sealed_size(len(content)):
        raise ValueError(f"destination must be {sealed_size(len(content))} bytes")
    if created > expires:
        raise ValueError("a block can't expire before it was created")
    salt = random_bytes(SALT_BYTES)
    derived = _derive(key, salt, identity.namespace, identity.name)
    if derived is None:
        return False
    block_key, commitment = derived
    header = Header(
        key_id=key.key_id,
        namespace=identity.namespace,
        name=identity.name,
        created=created,
        expires=expires,
        plaintext_bytes=len(content),
        layout=identity.layout,
        salt=salt,
        commitment=commitment,
    ).pack()
    destination[:HEADER_BYTES] = header
    try:
        AESGCM(block_key).encrypt_into(_NONCE, content, header, destination[HEADER_BYTES:])
    finally:
        wipe(block_key)
    return True


def open_into(
    destination: memoryview,
    sealed: memoryview,
    identity: BlockIdentity,
    find_key: KeyLookup,
    *,
    now: int,
) -> OpenFailure | None:
    """Open a sealed block straight into `destination`.

    Args:
        destination: writable bytes, as many as the block's plaintext; zeroed on any failure, and
            when `find_key` raises.
        sealed: the stored bytes, believed in nothing.
        identity: what the block must be.
        find_key: finds the data key that the header names.
        now: milliseconds since 1970.

    Returns:
        `None` when the destination holds the plaintext, else the check that failed.

    """
    opened = False
    try:
        failure = _open(destination, sealed, identity, find_key, now)
        opened = failure is None
    finally:
        # Also when `find_key` raises: what lay here before may be another request's.
        if not opened:
            destination[:] = bytes(len(destination))
    return failure


def _open(
    destination: memoryview,
    sealed: memoryview,
    identity: BlockIdentity,
    find_key: KeyLookup,
    now: int,
) -> OpenFailure | None:
    header = Header.parse(sealed)
    if isinstance(header, OpenFailure):
        return header
    if failure := _check_header(header, len(destination), identity, now):
        return failure
    key = find_key(header.key_id)
    if isinstance(key, OpenFailure):
        return key
    derived = _derive(key, header.salt, header.namespace, header.name)
    if derived is None:
        return OpenFailure.KEY_UNAVAILABLE
    block_key, commitment = derived
    try:
        if not hmac.compare_digest(commitment, header.commitment):
            return OpenFailure.COMMITMENT
        if len(sealed) != sealed_size(header.plaintext_bytes):
            short = len(sealed) < sealed_size(header.plaintext_bytes)
            return OpenFailure.TRUNCATED if short else OpenFailure.TRAILING_BYTES
        AESGCM(block_key).decrypt_into(
            _NONCE, sealed[HEADER_BYTES:], sealed[:HEADER_BYTES], destination
        )
    except InvalidTag:
        return OpenFailure.TAG
    finally:
        wipe(block_key)
    return None


def _check_header(
    header: Header, capacity: int, identity: BlockIdentity, now: int
) -> OpenFailure | None:
    if header.namespace != identity.namespace:
        return OpenFailure.WRONG_NAMESPACE
    if header.name != identity.name:
        return OpenFailure.WRONG_NAME
    if now >= header.expires:
        return OpenFailure.EXPIRED
    if header.layout != identity.layout or header.plaintext_bytes != capacity:
        return OpenFailure.LAYOUT_MISMATCH
    if capacity > MAX_PLAINTEXT_BYTES:
        return OpenFailure.LAYOUT_MISMATCH
    return None


def _derive(
    key: DataKey, salt: bytes, namespace: bytes, name: bytes
) -> tuple[bytearray, bytes] | None:
    """The block's AES key and the commitment to it, from one HKDF so that neither gives the other.

    AES-GCM alone commits to no key: the commitment keeps a block from opening under two keys.
    `None` if the data key was wiped.
    """
    material = key.secret.derive(
        salt, _KEY_DOMAIN + namespace + name, _AES_KEY_BYTES + COMMITMENT_BYTES
    )
    if material is None:
        return None
    block_key, commitment = material[:_AES_KEY_BYTES], bytes(material[_AES_KEY_BYTES:])
    wipe(material)
    return block_key, commitment
