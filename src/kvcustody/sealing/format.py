"""The header of a sealed block, format 1: fixed size, self-describing, authenticated as a whole.

Layout (big-endian), 192 bytes, specified in docs/sealed-block-format.md:

     0   4  magic "KVCB"          88   8  plaintext bytes
     4   2  version (1)           96  32  layout digest
     6   2  algorithm (1)        128  32  salt of the block's key
     8  16  key id               160  32  key commitment
    24  16  namespace id
    40  32  block name           followed by the ciphertext and its 16-byte tag
    72   8  created, ms
    80   8  expires, ms
"""

import struct
from dataclasses import dataclass
from enum import StrEnum

MAGIC = b"KVCB"
VERSION = 1
AES_256_GCM_HKDF_SHA256 = 1
TAG_BYTES = 16
KEY_ID_BYTES = 16
SALT_BYTES = 32
COMMITMENT_BYTES = 32
# The library encrypts at most 2**31 - 1 bytes in a call; ciphertext and tag together stay below
# that. GCM itself would allow 2**36 - 32 (NIST SP 800-38D, section 5.2.1.1).
MAX_PLAINTEXT_BYTES = 2**31 - 1 - TAG_BYTES
# Times and lengths are 64-bit; this time is as good as never, and yet a time that passes.
MAX_NUMBER = 2**64 - 1

_LAYOUT = struct.Struct(">4sHH16s16s32sQQQ32s32s32s")

HEADER_BYTES = _LAYOUT.size
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES


# What `struct` would pad or cut in silence: then two headers could pack to the same bytes.
_LENGTHS = {
    "key_id": KEY_ID_BYTES,
    "namespace": 16,
    "name": 32,
    "layout": 32,
    "salt": SALT_BYTES,
    "commitment": COMMITMENT_BYTES,
}
_NUMBERS = ("created", "expires", "plaintext_bytes")


class OpenFailure(StrEnum):
    """Why a block can't be used, named after the check that failed. Any of them is a miss."""

    NOT_SEALED = "not-sealed"
    UNKNOWN_VERSION = "unknown-version"
    WRONG_NAMESPACE = "wrong-namespace"
    WRONG_NAME = "wrong-name"
    EXPIRED = "expired"
    LAYOUT_MISMATCH = "layout-mismatch"
    KEY_DESTROYED = "key-destroyed"
    KEY_UNAVAILABLE = "key-unavailable"
    COMMITMENT = "commitment"
    TAG = "tag"
    TRUNCATED = "truncated"
    TRAILING_BYTES = "trailing-bytes"


@dataclass(frozen=True, slots=True)
class Header:
    """A sealed block's header.

    Args:
        key_id: 16 bytes; the data key (epoch) that the block's key is derived from.
        namespace: 16 bytes.
        name: 32 bytes.
        created: milliseconds since 1970.
        expires: milliseconds since 1970; the block is useless from this moment on.
        plaintext_bytes: length of the KV data.
        layout: 32 bytes; digest of what the bytes mean.
        salt: 32 random bytes.
        commitment: 32 bytes that only the right data key derives.

    """

    key_id: bytes
    namespace: bytes
    name: bytes
    created: int
    expires: int
    plaintext_bytes: int
    layout: bytes
    salt: bytes
    commitment: bytes

    def pack(self) -> bytes:
        """The header's 192 bytes.

        Raises:
            ValueError: a field has another length than the format's, or a number doesn't fit.

        """
        for field, length in _LENGTHS.items():
            if len(getattr(self, field)) != length:
                raise ValueError(f"{field} must be {length} bytes")
        for field in _NUMBERS:
            if not 0 <= getattr(self, field) <= MAX_NUMBER:
                raise ValueError(f"{field} must be between 0 and 2**64 - 1")
        return _LAYOUT.pack(
            MAGIC,
            VERSION,
            AES_256_GCM_HKDF_SHA256,
            self.key_id,
            self.namespace,
            self.name,
            self.created,
            self.expires,
            self.plaintext_bytes,
            self.layout,
            self.salt,
            self.commitment,
        )

    @classmethod
    def parse(cls, sealed: bytes | bytearray | memoryview) -> "Header | OpenFailure":
        """Read the header at the start of `sealed`; nothing in it is trusted yet."""
        if bytes(sealed[: len(MAGIC)]) != MAGIC[: len(sealed)] or len(sealed) == 0:
            return OpenFailure.NOT_SEALED
        if len(sealed) < HEADER_BYTES:
            return OpenFailure.TRUNCATED
        _magic, version, algorithm, *fields = _LAYOUT.unpack_from(sealed)
        if (version, algorithm) != (VERSION, AES_256_GCM_HKDF_SHA256):
            return OpenFailure.UNKNOWN_VERSION
        return cls(*fields)
