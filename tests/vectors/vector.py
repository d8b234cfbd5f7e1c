"""A test vector: what a reader has and expects, the sealed bytes, and what must come of it."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from reference_sealed_block import Fields, KeyTable, Reader, outcome, seal

Json = dict[str, object]

# Longer contents are given by rule and digest: the files stay readable.
MOST_HEX_BYTES = 600


def stream(seed: str, count: int) -> bytes:
    """Deterministic bytes: SHA-256(seed || counter) for the 4-byte counters 0, 1, 2, ..."""
    blocks = (
        hashlib.sha256(seed.encode() + counter.to_bytes(4)).digest()
        for counter in range((count + 31) // 32)
    )
    return b"".join(blocks)[:count]


@dataclass(frozen=True, slots=True)
class Valid:
    """A block that opens.

    Args:
        id: its name in the file.
        description: what it shows.
        fields: what the writer chose.
        secret: of the data key that it is sealed with.
        plaintext: what it holds.
        now: the reader's clock.
        keys: what the reader knows of keys, beside the block's own.
        seed: of the rule that makes the plaintext, when it is too long to write down.
        sealable: whether a conforming writer makes such a block.

    """

    id: str
    description: str
    fields: Fields
    secret: bytes
    plaintext: bytes
    now: int
    keys: KeyTable
    seed: str = ""
    sealable: bool = True

    @property
    def sealed(self) -> bytes:
        return seal(self.fields, self.secret, self.plaintext)

    @property
    def reader(self) -> Reader:
        return Reader(
            self.fields.namespace,
            self.fields.name,
            self.fields.layout,
            len(self.plaintext),
            {**self.keys, self.fields.key_id: self.secret},
            self.now,
        )

    def to_json(self) -> Json:
        if outcome(self.sealed, self.reader) != self.plaintext:
            raise AssertionError(f"{self.id} doesn't open")
        return {
            "id": self.id,
            "description": self.description,
            **_reader_json(self.reader),
            "seal": {
                "conforming": self.sealable,
                "key_id": self.fields.key_id.hex(),
                "created": str(self.fields.created),
                "expires": str(self.fields.expires),
                "salt": self.fields.salt.hex(),
            },
            "plaintext": _content_json(self.plaintext, self.seed),
            "sealed": _content_json(self.sealed, ""),
        }


@dataclass(frozen=True, slots=True)
class Invalid:
    """A block that doesn't open.

    Args:
        id: its name in the file.
        description: what is wrong with it.
        failure: the check that it fails.
        sealed: the bytes that the reader finds.
        reader: what the reader expects and knows.
        sibling: the valid vector that it was made of.

    """

    id: str
    description: str
    failure: str
    sealed: bytes
    reader: Reader
    sibling: Valid

    def to_json(self) -> Json:
        found = outcome(self.sealed, self.reader)
        if found != self.failure:
            raise AssertionError(f"{self.id} fails as {found!r}")
        return {
            "id": self.id,
            "description": self.description,
            "failure": self.failure,
            "sibling": self.sibling.id,
            **_reader_json(self.reader),
            "sealed": self._sealed_json(),
        }

    def _sealed_json(self) -> Json:
        if len(self.sealed) <= MOST_HEX_BYTES:
            return {"bytes": len(self.sealed), "hex": self.sealed.hex()}
        return {
            "bytes": len(self.sealed),
            "sha256": hashlib.sha256(self.sealed).hexdigest(),
            "altered": list(_alterations(self.sibling.sealed, self.sealed)),
        }


def invalid(
    sibling: Valid, name: str, description: str, failure: str, sealed: bytes, /, **reader: object
) -> Invalid:
    """An invalid vector made of a valid one.

    Args:
        sibling: the valid one.
        name: what is wrong, in a few words with hyphens.
        description: what is wrong, in a sentence.
        failure: the check that it fails.
        sealed: the altered bytes.
        **reader: what the reader expects or knows otherwise than the sibling's.

    """
    changed: Reader = replace(sibling.reader, **reader)  # type: ignore[arg-type]
    return Invalid(f"{failure}-{name}", description, failure, sealed, changed, sibling)


def _reader_json(reader: Reader) -> Json:
    return {
        "expected": {
            "namespace": reader.namespace.hex(),
            "name": reader.name.hex(),
            "layout": reader.layout.hex(),
            "plaintext_bytes": reader.plaintext_bytes,
        },
        "keys": {
            key_id.hex(): known if isinstance(known, str) else known.hex()
            for key_id, known in reader.keys.items()
        },
        "now": str(reader.now),
    }


def _content_json(content: bytes, seed: str) -> Json:
    if len(content) <= MOST_HEX_BYTES:
        return {"bytes": len(content), "hex": content.hex()}
    digest = hashlib.sha256(content).hexdigest()
    return {"bytes": len(content), "sha256": digest, **({"stream": seed} if seed else {})}


def _alterations(original: bytes, altered: bytes) -> Iterator[Json]:
    """How the sibling's bytes become the altered ones: XORs, then a new length."""
    for offset, (one, other) in enumerate(zip(original, altered, strict=False)):
        if one != other:
            yield {"offset": offset, "xor": f"{one ^ other:02x}"}
    if len(altered) < len(original):
        yield {"cut_to": len(altered)}
    elif len(altered) > len(original):
        yield {"append": altered[len(original) :].hex()}
