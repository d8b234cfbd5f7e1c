"""What must hold for whatever lies on a tier, checked against the reference reader."""

from kvcustody.sealing import DataKey, block
from kvcustody.sealing import format as sealed_format
from kvcustody.sealing.block import BlockIdentity
from kvcustody.sealing.format import OpenFailure
from recipe import build
from reference_sealed_block import HEADER_BYTES, Reader, outcome


def check(data: bytes) -> None:
    """Make a block of the input, parse and open it.

    Raises:
        AssertionError: our reader does something else than it must.

    """
    sealed, reader = build(data)
    check_parser(sealed)
    check_opening(sealed, reader)


def check_parser(sealed: bytes) -> None:
    """A parsed header packs to the bytes that it was read from; anything else is a failure."""
    parsed = sealed_format.Header.parse(sealed)
    if isinstance(parsed, sealed_format.Header):
        assert parsed.pack() == sealed[:HEADER_BYTES], "a header changed on the way"
    else:
        assert isinstance(parsed, OpenFailure), "neither header nor failure"
    for buffer in (bytearray(sealed), memoryview(sealed)):
        assert sealed_format.Header.parse(buffer) == parsed, "the kind of buffer matters"


def check_opening(sealed: bytes, reader: Reader) -> None:
    """A block opens to its plaintext, or fails the check that it should, with nothing left."""

    def find(key_id: bytes) -> DataKey | OpenFailure:
        # A branch each, for the fuzzer to see the difference.
        known = reader.keys.get(key_id, "unavailable")
        if known == "destroyed":
            return OpenFailure.KEY_DESTROYED
        if isinstance(known, str):
            return OpenFailure.KEY_UNAVAILABLE
        return DataKey(key_id, known)

    destination = bytearray(b"\xaa" * reader.plaintext_bytes)
    found = block.open_into(
        memoryview(destination),
        memoryview(sealed),
        BlockIdentity(reader.namespace, reader.name, reader.layout),
        find,
        now=reader.now,
    )
    expected = outcome(sealed, reader)
    if isinstance(expected, bytes):
        assert found is None, f"a good block was refused as {found}"
        assert destination == expected, "another plaintext"
    else:
        assert isinstance(found, OpenFailure), f"opened, though {expected}"
        assert found.value == expected, f"{found.value} instead of {expected}"
        assert not any(destination), f"something was left behind after {expected}"
