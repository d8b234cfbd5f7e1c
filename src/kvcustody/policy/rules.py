"""Read a policy file into rules, each with its place."""

import csv
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, overload

from kvcustody.errors import ConfigurationError
from kvcustody.policy.terms import ALWAYS

_Item = TypeVar("_Item")

Pause = Callable[[], None]
"""Called now and then by long work, so that other threads get their turn."""

# How long others wait for their turn.
_SLICE_SECONDS = 0.0003
_PAUSE_SECONDS = 0.0002
# After a pause, the interpreter is had back from a busy thread after this time. Python's own 5 ms
# would make seconds of a thousand pauses.
_TURN_SECONDS = 0.0005
_LONGEST_LINE = 8192
_LARGEST_BYTES = 256 * 2**20
_P_FIELDS = 6
_UNLIMITED_P_FIELDS = 5


class Rule(NamedTuple):
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


class RuleList(Sequence[Rule]):
    """Rules of one file, kept in columns.

    The garbage collector has nothing to follow here. With an object or two a rule, 50,000 rules
    would make each of its full collections longer by a tenth of a second, in which no thread runs.

    Args:
        file: the policy file, or another name of where the rules come from.

    """

    def __init__(self, file: Path) -> None:
        self._file = file
        # Rules differ in whom they are about; what they say of them stands in many alike.
        self._who: list[str] = []
        self._what: list[tuple[str, tuple[str, ...]]] = []
        self._lines: list[int] = []
        self._names: dict[str, str] = {}
        self._contents: dict[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]]] = {}

    def append(self, rule: Rule) -> None:
        """Add a rule of this file."""
        who, *rest = rule.fields or ("",)
        what = rule.kind, tuple(rest)
        self._who.append(self._names.setdefault(who, who))
        self._what.append(self._contents.setdefault(what, what))
        self._lines.append(rule.line)

    def parts(self) -> Sequence[object]:
        """What it is made of."""
        return [*self._names, *self._contents, *self._lines]

    def __len__(self) -> int:
        return len(self._lines)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleList) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __iter__(self) -> Iterator[Rule]:
        for who, (kind, rest), line in zip(self._who, self._what, self._lines, strict=True):
            yield Rule(kind, (who, *rest), self._file, line)

    @overload
    def __getitem__(self, index: int) -> Rule: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rule]: ...
    def __getitem__(self, index: int | slice) -> Rule | Sequence[Rule]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        kind, rest = self._what[index]
        return Rule(kind, (self._who[index], *rest), self._file, self._lines[index])


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


@contextmanager
def short_turns() -> Iterator[None]:
    """Let the threads of this process take shorter turns for a while."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_slices(items: Iterable[_Item], pause: Pause) -> Iterator[_Item]:
    """The items, with a pause now and then."""
    pause_at = 0.0
    for item in items:
        if time.monotonic() >= pause_at:
            pause()
            pause_at = time.monotonic() + _SLICE_SECONDS
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
    rules = RuleList(path)
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
    if not text:
        return None
    if text.startswith("#"):
        # Editors show some characters as a line's end, and a rule behind them.
        if text.replace("\t", " ").isprintable():
            return None
        return ConfigurationError("a comment holds a line break or a control character", file, line)
    try:
        kind, *fields = [field.strip() for field in _split(text)]
    except csv.Error as error:
        return ConfigurationError(f"not a line of CSV: {error}", file, line)
    # Messages quote fields, and so do terminals and logs.
    if not "".join((kind, *fields)).isprintable():
        return ConfigurationError("a field holds a line break or a control character", file, line)
    if len(text) > _LONGEST_LINE:
        return ConfigurationError(f"longer than {_LONGEST_LINE} characters", file, line)
    if kind not in {"p", "g"}:
        return ConfigurationError(f"a line starts with p or g, not '{kind}'", file, line)
    return make_rule(kind, fields, file, line)


def _split(text: str) -> list[str]:
    if '"' not in text and "\r" not in text and len(text) <= csv.field_size_limit():
        return text.split(",")  # what the csv module makes of it, several times as fast
    return next(csv.reader([text], strict=True))
