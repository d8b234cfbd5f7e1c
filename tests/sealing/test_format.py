import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcustody.sealing.format import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    TAG_BYTES,
    Header,
    OpenFailure,
)

pytestmark = pytest.mark.unit

# A busy machine is no finding.
unhurried = settings(deadline=None, max_examples=50)

HEADER = Header(
    key_id=bytes(range(16)),
    namespace=bytes(range(16, 32)),
    name=bytes(range(32, 64)),
    created=1_700_000_000_000,
    expires=1_700_000_060_000,
    plaintext_bytes=4096,
    layout=bytes(range(64, 96)),
    salt=bytes(range(96, 128)),
    commitment=bytes(range(128, 160)),
)


def with_field(field: str, value: Any) -> Header:
    return replace(HEADER, **{field: value})


_NUMBERS = st.integers(min_value=0, max_value=2**64 - 1)
HEADERS = st.builds(
    Header,
    key_id=st.binary(min_size=16, max_size=16),
    namespace=st.binary(min_size=16, max_size=16),
    name=st.binary(min_size=32, max_size=32),
    created=_NUMBERS,
    expires=_NUMBERS,
    plaintext_bytes=_NUMBERS,
    layout=st.binary(min_size=32, max_size=32),
    salt=st.binary(min_size=32, max_size=32),
    commitment=st.binary(min_size=32, max_size=32),
)


@unhurried
@given(HEADERS)
def test_a_header_comes_back_as_it_was_packed(header: Header) -> None:
    assert Header.parse(header.pack()) == header


@unhurried
@given(HEADERS, st.binary(max_size=64))
def test_what_follows_a_header_changes_nothing_in_it(header: Header, rest: bytes) -> None:
    assert Header.parse(header.pack() + rest) == header


def test_a_header_takes_192_bytes_and_a_block_16_more() -> None:
    assert HEADER_BYTES == len(HEADER.pack()) == 192
    assert TAG_BYTES == 16
    assert OVERHEAD_BYTES == 208


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, b"KVCB"),
        (4, struct.pack(">H", 1)),
        (6, struct.pack(">H", 1)),
        (8, HEADER.key_id),
        (24, HEADER.namespace),
        (40, HEADER.name),
        (72, struct.pack(">Q", HEADER.created)),
        (80, struct.pack(">Q", HEADER.expires)),
        (88, struct.pack(">Q", HEADER.plaintext_bytes)),
        (96, HEADER.layout),
        (128, HEADER.salt),
        (160, HEADER.commitment),
    ],
)
def test_a_field_stands_where_the_specification_says(offset: int, expected: bytes) -> None:
    assert HEADER.pack()[offset : offset + len(expected)] == expected


@pytest.mark.parametrize("field", ["key_id", "namespace", "name", "layout", "salt", "commitment"])
def test_a_field_of_another_length_is_neither_padded_nor_cut(field: str) -> None:
    content = getattr(HEADER, field)
    for wrong in (b"", content[:-1], content + b"\0"):
        with pytest.raises(ValueError, match=field):
            with_field(field, wrong).pack()


@pytest.mark.parametrize("field", ["created", "expires", "plaintext_bytes"])
def test_a_number_fits_into_64_bits_or_is_refused(field: str) -> None:
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=field):
            with_field(field, wrong).pack()
    for right in (0, 2**64 - 1):
        header = with_field(field, right)
        assert Header.parse(header.pack()) == header


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_header_is_read_from_any_kind_of_buffer(
    kind: Callable[[bytes], bytes | bytearray | memoryview],
) -> None:
    assert Header.parse(kind(HEADER.pack())) == HEADER


@pytest.mark.parametrize("foreign", [b"", b"\0" * 192, b"KVCA" + b"\0" * 188, b"kvcb", b"x"])
def test_foreign_bytes_are_not_sealed(foreign: bytes) -> None:
    assert Header.parse(foreign) is OpenFailure.NOT_SEALED


@pytest.mark.parametrize("length", [1, 3, 4, 5, 100, 191])
def test_the_start_of_a_header_is_truncated(length: int) -> None:
    assert Header.parse(HEADER.pack()[:length]) is OpenFailure.TRUNCATED


@pytest.mark.parametrize(("version", "algorithm"), [(0, 1), (2, 1), (1, 0), (1, 2), (65535, 65535)])
def test_another_version_or_algorithm_is_unknown(version: int, algorithm: int) -> None:
    packed = bytearray(HEADER.pack())
    packed[4:8] = struct.pack(">HH", version, algorithm)
    assert Header.parse(packed) is OpenFailure.UNKNOWN_VERSION


@unhurried
@given(st.binary(max_size=400))
def test_no_bytes_make_the_parser_raise(stored: bytes) -> None:
    assert isinstance(Header.parse(stored), Header | OpenFailure)


def test_failures_keep_the_names_that_audit_events_carry() -> None:
    assert {failure.value for failure in OpenFailure} == {
        "not-sealed",
        "unknown-version",
        "wrong-namespace",
        "wrong-name",
        "expired",
        "layout-mismatch",
        "key-destroyed",
        "key-unavailable",
        "commitment",
        "tag",
        "truncated",
        "trailing-bytes",
    }
