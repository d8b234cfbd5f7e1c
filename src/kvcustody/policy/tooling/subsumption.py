"""Rules that change no answer, because another rule says as much or more.

Only what surely has no effect is named: the other rule counts wherever this one does, as its
subject, tier and action take in this one's, and it has no condition that this one lacks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcustody.policy.decisions import ANYTHING, SERVING_ACTIONS
from kvcustody.policy.facts import Facts
from kvcustody.policy.rules import Rule
from kvcustody.policy.terms import TermsReader
from kvcustody.policy.tooling.reach import Reach

_NO_LIMIT = float("inf")


class Useless(NamedTuple):
    """A rule without effect, and the rule that leaves it none."""

    rule: Rule
    other: Rule


class _Extent(NamedTuple):
    """What a rule is about, beside its subject and its limits."""

    tier: str
    action: str
    denies: bool
    conditions: frozenset[str]


class _Entry(NamedTuple):
    who: str
    extent: _Extent
    ttl: float
    quota: float
    order: int
    rule: Rule

    def leaves_nothing_to(self, other: "_Entry") -> bool:
        """Whether this rule, which takes in the other, leaves it without effect."""
        limits, of_other = (self.ttl, self.quota), (other.ttl, other.quota)
        if not self.extent.denies and not (limits[0] <= of_other[0] and limits[1] <= of_other[1]):
            return False
        # Of two that say the same, one has to stay: the first. (Denials have no limits.)
        same = (self.who, self.extent, *limits) == (other.who, other.extent, *of_other)
        return not same or self.order < other.order


@dataclass
class _Strictest:
    """Of one subject's rules of one extent, those that others are held against.

    Not each is: with many limits that would be quadratic, and a limit that none of these undercuts
    is left alone.
    """

    by_ttl: _Entry
    by_quota: _Entry

    def add(self, entry: _Entry) -> None:
        self.by_ttl = min(self.by_ttl, entry, key=lambda each: (each.ttl, each.quota, each.order))
        self.by_quota = min(
            self.by_quota, entry, key=lambda each: (each.quota, each.ttl, each.order)
        )


@dataclass
class UselessRules:
    """Finds rules without effect; its work grows with the number of rules, not its square.

    Args:
        facts: what custody.yaml says of tenants and tiers.
        reach: who has which names.
        terms: reads their terms.
        looked_up: how often an extent was looked up.

    """

    facts: Facts
    reach: Reach
    terms: TermsReader
    looked_up: int = 0
    _index: dict[str, dict[_Extent, _Strictest]] = field(default_factory=dict)
    _above: dict[str, list[str]] = field(default_factory=dict)
    _broader: dict[_Extent, list[_Extent]] = field(default_factory=dict)

    def find(self, rules: Sequence[Rule]) -> Iterator[Useless]:
        """The rules without effect, in their order."""
        written: dict[tuple[str, ...], Rule] = {}
        entries: list[_Entry] = []
        found: list[tuple[int, Useless]] = []
        for order, rule in enumerate(rules):
            first = written.setdefault((rule.kind, *rule.fields), rule)
            if first is not rule:
                found.append((order, Useless(rule, first)))
            elif rule.kind == "p":
                entries.append(self._read(order, rule))
        for entry in entries:
            of_subject = self._index.setdefault(entry.who, {})
            of_subject.setdefault(entry.extent, _Strictest(entry, entry)).add(entry)
        self._broader = self._all_broader({entry.extent for entry in entries})
        for entry in entries:
            other = self._cover(entry)
            if other is not None:
                found.append((entry.order, Useless(entry.rule, other)))
        return (useless for _, useless in sorted(found, key=lambda each: each[0]))

    def _read(self, order: int, rule: Rule) -> _Entry:
        who, _, tier, action, effect, when = rule.fields
        terms = self.terms.read(when)
        conditions = frozenset(condition.text for condition in terms.conditions)
        limits = terms.limits
        ttl = _NO_LIMIT if limits.ttl is None else limits.ttl
        quota = _NO_LIMIT if limits.quota is None else float(limits.quota)
        extent = _Extent(tier, action, effect == "deny", conditions)
        return _Entry(who, extent, ttl, quota, order, rule)

    def _cover(self, entry: _Entry) -> Rule | None:
        """A rule that counts wherever one does and leaves it without effect."""
        if entry.who not in self._above:
            names = (entry.who, *self.reach.above(entry.who))
            self._above[entry.who] = [name for name in names if name in self._index]
        for who in self._above[entry.who]:
            of_subject = self._index[who]
            for extent in self._broader[entry.extent]:
                self.looked_up += 1
                strictest = of_subject.get(extent)
                if strictest is None:
                    continue
                for other in (strictest.by_ttl, strictest.by_quota):
                    if other.leaves_nothing_to(entry):
                        return other.rule
        return None

    def _all_broader(self, extents: set[_Extent]) -> dict[_Extent, list[_Extent]]:
        """Of the extents that rules have, those that take in each; denials first, for they win."""
        return {
            extent: [each for each in self._taking_in(extent) if each in extents]
            for extent in extents
        }

    def _taking_in(self, extent: _Extent) -> Iterator[_Extent]:
        for denies in (True,) if extent.denies else (True, False):
            for tier in self._tiers(extent):
                for action in _actions(extent.action):
                    for conditions in dict.fromkeys((extent.conditions, frozenset[str]())):
                        yield _Extent(tier, action, denies, conditions)

    def _tiers(self, extent: _Extent) -> Iterable[str]:
        """How rules may name what one is about. A label may be given to another tier tomorrow.

        So the name of the only tier that has it doesn't stand for the label.
        """
        names = dict.fromkeys((extent.tier, ANYTHING))
        tier = self.facts.tiers.get(extent.tier)
        if tier is not None and (extent.action == ANYTHING or extent.action in SERVING_ACTIONS):
            names.update(dict.fromkeys(tier.selectors()))
        return names


def _actions(action: str) -> tuple[str, ...]:
    return (action, ANYTHING) if action in SERVING_ACTIONS else (action,)
