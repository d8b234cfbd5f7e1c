"""The Casbin model that an adapter loads rules into, and the rules that it then holds.

Casbin drops what its model doesn't know without a word. A denial that is misspelt must not vanish,
so this model knows everything, and what is no rule of ours is refused later, by name.
"""

import hashlib
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from casbin.model import Assertion, Model

from kvcustody.errors import ConfigurationError
from kvcustody.policy.model import BUILT_IN_MODEL
from kvcustody.policy.rules import Pause, RuleList, RuleSet, in_slices, make_rule, never_pause

_Value = TypeVar("_Value")

_KINDS = ("p", "g")
# A message that quotes a column stays readable.
_LONGEST_COLUMN = 4096
_MOST_SHOWN = 200


class ReceivingModel(Model):  # type: ignore[misc]  # casbin has no types
    """Takes whatever rules an adapter has."""

    model: Any  # as Casbin calls it: by section and type, what adapters write to

    def __init__(self) -> None:
        super().__init__()
        self.load_model_from_text(BUILT_IN_MODEL)
        self.model = _EveryKey(
            lambda: _EveryKey(Assertion, {}),
            {section: _EveryKey(Assertion, known) for section, known in self.model.items()},
        )

    def add_policy(self, sec: str, ptype: str, rule: Sequence[Any]) -> bool:
        """Take a rule; Casbin's own method compares it with all others first."""
        self.model[sec][ptype].policy.append(rule)
        return True

    def add_policies(self, sec: str, ptype: str, rules: Iterable[Sequence[Any]]) -> bool:
        """Take rules."""
        self.model[sec][ptype].policy.extend(rules)
        return True

    def rows(self) -> Iterator[tuple[object, Sequence[Any]]]:
        """All rules that came, as they came, each with its type."""
        for assertions in self.model.values():
            for kind, assertion in assertions.items():
                for values in assertion.policy:
                    yield kind, values


class _EveryKey(UserDict[str, _Value]):
    """A dictionary that has every key.

    Args:
        make: makes a value that is asked for and isn't there yet.
        known: values that are there.

    """

    def __init__(self, make: Callable[[], _Value], known: dict[str, _Value]) -> None:
        super().__init__(known)
        self._make = make

    def __contains__(self, _key: object) -> bool:
        return True

    def __missing__(self, key: str) -> _Value:
        self[key] = value = self._make()
        return value


@dataclass(frozen=True, order=True, slots=True)
class _Row:
    """What a row says.

    Args:
        cells: type and columns; without the last ones if they are empty.
        problem: why it is no rule, if it isn't.

    """

    cells: tuple[str, ...]
    problem: str = ""


def rules_of(model: ReceivingModel, place: Path, pause: Pause = never_pause) -> RuleSet:
    """The rules that a model has received, sorted.

    A database has no order, or another one after each change. Sorted, the same rules are the same
    version, and the same version has the same names for them.

    Args:
        model: after an adapter has loaded its rules.
        place: names where the rules come from.
        pause: called now and then.

    """
    rows = sorted(_read_row(kind, values) for kind, values in in_slices(model.rows(), pause))
    rules = RuleList(place)
    problems: list[ConfigurationError] = []
    digest = hashlib.sha256()
    for number, row in enumerate(in_slices(rows, pause), start=1):
        for cell in row.cells:
            text = cell.encode("utf-8", "surrogatepass")
            digest.update(b"%d:%s" % (len(text), text))
        digest.update(b"\n")
        if row.problem:
            problem = f"{row.problem}; the row: {shown(', '.join(row.cells))}"
            problems.append(ConfigurationError(problem, place, number))
        else:
            rules.append(make_rule(row.cells[0], row.cells[1:], place, number))
    return RuleSet(rules, problems, digest.digest())


def shown(text: str) -> str:
    """A row for a message: one line, and not a long one."""
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _read_row(kind: object, values: Sequence[Any]) -> _Row:
    # A text alone would be taken apart into letters.
    columns: list[object] = [kind, *([values] if isinstance(values, str | bytes) else values)]
    while len(columns) > 1 and (columns[-1] is None or columns[-1] == ""):
        columns.pop()
    cells = tuple("NULL" if column is None else str(column).strip() for column in columns)
    if any(column is None for column in columns):
        return _Row(cells, "a column is NULL that others follow")
    if not all(isinstance(column, str) for column in columns):
        return _Row(cells, "a column holds no text")
    if not all(cell.isprintable() for cell in cells):
        return _Row(cells, "a column holds a line break or a control character")
    if any(len(cell) > _LONGEST_COLUMN for cell in cells):
        return _Row(cells, f"a column has more than {_LONGEST_COLUMN} characters")
    if cells[0] not in _KINDS:
        return _Row(cells, f"a rule's type is p or g, not '{cells[0]}'")
    return _Row(cells)
