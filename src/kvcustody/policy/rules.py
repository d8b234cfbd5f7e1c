"""Read a policy file into rules, each with its place."""

import csv
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvcustody.errors import ConfigurationError
from kvcustody.policy.terms import ALWAYS

_Item = TypeVar("_Item")

Pause = Callable[[], None]
"""Called now and then by long work, so that other threads get their turn."""

# A third of a millisecond's work.
_SLICE = 100
_PAUSE_SECONDS = 0.0002
_LARGEST_BYTES = 256 * 2**20
_P_FIELDS = 6
_UNLIMITED_P_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a policy.

    Args:
        kind: `p` (a permission) or `g` (a role's member).
        fields: the line's fields after the kind; those of a permission always end with its terms.
        file: the policy file, or another name of where the rule comes from.
        line: its 1-based line, or number.

    """

    kind: str
    fields: tuple[str, ...]
    file: Path
    line: int

    @property
    def name(self) -> str:
        """How reviewers find the rule again: file name and line."""
        return f"{self.file.name}:{self.line}"

    @property
    def text(self) -> str:
        """The rule as one writes it."""
        fields = self.fields
        if self.kind == "p" and fields[-1] == ALWAYS:
            fields = fields[:-1]
        return ", ".join((self.kind, *fields))


@dataclass(frozen=True)
class RuleSet:
    """The rules of one version of a policy.

    Args:
        rules: in the order in which they were written.
        problems: lines that are no rules.
        digest: SHA-256 of what was read.

    """

    rules: Sequence[Rule]
    problems: Sequence[ConfigurationError]
    digest: bytes


def never_pause() -> None:
    """Do not pause: nobody else is waiting."""


def let_others_run() -> None:
    """Give the interpreter away; without a sleep, the same thread would have it at once."""
    time.sleep(_PAUSE_SECONDS)


def in_slices(items: Iterable[_Item], pause: Pause) -> Iterator[_Item]:
    """The items, with a pause now and then."""
    for number, item in enumerate(items):
        if number % _SLICE == _SLICE - 1:
            pause()
        yield item


def read_rules(path: Path, pause: Pause = never_pause) -> RuleSet:
    """Read a CSV policy.

    Args:
        path: file of `p, who, deployment, tier, action, allow|deny[, terms]` and
            `g, member, role, deployment` lines.
        pause: called now and then.

    Raises:
        ConfigurationError: the file can't be read.

    """
    rules: list[Rule] = []
    problems: list[ConfigurationError] = []
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            if path.stat().st_size > _LARGEST_BYTES:
                raise ConfigurationError(f"larger than {_LARGEST_BYTES // 2**20} MiB", path)
            for line, raw in enumerate(in_slices(file, pause), start=1):
                digest.update(raw)
                read = _read_line(raw, path, line)
                if isinstance(read, Rule):
                    rules.append(read)
                elif read is not None:
                    problems.append(read)
    except FileNotFoundError:
        raise ConfigurationError("no such file; correct `authorization`", path) from None
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None
    return RuleSet(rules, problems, digest.digest())


def make_rule(kind: str, fields: Sequence[str], file: Path, line: int) -> Rule:
    """A rule of fields that were read somewhere; a permission without terms always counts."""
    if kind == "p" and len(fields) == _UNLIMITED_P_FIELDS:
        fields = (*fields, ALWAYS)
    elif kind == "p" and len(fields) == _P_FIELDS and not fields[-1]:
        fields = (*fields[:-1], ALWAYS)
    return Rule(kind, tuple(fields), file, line)


def _read_line(raw: bytes, file: Path, line: int) -> Rule | ConfigurationError | None:
    try:
        text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        return ConfigurationError("not UTF-8 text", file, line)
    if not text or text.startswith("#"):
        return None
    try:
        kind, *fields = (field.strip() for field in next(csv.reader([text], strict=True)))
    except csv.Error as error:
        return ConfigurationError(f"not a line of CSV: {error}", file, line)
    if kind not in {"p", "g"}:
        return ConfigurationError(f"a line starts with p or g, not '{kind}'", file, line)
    return make_rule(kind, fields, file, line)
