"""What a writer refuses to seal, and what a reader does at the edges of times and lengths."""

import mmap
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcustody.sealing import DataKey
from kvcustody.sealing import block as block_module
from kvcustody.sealing.block import BlockIdentity, open_into, seal_into, sealed_size
from kvcustody.sealing.format import MAX_PLAINTEXT_BYTES, OpenFailure

pytestmark = pytest.mark.unit

KEY = DataKey(b"k" * 16, b"\x01" * 32)
IDENTITY = BlockIdentity(namespace=b"n" * 16, name=b"b" * 32, layout=b"l" * 32)
NOW = 1_700_000_000_000
LAST = 2**64 - 1


def seal(
    plaintext: bytes | memoryview = b"abc",
    identity: BlockIdentity = IDENTITY,
    *,
    key: DataKey = KEY,
    created: int = NOW,
    expires: int = NOW + 1,
    size: int | None = None,
    random_bytes: Callable[[int], bytes] = bytes,
) -> bytearray:
    """Seal into a buffer; when that is refused, the buffer must be as it was."""
    before = b"\xaa" * (sealed_size(len(plaintext)) if size is None else size)
    sealed = bytearray(before)
    try:
        seal_into(
            memoryview(sealed),
            plaintext,
            identity,
            key,
            created=created,
            expires=expires,
            random_bytes=random_bytes,
        )
    except ValueError:
        assert sealed == before
        raise
    return sealed


def unseal(
    sealed: bytearray,
    *,
    now: int = NOW,
    size: int = 3,
    find: Callable[[bytes], DataKey | OpenFailure] = lambda _: KEY,
) -> tuple[OpenFailure | None, bytes]:
    destination = bytearray(b"\xaa" * size)
    failure = open_into(memoryview(destination), memoryview(sealed), IDENTITY, find, now=now)
    return failure, bytes(destination)


def test_an_empty_plaintext_is_a_block_like_any_other() -> None:
    sealed = seal(b"")
    assert len(sealed) == 208
    assert unseal(sealed, size=0) == (None, b"")
    sealed[-1] ^= 1
    assert unseal(sealed, size=0) == (OpenFailure.TAG, b"")


def test_a_block_does_not_expire_before_it_was_created() -> None:
    with pytest.raises(ValueError, match="expire"):
        seal(created=NOW, expires=NOW - 1)
    assert unseal(seal(created=NOW, expires=NOW)) == (OpenFailure.EXPIRED, bytes(3))


@pytest.mark.parametrize(("created", "expires"), [(-1, NOW), (0, 2**64), (2**64, 2**64)])
def test_a_time_that_64_bits_do_not_hold_is_refused(created: int, expires: int) -> None:
    with pytest.raises(ValueError, match="between 0 and"):
        seal(created=created, expires=expires)


def test_the_last_time_that_there_is_passes_too() -> None:
    sealed = seal(created=LAST, expires=LAST)
    assert unseal(sealed, now=LAST - 1) == (None, b"abc")
    assert unseal(sealed, now=LAST) == (OpenFailure.EXPIRED, bytes(3))
    assert unseal(sealed, now=LAST + 1) == (OpenFailure.EXPIRED, bytes(3))


def test_a_reader_whose_clock_is_behind_the_writers_opens_the_block() -> None:
    assert unseal(seal(created=NOW, expires=NOW + 1), now=NOW - 60_000) == (None, b"abc")
    assert unseal(seal(created=NOW, expires=NOW + 1), now=-1) == (None, b"abc")


@pytest.mark.parametrize("change", [-1, 1, 16])
def test_a_destination_of_another_size_is_refused(change: int) -> None:
    with pytest.raises(ValueError, match="destination must be 211 bytes"):
        seal(size=211 + change)


@pytest.mark.parametrize("count", [0, 31, 33])
def test_a_random_source_that_gives_another_length_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="salt must be 32 bytes"):
        seal(random_bytes=lambda _: bytes(count))


def test_an_identity_of_another_length_is_refused() -> None:
    # Namespace and name go into the derivation side by side: lengths keep them apart.
    with pytest.raises(ValueError, match="namespace must be 16 bytes"):
        seal(identity=replace(IDENTITY, namespace=b"n" * 15, name=b"n" + b"b" * 32))
    with pytest.raises(ValueError, match="layout must be 32 bytes"):
        seal(identity=replace(IDENTITY, layout=b""))
    with pytest.raises(ValueError, match="key_id must be 16 bytes"):
        seal(key=DataKey(b"k", b"\x01" * 32))


def test_elements_of_several_bytes_are_counted_as_bytes() -> None:
    plaintext = memoryview(b"keys and values!").cast("I")
    sealed = seal(plaintext, size=sealed_size(16))
    assert unseal(sealed, size=16) == (None, b"keys and values!")


def test_more_than_the_library_takes_in_one_call_is_refused() -> None:
    with (
        mmap.mmap(-1, MAX_PLAINTEXT_BYTES + 1) as never_touched,
        memoryview(never_touched) as plaintext,
        pytest.raises(ValueError, match="at most 2147483631 bytes"),
    ):
        seal_into(memoryview(bytearray()), plaintext, IDENTITY, KEY, created=NOW, expires=NOW + 1)


def test_a_reader_takes_no_larger_block_than_a_writer_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed = seal(b"abcd")
    monkeypatch.setattr(block_module, "MAX_PLAINTEXT_BYTES", 3)
    assert unseal(sealed, size=4) == (OpenFailure.LAYOUT_MISMATCH, bytes(4))
    assert unseal(seal(b"abc")) == (None, b"abc")


def test_the_destination_is_zeroed_also_when_the_key_lookup_raises() -> None:
    destination = bytearray(b"\xaa" * 3)

    def find(_: bytes) -> DataKey:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        open_into(memoryview(destination), memoryview(seal()), IDENTITY, find, now=NOW)
    assert destination == bytes(3)


def test_a_key_that_is_wiped_while_a_block_is_opened_is_unavailable() -> None:
    sealed = seal()
    wiped = DataKey(b"k" * 16, b"\x01" * 32)
    wiped.secret.wipe()
    assert unseal(sealed, find=lambda _: wiped) == (OpenFailure.KEY_UNAVAILABLE, bytes(3))
    assert unseal(sealed) == (None, b"abc")
