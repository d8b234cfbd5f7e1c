"""The chain: each record names the digest of the one before; a checkpoint signs all up to it.

A record is one line of canonical JSON (sorted names, no spaces, ASCII). Its digest is the SHA-256
of the line without the line feed. The first record's link is derived from the stream's name, so a
file can't pass for another. A checkpoint's signature covers its own record without the signature,
and through its link all records before it.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_STREAM_DOMAIN = b"kvcustody/1 audit stream\0"
_CHECKPOINT_DOMAIN = b"kvcustody/1 audit checkpoint\0"


def canonical(record: Mapping[str, Any]) -> bytes:
    """A record as the one line that stands for it, without the line feed."""
    return json.dumps(
        record, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest(line: bytes) -> str:
    """What the next record names: SHA-256 of a line, hex."""
    return hashlib.sha256(line).hexdigest()


def first_link(stream: str) -> str:
    """The link of a stream's first record."""
    return digest(_STREAM_DOMAIN + stream.encode())


def sign_checkpoint(record: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """A checkpoint's record with its signature."""
    signature = key.sign(_CHECKPOINT_DOMAIN + canonical(record))
    return {**record, "signature": base64.b64encode(signature).decode()}


def checkpoint_is_genuine(record: Mapping[str, Any], key: Ed25519PublicKey) -> bool:
    """Whether a checkpoint's signature is right."""
    unsigned = {name: value for name, value in record.items() if name != "signature"}
    try:
        signature = base64.b64decode(record.get("signature", ""), validate=True)
        key.verify(signature, _CHECKPOINT_DOMAIN + canonical(unsigned))
    except (InvalidSignature, binascii.Error, TypeError, ValueError):
        return False
    return True
