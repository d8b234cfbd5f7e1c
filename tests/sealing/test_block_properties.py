"""Whatever is done to a sealed block: the right check finds it, and nothing is left behind.

Each test also opens the block that nothing was done to, so that no refusal is for another reason.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvcustody.sealing import DataKey
from kvcustody.sealing.block import BlockIdentity, open_into, seal_into, sealed_size
from kvcustody.sealing.format import HEADER_BYTES, OpenFailure
from reference_sealed_block import DESTROYED, FIELDS, Fields, KeyTable, Reader, outcome
from reference_sealed_block import seal as reference_seal

pytestmark = pytest.mark.unit

# A busy machine is no finding.
unhurried = settings(deadline=None, max_examples=50)

NOW = 1_700_000_000_000
KEY_ID, NEXT_KEY_ID = b"k" * 16, b"K" * 16
SECRET, NEXT_SECRET = b"\x01" * 32, b"\x02" * 32
KEYS: KeyTable = {KEY_ID: SECRET, NEXT_KEY_ID: NEXT_SECRET}
BLOCK = Fields(KEY_ID, b"n" * 16, b"b" * 32, NOW, NOW + 60_000, b"l" * 32, b"s" * 32)

SALTS = st.binary(min_size=32, max_size=32)
PLAINTEXTS = st.binary(max_size=80)
TIMES = st.integers(0, 2**64 - 1)


def seal(fields: Fields, plaintext: bytes, secret: bytes = SECRET) -> bytes:
    sealed = bytearray(sealed_size(len(plaintext)))
    seal_into(
        memoryview(sealed),
        plaintext,
        BlockIdentity(fields.namespace, fields.name, fields.layout),
        DataKey(fields.key_id, secret),
        created=fields.created,
        expires=fields.expires,
        random_bytes=lambda _: fields.salt,
    )
    return bytes(sealed)


def reader_of(fields: Fields, plaintext: bytes, keys: KeyTable = KEYS) -> Reader:
    size = len(plaintext)
    return Reader(fields.namespace, fields.name, fields.layout, size, keys, fields.created)


def unseal(sealed: bytes, reader: Reader) -> bytes | str:
    """The plaintext or the reason; on any failure the destination must be zeroed."""

    def find(key_id: bytes) -> DataKey | OpenFailure:
        known = reader.keys.get(key_id, "unavailable")
        return OpenFailure(f"key-{known}") if isinstance(known, str) else DataKey(key_id, known)

    destination = bytearray(b"\xaa" * reader.plaintext_bytes)
    failure = open_into(
        memoryview(destination),
        memoryview(sealed),
        BlockIdentity(reader.namespace, reader.name, reader.layout),
        find,
        now=reader.now,
    )
    if failure is None:
        return bytes(destination)
    assert destination == bytes(reader.plaintext_bytes)
    return failure.value


REASONS = {
    "magic": "not-sealed",
    "version": "unknown-version",
    "algorithm": "unknown-version",
    "key_id": "key-unavailable",
    "namespace": "wrong-namespace",
    "name": "wrong-name",
    "created": "tag",
    "plaintext_bytes": "layout-mismatch",
    "layout": "layout-mismatch",
    "salt": "commitment",
    "commitment": "commitment",
}


def reason_for(altered: bytes, offset: int, now: int) -> str:
    """Which check must find that the byte at an offset is another."""
    for name, (start, end) in FIELDS.items():
        if start <= offset < end:
            expired = name == "expires" and int.from_bytes(altered[start:end]) <= now
            return "expired" if expired else REASONS.get(name, "tag")
    return "tag"


@unhurried
@given(
    st.binary(max_size=5000),
    st.builds(
        Fields,
        key_id=st.binary(min_size=16, max_size=16),
        namespace=st.binary(min_size=16, max_size=16),
        name=st.binary(min_size=32, max_size=32),
        created=TIMES,
        expires=TIMES,
        layout=st.binary(min_size=32, max_size=32),
        salt=SALTS,
    ),
    st.binary(min_size=32, max_size=32),
)
def test_a_sealed_block_opens_to_what_was_sealed(
    plaintext: bytes, fields: Fields, secret: bytes
) -> None:
    assume(fields.created < fields.expires)
    sealed = seal(fields, plaintext, secret)
    assert unseal(sealed, reader_of(fields, plaintext, {fields.key_id: secret})) == plaintext
    assert sealed == reference_seal(fields, secret, plaintext), "the two implementations differ"


@unhurried
@given(PLAINTEXTS, st.data(), st.integers(1, 255))
def test_any_changed_byte_is_found_by_the_check_that_covers_it(
    plaintext: bytes, data: st.DataObject, mask: int
) -> None:
    sealed, reader = seal(BLOCK, plaintext), reader_of(BLOCK, plaintext)
    offset = data.draw(st.integers(0, len(sealed) - 1))
    altered = bytearray(sealed)
    altered[offset] ^= mask
    assert unseal(bytes(altered), reader) == reason_for(bytes(altered), offset, reader.now)
    assert unseal(sealed, reader) == plaintext


@unhurried
@given(
    PLAINTEXTS,
    st.lists(st.tuples(st.integers(0, HEADER_BYTES + 96), st.binary(min_size=1, max_size=40))),
    TIMES,
)
def test_many_changes_fail_the_first_check_that_finds_one(
    plaintext: bytes, changes: list[tuple[int, bytes]], now: int
) -> None:
    sealed, reader = seal(BLOCK, plaintext), reader_of(BLOCK, plaintext)
    altered = sealed
    for offset, content in changes:
        altered = altered[:offset] + content + altered[offset + len(content) :]
    for clock in (reader.now, now):
        later = replace(reader, now=clock)
        assert unseal(altered, later) == outcome(altered, later)
        assert unseal(sealed, later) == (plaintext if clock < BLOCK.expires else "expired")


@unhurried
@given(PLAINTEXTS, st.data())
def test_any_truncation_is_refused(plaintext: bytes, data: st.DataObject) -> None:
    sealed, reader = seal(BLOCK, plaintext), reader_of(BLOCK, plaintext)
    length = data.draw(st.integers(0, len(sealed) - 1))
    assert unseal(sealed[:length], reader) == ("truncated" if length else "not-sealed")
    assert unseal(sealed, reader) == plaintext


@unhurried
@given(PLAINTEXTS, st.binary(min_size=1, max_size=300))
def test_any_extension_is_refused(plaintext: bytes, extra: bytes) -> None:
    sealed, reader = seal(BLOCK, plaintext), reader_of(BLOCK, plaintext)
    assert unseal(sealed + extra, reader) == "trailing-bytes"
    assert unseal(extra + sealed, reader) == outcome(extra + sealed, reader) != plaintext
    assert unseal(sealed, reader) == plaintext


@unhurried
@given(PLAINTEXTS, st.sampled_from(["namespace", "name"]), st.data())
def test_two_blocks_that_changed_places_are_both_refused(
    plaintext: bytes, what: str, data: st.DataObject
) -> None:
    start, end = FIELDS[what]
    mine: bytes = getattr(BLOCK, what)
    theirs = data.draw(st.binary(min_size=len(mine), max_size=len(mine)).filter(mine.__ne__))
    other = replace(BLOCK, namespace=theirs) if what == "namespace" else replace(BLOCK, name=theirs)
    first, second = seal(BLOCK, plaintext), seal(other, plaintext)
    first_reader, second_reader = reader_of(BLOCK, plaintext), reader_of(other, plaintext)
    assert unseal(second, first_reader) == unseal(first, second_reader) == f"wrong-{what}"
    # Whoever can write to the tier can also write the expected place into the header.
    assert unseal(second[:start] + mine + second[end:], first_reader) == "commitment"
    assert unseal(first, first_reader) == unseal(second, second_reader) == plaintext


@unhurried
@given(PLAINTEXTS, SALTS, st.data())
def test_no_part_of_one_copy_fits_another(
    plaintext: bytes, salt: bytes, data: st.DataObject
) -> None:
    assume(salt != BLOCK.salt)
    newer = replace(BLOCK, salt=salt, created=NOW + 1)
    one, other = seal(BLOCK, plaintext), seal(newer, plaintext)
    reader = reader_of(newer, plaintext)
    cut = data.draw(st.integers(0, len(one)))
    spliced = one[:cut] + other[cut:]
    if spliced in {one, other}:
        assert unseal(spliced, reader) == plaintext
    else:
        assert unseal(spliced, reader) == outcome(spliced, reader)
        assert unseal(spliced, reader) in {"tag", "commitment"}
    assert unseal(other, reader) == plaintext


@unhurried
@given(PLAINTEXTS, SALTS)
def test_a_copy_of_an_older_epoch_dies_with_its_key(plaintext: bytes, salt: bytes) -> None:
    renewed = replace(BLOCK, key_id=NEXT_KEY_ID, salt=salt)
    older, newer = seal(BLOCK, plaintext), seal(renewed, plaintext, NEXT_SECRET)
    reader = reader_of(renewed, plaintext)
    assert unseal(older, reader) == unseal(newer, reader) == plaintext
    erased = replace(reader, keys={**KEYS, KEY_ID: DESTROYED})
    assert unseal(older, erased) == "key-destroyed"
    # Naming a key that lives doesn't help.
    start, end = FIELDS["key_id"]
    assert unseal(older[:start] + NEXT_KEY_ID + older[end:], erased) == "commitment"
    assert unseal(newer, erased) == plaintext


@unhurried
@given(st.binary(max_size=300))
def test_whatever_lies_in_a_tier_is_refused_without_an_error(stored: bytes) -> None:
    sealed, reader = seal(BLOCK, b"abc"), reader_of(BLOCK, b"abc")
    assert unseal(stored, reader) == outcome(stored, reader) != b"abc"
    forged = sealed[:96] + stored
    assert unseal(forged, reader) == outcome(forged, reader) != b"abc"
    assert unseal(sealed, reader) == b"abc"
