"""From any bytes, a sealed block and a reader: so that mutations reach the checks past the header.

The first byte says what follows: bytes that lie on a tier as they are, or a recipe. A recipe starts
from a block that opens; each of its instructions (4 bytes: which, a number of two bytes, a value)
alters the block, forges its commitment or tag, or changes what the reader expects and knows.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from reference_sealed_block import (
    DESTROYED,
    FIELDS,
    HEADER_BYTES,
    TAG_BYTES,
    UNAVAILABLE,
    Fields,
    Reader,
    derive,
    encrypt,
    field,
    number,
    put,
    seal,
)

NOW = 1_750_000_000_000
LENGTHS = (0, 1, 16, 47, 300)
KEY_IDS = (b"k" * 16, b"K" * 16)
SECRETS = (b"\x01" * 32, b"\x02" * 32)
NUMBERS = ("created", "expires", "plaintext_bytes")

_INSTRUCTION_BYTES = 4
# A run of a hundred shows nothing that a run of thirty doesn't.
_MOST_INSTRUCTIONS = 30
_CIPHER_BLOCK = 16

Made = tuple[bytes, Reader]
Instruction = Callable[[Made, int, int], Made]


@cache
def blocks(length: int) -> tuple[bytes, ...]:
    """A block; another of its namespace; one of another namespace; of the next epoch; a newer."""
    first = Fields(KEY_IDS[0], b"n" * 16, b"b" * 32, NOW, NOW + 1000, b"l" * 32, b"s" * 32)
    others = (
        (first, 0),
        (replace(first, name=b"c" * 32, salt=b"t" * 32), 0),
        (replace(first, namespace=b"m" * 16, salt=b"u" * 32), 1),
        (replace(first, key_id=KEY_IDS[1], salt=b"v" * 32), 1),
        (replace(first, created=NOW + 1, expires=NOW + 1001, salt=b"w" * 32), 0),
    )
    return tuple(seal(fields, SECRETS[epoch], b"p" * length) for fields, epoch in others)


def build(data: bytes) -> Made:
    """What a reader finds and expects; a function of the bytes alone."""
    kind, length = data[:1] or b"\0", LENGTHS[(data[1:2] or b"\0")[0] % len(LENGTHS)]
    keys = dict(zip(KEY_IDS, SECRETS, strict=True))
    reader = Reader(b"n" * 16, b"b" * 32, b"l" * 32, length, keys, NOW)
    if kind[0] % 2 == 0:
        return data[2:], reader
    made = blocks(length)[0], reader
    end = min(len(data), 2 + _MOST_INSTRUCTIONS * _INSTRUCTION_BYTES)
    for start in range(2, end - _INSTRUCTION_BYTES + 1, _INSTRUCTION_BYTES):
        which, high, low, value = data[start : start + _INSTRUCTION_BYTES]
        made = INSTRUCTIONS[which % len(INSTRUCTIONS)](made, high << 8 | low, value)
    return made


def _flip(made: Made, where: int, value: int) -> Made:
    sealed, reader = made
    if not sealed:
        return made
    altered = bytearray(sealed)
    altered[where % len(altered)] ^= value
    return bytes(altered), reader


def _cut(made: Made, where: int, _value: int) -> Made:
    sealed, reader = made
    return sealed[: where % (len(sealed) + 1)], reader


def _append(made: Made, count: int, value: int) -> Made:
    sealed, reader = made
    return sealed + bytes([value]) * (count % 64), reader


def _whole(made: Made, which: int, _value: int) -> Made:
    _, reader = made
    siblings = blocks(LENGTHS[which % len(LENGTHS)])
    return siblings[(which >> 8) % len(siblings)], reader


def _field_of_sibling(made: Made, which: int, value: int) -> Made:
    sealed, reader = made
    siblings = blocks(LENGTHS[0])
    name = list(FIELDS)[value % len(FIELDS)]
    return _put(sealed, name, field(siblings[which % len(siblings)], name)), reader


def _number(made: Made, which: int, value: int) -> Made:
    sealed, reader = made
    numbers = _telling_numbers(made)
    content = numbers[which % len(numbers)].to_bytes(8)
    return _put(sealed, NUMBERS[value % len(NUMBERS)], content), reader


def _clock(made: Made, which: int, _value: int) -> Made:
    sealed, reader = made
    numbers = _telling_numbers(made)
    return sealed, replace(reader, now=numbers[which % len(numbers)])


def _key(made: Made, which: int, value: int) -> Made:
    sealed, reader = made
    known = (SECRETS[0], SECRETS[1], DESTROYED, UNAVAILABLE)[value % 4]
    return sealed, replace(reader, keys={**reader.keys, KEY_IDS[which % 2]: known})


def _commit(made: Made, which: int, _value: int) -> Made:
    """Commit to a key, as if the header were as it should be."""
    sealed, reader = made
    return _put(sealed, "commitment", _derive(sealed, which)[1]), reader


def _encrypt(made: Made, which: int, value: int) -> Made:
    """Encrypt anew under a key, with the header as it is."""
    sealed, reader = made
    if len(sealed) < HEADER_BYTES:
        return made
    plaintext = bytes([value]) * max(0, len(sealed) - HEADER_BYTES - TAG_BYTES)
    return encrypt(_derive(sealed, which)[0], sealed[:HEADER_BYTES], plaintext), reader


def _expect(made: Made, which: int, _value: int) -> Made:
    sealed, reader = made
    siblings = blocks(LENGTHS[0])
    sibling = siblings[which % len(siblings)]
    expected = replace(reader, namespace=field(sibling, "namespace"), name=field(sibling, "name"))
    return sealed, expected


def _capacity(made: Made, count: int, _value: int) -> Made:
    sealed, reader = made
    return sealed, replace(reader, plaintext_bytes=count % 400)


def _layout(made: Made, _number: int, value: int) -> Made:
    sealed, reader = made
    return sealed, replace(reader, layout=bytes([value]) * 32)


def _swap(made: Made, where: int, _value: int) -> Made:
    """Exchange two blocks of the cipher."""
    sealed, reader = made
    start = where % (len(sealed) + 1)
    middle, end = start + _CIPHER_BLOCK, start + 2 * _CIPHER_BLOCK
    return sealed[:start] + sealed[middle:end] + sealed[start:middle] + sealed[end:], reader


INSTRUCTIONS: tuple[Instruction, ...] = (
    _flip,
    _cut,
    _append,
    _whole,
    _field_of_sibling,
    _number,
    _clock,
    _key,
    _commit,
    _encrypt,
    _expect,
    _capacity,
    _layout,
    _swap,
)


def _telling_numbers(made: Made) -> tuple[int, ...]:
    sealed, reader = made
    expires = number(sealed, "expires")
    return (
        0,
        1,
        NOW,
        max(0, reader.now - 1),
        reader.now,
        min(reader.now + 1, 2**64 - 1),
        max(0, expires - 1),
        expires,
        reader.plaintext_bytes,
        max(0, len(sealed) - HEADER_BYTES - TAG_BYTES),
        2**31,
        2**36 - 31,
        2**63,
        2**64 - 1,
    )


def _put(sealed: bytes, name: str, content: bytes) -> bytes:
    return put(sealed, name, content) if len(sealed) >= HEADER_BYTES else sealed


def _derive(sealed: bytes, which: int) -> tuple[bytes, bytes]:
    fields = (field(sealed, name) for name in ("salt", "namespace", "name"))
    return derive(SECRETS[which % 2], *fields)
