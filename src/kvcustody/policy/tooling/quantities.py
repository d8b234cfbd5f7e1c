"""Durations and sizes as one writes them in rules."""

_UNITS = (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def write_duration(seconds: float) -> str:
    """`3600.0` as `1h`: the largest unit that leaves no fraction."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{seconds * 1000:g}ms"


def write_size(size: int) -> str:
    """`1073741824` as `1GiB`: the largest unit that leaves no fraction."""
    for unit, length in _SIZES:
        if size >= length and size % length == 0:
            return f"{size // length}{unit}"
    return f"{size}B"
