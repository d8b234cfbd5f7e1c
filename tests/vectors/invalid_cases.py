"""The blocks that don't open: what is found on a tier, or what the reader expects, is altered."""

from collections.abc import Iterator
from dataclasses import replace

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from reference_sealed_block import (
    DESTROYED,
    FIELDS,
    HEADER_BYTES,
    TAG_BYTES,
    UNAVAILABLE,
    derive,
    encrypt,
    field,
    put,
)
from valid_cases import (
    BASE,
    CREATED,
    EMPTY,
    EXPIRES,
    FOREVER,
    KEY_ID,
    LAST_TIME,
    LONGEST_GIVEN,
    NEWER,
    NEXT_EPOCH,
    OTHER_KEY_ID,
    OTHER_NAME,
    OTHER_NAMESPACE,
    OTHER_SECRET,
    SECRET,
    TIMES,
    TWO_KEYS,
)
from vector import Invalid, Valid, invalid, stream

SEALED = BASE.sealed
HEAD, BODY = SEALED[:HEADER_BYTES], SEALED[HEADER_BYTES:]
NO_KEY = {KEY_ID: DESTROYED}


def flip(sealed: bytes, offset: int, mask: int = 1) -> bytes:
    """Other bits in one byte; a negative offset counts from the end."""
    altered = bytearray(sealed)
    altered[offset] ^= mask
    return bytes(altered)


def _ends(name: str) -> list[tuple[str, int]]:
    start, end = FIELDS[name]
    return [("first", start), ("last", end - 1)]


def not_sealed() -> Iterator[Invalid]:
    def case(name: str, description: str, sealed: bytes) -> Invalid:
        return invalid(BASE, name, description, "not-sealed", sealed)

    yield case("nothing", "an empty file", b"")
    yield case("zeros", "as long as the block, all zeros", bytes(len(SEALED)))
    yield case("text", "something else altogether", b"#!/bin/sh\nexit 0\n")
    yield case("lower-case", "the magic in lower case", b"kvcb" + SEALED[4:])
    yield case("short-foreign", "one byte that doesn't begin the magic", b"k")
    yield case("shifted", "one byte before the block", b"\x00" + SEALED)
    yield case("plaintext", "the plaintext itself", BASE.plaintext)
    yield case("body-only", "the block without its header", BODY)
    for offset in range(4):
        changed = flip(SEALED, offset, 0x80)
        yield case(f"magic-{offset}", f"another byte {offset} of the magic", changed)


def truncated() -> Iterator[Invalid]:
    def case(name: str, description: str, length: int, of: Valid = BASE) -> Invalid:
        return invalid(of, name, description, "truncated", of.sealed[:length])

    yield case("in-magic", "one byte of the magic", 1)
    for name, (_, end) in FIELDS.items():
        yield case(f"after-{name.replace('_', '-')}", f"ends after {name}", end)
    yield case("in-commitment", "one byte of the header is missing", HEADER_BYTES - 1)
    yield case("in-ciphertext", "one byte of ciphertext", HEADER_BYTES + 1)
    yield case("no-tag", "the tag is missing", len(SEALED) - TAG_BYTES)
    yield case("in-tag", "the last byte is missing", len(SEALED) - 1)
    yield case("empty-block-in-tag", "half a tag, of an empty block", HEADER_BYTES + 8, EMPTY)
    yield case("long", "the last byte of a long block is missing", 65535 + 207, LONGEST_GIVEN)


def unknown_version() -> Iterator[Invalid]:
    for name in ("version", "algorithm"):
        for value in (0, 2, 0x0100, 0xFFFF):
            yield invalid(
                BASE,
                f"{name}-{value}",
                f"{name} {value}",
                "unknown-version",
                put(SEALED, name, value.to_bytes(2)),
            )


def wrong_place() -> Iterator[Invalid]:
    """Namespace and name: another's block, or a header that claims to be another's."""
    for reason, name, other in (
        ("wrong-namespace", "namespace", OTHER_NAMESPACE),
        ("wrong-name", "name", OTHER_NAME),
    ):
        for end, offset in _ends(name):
            description = f"another {end} byte of the {name}"
            yield invalid(BASE, f"{end}-byte", description, reason, flip(SEALED, offset))
        zeros = put(SEALED, name, bytes(len(field(SEALED, name))))
        yield invalid(BASE, "zeros", f"the {name} is zeros", reason, zeros)
        description = f"a block of another {name} lies in this one's place"
        keys = {**BASE.reader.keys, **other.reader.keys}
        yield invalid(BASE, "swapped", description, reason, other.sealed, keys=keys)
        yield invalid(other, "swapped-back", description, reason, SEALED, keys=keys)
    mixed = OTHER_NAMESPACE.sealed[:HEADER_BYTES] + BODY
    description = "another namespace's header before this block's body"
    yield invalid(BASE, "header-swapped", description, "wrong-namespace", mixed)
    mixed = OTHER_NAME.sealed[:HEADER_BYTES] + BODY
    yield invalid(BASE, "header-swapped", "another block's header", "wrong-name", mixed)


def expired() -> Iterator[Invalid]:
    def case(name: str, description: str, now: int, of: Valid = BASE) -> Invalid:
        return invalid(of, name, description, "expired", of.sealed, now=now)

    yield case("now", "expires exactly now", EXPIRES)
    yield case("a-millisecond-ago", "expired a millisecond ago", EXPIRES + 1)
    yield case("long-ago", "expired a year ago", EXPIRES + 365 * 86_400_000)
    yield case("at-the-last-time", "expires at 2^64-1, which is now", LAST_TIME, FOREVER)
    no_life = next(vector for vector in TIMES if vector.id == "no-life")
    yield case("no-life", "expires when created, opened then", CREATED, no_life)
    forged = put(SEALED, "expires", bytes(8))
    yield invalid(BASE, "field-zeros", "`expires` is zeros", "expired", forged)
    forged = put(SEALED, "expires", CREATED.to_bytes(8))
    yield invalid(BASE, "shortened", "`expires` was made now", "expired", forged)
    forged = put(SEALED, "expires", EXPIRES.to_bytes(8, "little"))
    late = int.from_bytes(field(forged, "expires"))
    yield invalid(BASE, "byte-order", "little-endian `expires`", "expired", forged, now=late)


def layout_mismatch() -> Iterator[Invalid]:
    def case(name: str, description: str, sealed: bytes = SEALED, **reader: object) -> Invalid:
        return invalid(BASE, name, description, "layout-mismatch", sealed, **reader)

    for end, offset in _ends("layout"):
        yield case(f"{end}-byte", f"another {end} byte of the layout", flip(SEALED, offset))
    yield case("other-engine", "the reader's layout is another", layout=stream("engine", 32))
    length = len(BASE.plaintext)
    yield case("reader-longer", "the reader expects one byte more", plaintext_bytes=length + 1)
    yield case("reader-shorter", "the reader expects one byte less", plaintext_bytes=length - 1)
    yield case("reader-empty", "the reader expects an empty block", plaintext_bytes=0)
    for value in (0, length - 1, length + 1, 65535, 2**36 - 31, 2**63, LAST_TIME):
        forged = put(SEALED, "plaintext_bytes", value.to_bytes(8))
        yield case(f"length-{value}", f"the header claims {value} bytes of plaintext", forged)
    forged = put(SEALED, "plaintext_bytes", length.to_bytes(8, "little"))
    yield case("byte-order", "a little-endian length", forged)
    yield invalid(
        EMPTY,
        "empty-block",
        "an empty block where one with content is expected",
        "layout-mismatch",
        EMPTY.sealed,
        plaintext_bytes=length,
    )


def no_key() -> Iterator[Invalid]:
    """The key that the header names is gone, or isn't to be had."""
    for state in (DESTROYED, UNAVAILABLE):
        yield invalid(
            BASE, "own", f"the block's key is {state}", f"key-{state}", SEALED, keys={KEY_ID: state}
        )
        yield invalid(
            EMPTY,
            "empty-block",
            f"an empty block, whose key is {state}",
            f"key-{state}",
            EMPTY.sealed,
            keys={KEY_ID: state},
        )
        yield invalid(
            NEXT_EPOCH,
            "older-epoch-replayed",
            f"the copy of an older epoch, whose key is {state}, in the newer one's place",
            f"key-{state}",
            SEALED,
            keys={KEY_ID: state, OTHER_KEY_ID: OTHER_SECRET},
        )
    yield invalid(BASE, "no-keys", "no key at all is known", "key-unavailable", SEALED, keys={})
    for end, offset in _ends("key_id"):
        description = f"another {end} byte of the key id"
        yield invalid(BASE, f"{end}-byte", description, "key-unavailable", flip(SEALED, offset))
    relabelled = put(SEALED, "key_id", OTHER_KEY_ID)
    keys = {KEY_ID: SECRET, OTHER_KEY_ID: DESTROYED}
    description = "the key id of a destroyed key"
    yield invalid(BASE, "relabelled", description, "key-destroyed", relabelled, keys=keys)


def commitment() -> Iterator[Invalid]:
    def case(name: str, description: str, sealed: bytes = SEALED, **reader: object) -> Invalid:
        return invalid(BASE, name, description, "commitment", sealed, **reader)

    for part in ("salt", "commitment"):
        for end, offset in _ends(part):
            description = f"another {end} byte of the {part}"
            yield case(f"{part}-{end}-byte", description, flip(SEALED, offset))
        yield case(f"{part}-zeros", f"the {part} is zeros", put(SEALED, part, bytes(32)))
        swapped = put(SEALED, part, field(NEWER.sealed, part))
        yield case(f"{part}-swapped", f"the {part} of a newer copy", swapped)
    yield case("other-key", "another key has this id", keys={KEY_ID: OTHER_SECRET})
    relabelled = put(SEALED, "key_id", OTHER_KEY_ID)
    keys = {KEY_ID: SECRET, OTHER_KEY_ID: OTHER_SECRET}
    yield case("relabelled", "the key id of another known key", relabelled, keys=keys)
    own_key, own = derive(OTHER_SECRET, BASE.fields.salt, BASE.fields.namespace, BASE.fields.name)
    forged = encrypt(own_key, put(HEAD, "commitment", own), BASE.plaintext)
    yield case("forged", "made with a key of one's own, and the commitment to that key", forged)
    block_key, _ = derive(SECRET, BASE.fields.salt, BASE.fields.namespace, BASE.fields.name)
    rewritten = encrypt(block_key, put(HEAD, "commitment", bytes(32)), BASE.plaintext)
    yield case("rewritten", "the tag is right for a header without commitment", rewritten)
    for of, name in ((OTHER_NAME, "renamed"), (OTHER_NAMESPACE, "moved")):
        moved = put(put(of.sealed, "name", BASE.fields.name), "namespace", BASE.fields.namespace)
        both = {**BASE.reader.keys, **of.reader.keys}
        description = f"{of.description}; its header was rewritten to the expected place"
        yield case(name, description, moved, keys=both)
    yield invalid(
        TWO_KEYS,
        "two-keys",
        "a ciphertext that AES-GCM opens under this reader's key, committed to another key",
        "commitment",
        TWO_KEYS.sealed,
        keys={KEY_ID: OTHER_SECRET},
    )


def trailing_bytes() -> Iterator[Invalid]:
    for name, extra in (
        ("zero", b"\x00"),
        ("byte", b"\xff"),
        ("tag", BODY[-TAG_BYTES:]),
        ("twice", SEALED),
        ("newer", NEWER.sealed),
    ):
        description = f"{len(extra)} bytes after the block ({name})"
        yield invalid(BASE, name, description, "trailing-bytes", SEALED + extra)
    extra = EMPTY.sealed + b"\x00"
    yield invalid(EMPTY, "empty-block", "a byte after an empty block", "trailing-bytes", extra)
    extra = LONGEST_GIVEN.sealed + b"\x00"
    yield invalid(LONGEST_GIVEN, "long", "a byte after a long block", "trailing-bytes", extra)


def tag() -> Iterator[Invalid]:
    def case(name: str, description: str, sealed: bytes, of: Valid = BASE) -> Invalid:
        return invalid(of, name, description, "tag", sealed)

    for name, offset in (
        ("ciphertext-first-byte", HEADER_BYTES),
        ("ciphertext-last-byte", -TAG_BYTES - 1),
        ("first-byte", -TAG_BYTES),
        ("last-byte", -1),
    ):
        yield case(name, "one bit differs", flip(SEALED, offset))
    yield case("zeros", "the tag is zeros", SEALED[:-TAG_BYTES] + bytes(TAG_BYTES))
    for name in ("created", "expires"):
        for end, offset in _ends(name):
            yield case(f"{name}-{end}-byte", f"another {name}", flip(SEALED, offset))
    prolonged = put(SEALED, "expires", LAST_TIME.to_bytes(8))
    yield case("prolonged", "the block was given a longer life", prolonged)
    late = replace(BASE.reader, now=EXPIRES)
    description = "an expired block was given a longer life"
    yield Invalid("tag-revived", description, "tag", prolonged, late, BASE)
    yield case("backdated", "`created` is zeros", put(SEALED, "created", bytes(8)))
    mixed = NEWER.sealed[:HEADER_BYTES] + BODY
    yield case("older-body", "a newer copy's header before an older copy's body", mixed, NEWER)
    swapped = HEAD + BODY[16:32] + BODY[:16] + BODY[32:]
    yield case("blocks-swapped", "two cipher blocks changed places", swapped)
    block_key, _ = derive(SECRET, BASE.fields.salt, BASE.fields.namespace, BASE.fields.name)
    own = encrypt(stream("a key of one's own", 32), HEAD, BASE.plaintext)
    yield case("other-key", "the right commitment, but encrypted under another key", own)
    for name, description, nonce, aad in (
        ("no-aad", "encrypted without associated data", bytes(12), b""),
        ("short-aad", "only the magic is associated data", bytes(12), HEAD[:4]),
        ("nonce", "encrypted with another nonce", b"\x01" + bytes(11), HEAD),
    ):
        body = AESGCM(block_key).encrypt(nonce, BASE.plaintext, aad)
        yield case(name, description, HEAD + body)
    plain = HEAD + BASE.plaintext + BODY[-TAG_BYTES:]
    yield case("in-the-clear", "plaintext in the ciphertext's place", plain)
    yield case("empty-block", "one bit of an empty block's tag", flip(EMPTY.sealed, -1), EMPTY)
    long = flip(LONGEST_GIVEN.sealed, HEADER_BYTES + 40_000, 0x10)
    yield case("long", "one bit within a long block", long, LONGEST_GIVEN)


def order() -> Iterator[Invalid]:
    """Two things are wrong at once: the earlier check speaks."""
    short, longer = SEALED[:-1], SEALED + b"\x00"
    alien = put(SEALED, "namespace", bytes(16))
    unnamed = put(SEALED, "name", bytes(32))
    unlaid = put(SEALED, "layout", bytes(32))
    uncommitted = put(SEALED, "commitment", bytes(32))
    for failure, than, sealed, reader in (
        ("not-sealed", "truncated", b"KVCA", {}),
        ("truncated", "unknown-version", put(HEAD, "version", b"\x00\x02")[:-1], {}),
        ("unknown-version", "wrong-namespace", put(alien, "version", b"\x00\x02"), {}),
        ("unknown-version", "trailing-bytes", put(longer, "algorithm", b"\x00\x02"), {}),
        ("wrong-namespace", "wrong-name", put(alien, "name", bytes(32)), {}),
        ("wrong-namespace", "key-destroyed", alien, {"keys": NO_KEY}),
        ("wrong-name", "expired", unnamed, {"now": EXPIRES}),
        ("expired", "layout-mismatch", unlaid, {"now": EXPIRES}),
        ("expired", "key-destroyed", SEALED, {"now": EXPIRES, "keys": NO_KEY}),
        ("expired", "commitment", uncommitted, {"now": EXPIRES}),
        ("layout-mismatch", "key-destroyed", unlaid, {"keys": NO_KEY}),
        ("layout-mismatch", "key-unavailable", unlaid, {"keys": {}}),
        ("key-destroyed", "commitment", uncommitted, {"keys": NO_KEY}),
        ("key-destroyed", "truncated", short, {"keys": NO_KEY}),
        ("key-destroyed", "tag", flip(SEALED, -1), {"keys": NO_KEY}),
        ("key-unavailable", "trailing-bytes", longer, {"keys": {}}),
        ("commitment", "truncated", uncommitted[:-1], {}),
        ("commitment", "trailing-bytes", uncommitted + b"\x00", {}),
        ("commitment", "tag", flip(uncommitted, -1), {}),
        ("truncated", "tag", flip(short, -1), {}),
        ("trailing-bytes", "tag", flip(longer, HEADER_BYTES), {}),
    ):
        description = f"{failure} comes before {than}"
        yield invalid(BASE, f"before-{than}", description, failure, sealed, **reader)


INVALID = [
    *not_sealed(),
    *truncated(),
    *unknown_version(),
    *wrong_place(),
    *expired(),
    *layout_mismatch(),
    *no_key(),
    *commitment(),
    *trailing_bytes(),
    *tag(),
    *order(),
]
