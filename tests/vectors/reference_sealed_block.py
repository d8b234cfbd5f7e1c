"""Sealed blocks and their names, written anew from docs/sealed-block-format.md.

Shares no code with the package that it checks: what both agree on is what the document says.
HKDF is made of HMAC here; only AES-GCM comes from a library.
"""

import hmac
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HEADER_BYTES = 192
TAG_BYTES = 16

# Where each field begins and ends.
FIELDS = {
    "magic": (0, 4),
    "version": (4, 6),
    "algorithm": (6, 8),
    "key_id": (8, 24),
    "namespace": (24, 40),
    "name": (40, 72),
    "created": (72, 80),
    "expires": (80, 88),
    "plaintext_bytes": (88, 96),
    "layout": (96, 128),
    "salt": (128, 160),
    "commitment": (160, 192),
}

DESTROYED = "destroyed"
UNAVAILABLE = "unavailable"
KeyTable = Mapping[bytes, bytes | str]
"""What a reader knows of keys: the secret of each key id, or what became of it."""


@dataclass(frozen=True, slots=True)
class Fields:
    """What a writer chooses of a header."""

    key_id: bytes
    namespace: bytes
    name: bytes
    created: int
    expires: int
    layout: bytes
    salt: bytes


@dataclass(frozen=True, slots=True)
class Reader:
    """What a reader expects and knows when it opens a block."""

    namespace: bytes
    name: bytes
    layout: bytes
    plaintext_bytes: int
    keys: KeyTable
    now: int


def derive(secret: bytes, salt: bytes, namespace: bytes, name: bytes) -> tuple[bytes, bytes]:
    """The block key and the commitment: RFC 5869 with SHA-256, 64 bytes."""
    info = b"kvcustody/1 block key" + namespace + name
    extracted = hmac.digest(salt, secret, "sha256")
    block_key = hmac.digest(extracted, info + b"\x01", "sha256")
    return block_key, hmac.digest(extracted, block_key + info + b"\x02", "sha256")


def header(fields: Fields, plaintext_bytes: int, commitment: bytes) -> bytes:
    """The 192 bytes before the ciphertext."""
    return b"".join(
        [
            b"KVCB",
            b"\x00\x01",
            b"\x00\x01",
            fields.key_id,
            fields.namespace,
            fields.name,
            fields.created.to_bytes(8),
            fields.expires.to_bytes(8),
            plaintext_bytes.to_bytes(8),
            fields.layout,
            fields.salt,
            commitment,
        ]
    )


def encrypt(block_key: bytes, head: bytes, plaintext: bytes) -> bytes:
    """A header with ciphertext and tag after it."""
    return head + AESGCM(block_key).encrypt(bytes(12), plaintext, head)


def seal(fields: Fields, secret: bytes, plaintext: bytes) -> bytes:
    """A sealed block, as a writer makes it."""
    block_key, commitment = derive(secret, fields.salt, fields.namespace, fields.name)
    return encrypt(block_key, header(fields, len(plaintext), commitment), plaintext)


def field(sealed: bytes, name: str) -> bytes:
    """The bytes of a header's field."""
    start, end = FIELDS[name]
    return sealed[start:end]


def put(sealed: bytes, name: str, content: bytes) -> bytes:
    """A sealed block with another content in one of its header's fields."""
    start, end = FIELDS[name]
    return sealed[:start] + content + sealed[end:]


def number(sealed: bytes, name: str) -> int:
    """The number in a header's field."""
    return int.from_bytes(field(sealed, name))


def outcome(sealed: bytes, reader: Reader) -> bytes | str:
    """The plaintext, or the reason of the first check that fails, in the document's order."""
    if not sealed or sealed[:4] != b"KVCB"[: len(sealed)]:
        return "not-sealed"
    if len(sealed) < HEADER_BYTES:
        return "truncated"
    return _header_reason(sealed, reader) or _open(sealed, reader)


def _header_reason(sealed: bytes, reader: Reader) -> str | None:
    if number(sealed, "version") != 1 or number(sealed, "algorithm") != 1:
        return "unknown-version"
    if field(sealed, "namespace") != reader.namespace:
        return "wrong-namespace"
    if field(sealed, "name") != reader.name:
        return "wrong-name"
    if reader.now >= number(sealed, "expires"):
        return "expired"
    if field(sealed, "layout") != reader.layout:
        return "layout-mismatch"
    if number(sealed, "plaintext_bytes") != reader.plaintext_bytes:
        return "layout-mismatch"
    return None


def _open(sealed: bytes, reader: Reader) -> bytes | str:
    secret = reader.keys.get(field(sealed, "key_id"), UNAVAILABLE)
    if isinstance(secret, str):
        return f"key-{secret}"
    block_key, commitment = derive(secret, field(sealed, "salt"), reader.namespace, reader.name)
    if commitment != field(sealed, "commitment"):  # nobody measures how long this one takes
        return "commitment"
    whole = HEADER_BYTES + reader.plaintext_bytes + TAG_BYTES
    if len(sealed) != whole:
        return "truncated" if len(sealed) < whole else "trailing-bytes"
    try:
        return AESGCM(block_key).decrypt(bytes(12), sealed[HEADER_BYTES:], sealed[:HEADER_BYTES])
    except InvalidTag:
        return "tag"


def encode_fields(domain: bytes, *fields: str | bytes | None) -> bytes:
    """A list of fields as bytes: see "Canonical encoding" in the document."""
    encoded = len(domain).to_bytes(4) + domain + len(fields).to_bytes(4)
    for each in fields:
        if each is None:
            encoded += b"\x00"
        else:
            raw = each if isinstance(each, bytes) else unicodedata.normalize("NFC", each).encode()
            encoded += b"\x01" + len(raw).to_bytes(4) + raw
    return encoded


def encode_scope(
    deployment: str, tenant: str, workload: str | None = None, subject: str | None = None
) -> bytes:
    """The canonical encoding of a scope within one tenant."""
    return encode_fields(b"kvcustody/1 scope", deployment, tenant, workload, subject)


def encode_group(deployment: str, group: str) -> bytes:
    """The canonical encoding of the scope that a sharing group is."""
    return encode_fields(b"kvcustody/1 sharing group", deployment, group)


def encode_namespace(
    scope: bytes, model_revision: str, layout: str, adapter: str | None = None
) -> bytes:
    """The canonical encoding of a namespace; without an adapter there is no fourth field."""
    adapters = [] if adapter is None else [adapter]
    return encode_fields(b"kvcustody/1 namespace", scope, model_revision, layout, *adapters)


def namespace_identifier(key: bytes, encoded: bytes) -> bytes:
    """The 16 bytes that stand for a namespace."""
    return hmac.digest(key, encoded, "sha256")[:16]


def block_name(naming_key: bytes, block_hash: bytes, group: int) -> bytes:
    """The 32 bytes that stand for a block within its namespace."""
    return hmac.digest(naming_key, block_hash + group.to_bytes(4), "sha256")
