"""Errors that reach a caller, one class for each thing a caller can do about it.

Denial, tampering and expiry on the hot path are values (`kvcustody.sealing.block.OpenFailure`,
`kvcustody.admission.Refusal`), not exceptions: serving goes on and recomputes.
"""

from dataclasses import dataclass
from pathlib import Path


class CustodyError(Exception):
    """Root of all errors that kvcustody raises on purpose; its text is one line for a person."""


@dataclass
class ConfigurationError(CustodyError):
    """A file or option is wrong; correct it and try again (exit code 2).

    Args:
        message: what is wrong and what to do, without the place.
        file: the file at fault, if any.
        line: 1-based line in that file, if known.
        field: dotted path of the field, e.g. `tiers[0].ttl`.

    """

    message: str
    file: Path | None = None
    line: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        place = ""
        if self.file is not None:
            place = f"{self.file}:{self.line}: " if self.line is not None else f"{self.file}: "
        field = f"{self.field}: " if self.field else ""
        return f"{place}{field}{self.message}"


class UnavailableError(CustodyError):
    """A needed service (registry, key provider) can't be reached; retry later (exit code 3)."""


class StoreError(CustodyError):
    """A tier store failed at I/O; the block counts as missing or not stored."""
