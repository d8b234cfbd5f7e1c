"""Names, durations and sizes as people write them: `acme`, `60s`, `8GiB`."""

import re
from typing import Annotated

from pydantic import BeforeValidator

# Names reach folder names, policy rules, log lines and terminals, so they stay plain ASCII: no
# separators, no control characters, no look-alikes.
NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
NAME_FORM = "use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"

CLASSIFICATIONS = ("public", "internal", "confidential", "restricted")
"""Levels of data, from the least to the most sensitive, unless custody.yaml has its own."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
# More than any machine has; beyond it, floating point loses bytes and in the end overflows.
_LARGEST_BYTES = 2**60
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")

# Longer lives have no use here and would overflow a block's millisecond timestamps' sense.
_LONGEST_SECONDS = 10 * 365 * 86400.0


def is_name(text: str) -> bool:
    """Whether a text may name a tenant, workload or tier; see `NAME_FORM`."""
    return re.fullmatch(NAME_PATTERN, text) is not None


def parse_duration(value: object) -> float:
    """Seconds in a duration such as `200ms`, `60s`, `1h` or `7d`.

    Raises:
        ValueError: not a duration, zero, or longer than ten years.

    """
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _SECONDS:
        raise ValueError("write a duration with its unit, such as 200ms, 60s, 1h or 7d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError("a duration must be longer than zero and at most ten years")
    return seconds


def parse_bytes(value: object) -> int:
    """Bytes in a size such as `8GiB`, `500MB` or a plain number of bytes.

    Raises:
        ValueError: not a size, or zero.

    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _BYTES:
        raise ValueError("write a size with its unit, such as 512MiB or 8GiB")
    size = float(match[1]) * _BYTES[match[2]]
    if not 1 <= size <= _LARGEST_BYTES:
        raise ValueError("a size must be larger than zero and at most an exbibyte (1048576TiB)")
    return int(size)


def parse_fraction(value: object) -> float:
    """Fraction in a percentage such as `5%`.

    Raises:
        ValueError: not a percentage from 0% to 99%.

    """
    match = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*%", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a percentage from 0% to 99%, such as 5%")
    return float(match[1]) / 100


Duration = Annotated[float, BeforeValidator(parse_duration)]
"""Seconds, written with a unit."""

ByteSize = Annotated[int, BeforeValidator(parse_bytes)]
"""Bytes, written with a unit."""

Fraction = Annotated[float, BeforeValidator(parse_fraction)]
"""A share between 0 and 1, written as a percentage."""
