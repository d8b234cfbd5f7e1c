import hmac
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcustody.sealing import DataKey
from kvcustody.sealing.block import (
    BlockIdentity,
    open_into,
    seal_into,
    sealed_size,
)
from kvcustody.sealing.format import HEADER_BYTES, OpenFailure

pytestmark = pytest.mark.unit

KEY = DataKey(b"k" * 16, b"\x01" * 32)
OTHER_KEY = DataKey(b"K" * 16, b"\x02" * 32)
IDENTITY = BlockIdentity(namespace=b"n" * 16, name=b"b" * 32, layout=b"l" * 32)
CREATED = 1_700_000_000_000
EXPIRES = CREATED + 60_000
PLAINTEXT = b"keys and values of a secret prompt"

FIND = {KEY.key_id: KEY}


def find_key(key_id: bytes) -> DataKey | OpenFailure:
    return FIND.get(key_id, OpenFailure.KEY_DESTROYED)


def seal(
    plaintext: bytes = PLAINTEXT,
    identity: BlockIdentity = IDENTITY,
    key: DataKey = KEY,
    *,
    random_bytes: Callable[[int], bytes] | None = None,
) -> bytearray:
    sealed = bytearray(sealed_size(len(plaintext)))
    options = {} if random_bytes is None else {"random_bytes": random_bytes}
    seal_into(
        memoryview(sealed), plaintext, identity, key, created=CREATED, expires=EXPIRES, **options
    )
    return sealed


def unseal(
    sealed: bytes | bytearray,
    identity: BlockIdentity = IDENTITY,
    find: Callable[[bytes], DataKey | OpenFailure] = find_key,
    *,
    now: int = CREATED,
    size: int = len(PLAINTEXT),
) -> tuple[OpenFailure | None, bytes]:
    """Open a block into a destination that holds another request's data."""
    destination = bytearray(b"\xaa" * size)
    failure = open_into(memoryview(destination), memoryview(sealed), identity, find, now=now)
    return failure, bytes(destination)


def test_sealing_takes_any_kind_of_buffer() -> None:
    for plaintext in (bytearray(PLAINTEXT), memoryview(PLAINTEXT)):
        sealed = bytearray(sealed_size(len(PLAINTEXT)))
        seal_into(memoryview(sealed), plaintext, IDENTITY, KEY, created=CREATED, expires=EXPIRES)
        assert unseal(sealed) == (None, PLAINTEXT)


def test_a_sealed_block_holds_nothing_of_the_plaintext() -> None:
    plaintext = b"needle" * 100
    assert b"needle" not in seal(plaintext)
    assert seal(plaintext)[HEADER_BYTES:] != seal(plaintext)[HEADER_BYTES:]


def test_the_salt_of_each_block_comes_from_the_random_source() -> None:
    asked: list[int] = []

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return b"s" * count

    first, second = seal(random_bytes=random_bytes), seal(random_bytes=random_bytes)
    assert asked == [32, 32]
    assert first == second
    assert first[128:160] == b"s" * 32


def test_a_second_implementation_of_the_specification_reads_a_block() -> None:
    """The same steps with `hmac` and AES-GCM alone, from the text of the specification."""
    sealed = bytes(seal())
    header = sealed[:192]
    salt, commitment = header[128:160], header[160:192]
    info = b"kvcustody/1 block key" + header[24:40] + header[40:72]
    extracted = hmac.digest(salt, b"\x01" * 32, "sha256")
    block_key = hmac.digest(extracted, info + b"\x01", "sha256")
    assert hmac.digest(extracted, block_key + info + b"\x02", "sha256") == commitment
    assert AESGCM(block_key).decrypt(bytes(12), sealed[192:], header) == PLAINTEXT
    assert struct.unpack(">QQQ", header[72:96]) == (CREATED, EXPIRES, len(PLAINTEXT))


def test_a_block_moved_to_another_namespace_is_refused() -> None:
    other = replace(IDENTITY, namespace=b"m" * 16)
    assert unseal(seal(), other) == (OpenFailure.WRONG_NAMESPACE, bytes(len(PLAINTEXT)))


def test_a_block_moved_to_another_name_is_refused() -> None:
    other = replace(IDENTITY, name=b"c" * 32)
    assert unseal(seal(), other) == (OpenFailure.WRONG_NAME, bytes(len(PLAINTEXT)))


def test_a_block_of_another_layout_is_refused() -> None:
    other = replace(IDENTITY, layout=b"L" * 32)
    assert unseal(seal(), other) == (OpenFailure.LAYOUT_MISMATCH, bytes(len(PLAINTEXT)))


@pytest.mark.parametrize("size", [0, 1, len(PLAINTEXT) - 1, len(PLAINTEXT) + 1, 4096])
def test_a_block_of_another_size_than_its_slot_is_refused(size: int) -> None:
    assert unseal(seal(), size=size) == (OpenFailure.LAYOUT_MISMATCH, bytes(size))


def test_a_block_lives_until_the_moment_it_expires() -> None:
    assert unseal(seal(), now=EXPIRES - 1) == (None, PLAINTEXT)
    for now in (EXPIRES, EXPIRES + 1):
        assert unseal(seal(), now=now) == (OpenFailure.EXPIRED, bytes(len(PLAINTEXT)))


@pytest.mark.parametrize("verdict", [OpenFailure.KEY_DESTROYED, OpenFailure.KEY_UNAVAILABLE])
def test_a_block_without_its_key_says_what_became_of_the_key(verdict: OpenFailure) -> None:
    assert unseal(seal(), find=lambda _: verdict) == (verdict, bytes(len(PLAINTEXT)))


def test_a_block_opens_under_no_other_key() -> None:
    assert unseal(seal(), find=lambda _: OTHER_KEY) == (
        OpenFailure.COMMITMENT,
        bytes(len(PLAINTEXT)),
    )


def test_a_header_renamed_to_the_expected_block_is_refused() -> None:
    """Whoever can write to a tier can write the expected name into another block's header."""
    other = seal(identity=replace(IDENTITY, namespace=b"m" * 16, name=b"c" * 32))
    other[24:72] = IDENTITY.namespace + IDENTITY.name
    assert unseal(other) == (OpenFailure.COMMITMENT, bytes(len(PLAINTEXT)))


def test_a_header_on_another_block_of_the_same_name_is_refused() -> None:
    older, newer = seal(b"a" * 34), seal(b"b" * 34)
    assert unseal(newer[:HEADER_BYTES] + older[HEADER_BYTES:])[0] is OpenFailure.TAG


def test_a_block_cut_anywhere_is_refused() -> None:
    sealed = seal(b"abc")
    for length in range(len(sealed)):
        failure, destination = unseal(sealed[:length], size=3)
        assert failure is (OpenFailure.NOT_SEALED if length == 0 else OpenFailure.TRUNCATED)
        assert destination == bytes(3), f"{length} bytes"


@pytest.mark.parametrize("extra", [b"\0", b"more", b"\0" * 1000])
def test_bytes_after_a_block_are_refused(extra: bytes) -> None:
    assert unseal(seal() + extra) == (OpenFailure.TRAILING_BYTES, bytes(len(PLAINTEXT)))


# Which check a changed byte runs into, by the offset that the range starts at.
REGIONS: list[tuple[int, set[OpenFailure]]] = [
    (0, {OpenFailure.NOT_SEALED}),
    (4, {OpenFailure.UNKNOWN_VERSION}),
    (8, {OpenFailure.KEY_DESTROYED}),
    (24, {OpenFailure.WRONG_NAMESPACE}),
    (40, {OpenFailure.WRONG_NAME}),
    (72, {OpenFailure.TAG}),
    (80, {OpenFailure.TAG, OpenFailure.EXPIRED}),
    (88, {OpenFailure.LAYOUT_MISMATCH}),
    (128, {OpenFailure.COMMITMENT}),
    (192, {OpenFailure.TAG}),
]


@pytest.mark.parametrize("bit", range(8))
def test_every_changed_bit_is_found_and_leaves_the_destination_zeroed(bit: int) -> None:
    sealed = seal(b"abc")
    for offset in range(len(sealed)):
        changed = bytearray(sealed)
        changed[offset] ^= 1 << bit
        failure, destination = unseal(changed, size=3)
        expected = [failures for start, failures in REGIONS if start <= offset][-1]
        assert failure in expected, f"byte {offset}"
        assert destination == bytes(3), f"byte {offset}"


def _overwrite(start: int, content: bytes) -> Callable[[bytearray], None]:
    def damage(sealed: bytearray) -> None:
        sealed[start : start + len(content)] = content

    return damage


def _cut(sealed: bytearray) -> None:
    sealed.pop()


# In the order of the specification; the last byte is cut off before the tag is looked at.
CHECKS: list[tuple[OpenFailure, Callable[[bytearray], None]]] = [
    (OpenFailure.NOT_SEALED, _overwrite(0, b"ELF!")),
    (OpenFailure.UNKNOWN_VERSION, _overwrite(4, b"\0\2")),
    (OpenFailure.WRONG_NAMESPACE, _overwrite(24, b"x" * 16)),
    (OpenFailure.WRONG_NAME, _overwrite(40, b"x" * 32)),
    (OpenFailure.EXPIRED, _overwrite(80, bytes(8))),
    (OpenFailure.LAYOUT_MISMATCH, _overwrite(96, b"x" * 32)),
    (OpenFailure.KEY_DESTROYED, _overwrite(8, b"x" * 16)),
    (OpenFailure.COMMITMENT, _overwrite(160, b"x" * 32)),
    (OpenFailure.TRUNCATED, _cut),
    (OpenFailure.TAG, _overwrite(HEADER_BYTES, b"x" * len(PLAINTEXT))),
]


@pytest.mark.parametrize("first", range(len(CHECKS)), ids=[check.value for check, _ in CHECKS])
def test_checks_run_in_the_order_of_the_specification(first: int) -> None:
    sealed = seal()
    for _, damage in reversed(CHECKS[first:]):
        damage(sealed)
    assert unseal(sealed) == (CHECKS[first][0], bytes(len(PLAINTEXT)))


def test_no_key_is_asked_for_before_the_header_is_what_was_expected() -> None:
    asked: list[bytes] = []

    def find(key_id: bytes) -> DataKey:
        asked.append(key_id)
        return KEY

    for identity in (
        replace(IDENTITY, namespace=bytes(16)),
        replace(IDENTITY, name=bytes(32)),
        replace(IDENTITY, layout=bytes(32)),
    ):
        unseal(seal(), identity, find)
    unseal(seal(), find=find, now=EXPIRES)
    assert asked == []
    assert unseal(seal(), find=find)[0] is None
    assert asked == [KEY.key_id]


def test_a_data_key_shows_its_id_and_never_its_secret() -> None:
    key = DataKey(b"\x0f" * 16, b"\xee" * 32)
    assert repr(key) == str(key) == f"DataKey(key_id={'0f' * 16})"
