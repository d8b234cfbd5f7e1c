"""A policy's permissions and denials, compiled: found by whom they are about."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvcustody.policy.rules import Pause, Rule, in_slices, never_pause
from kvcustody.policy.terms import Terms, parse_terms

_NONE = -1


class CompiledRule(NamedTuple):
    """A permission, ready to be asked.

    Args:
        order: its place among the policy's rules.
        tier: the tier, group or tenant that it is about, a selector of tiers, or `*`.
        action: the action, or `*`.
        denies: whether it is a denial.
        terms: when it counts.
        rule: as it was written.

    """

    order: int
    tier: str
    action: str
    denies: bool
    terms: Terms
    rule: Rule


class Permissions:
    """A policy's permissions by subject.

    Places in the list of rules are all that it keeps: like `RuleList`, it gives the garbage
    collector nothing to follow.

    Args:
        rules: the policy's rules, checked.
        classifications: levels of data, the least sensitive first.
        pause: called now and then.

    Raises:
        ValueError: a rule's terms can't be read.

    """

    def __init__(
        self, rules: Sequence[Rule], classifications: Sequence[str], pause: Pause = never_pause
    ) -> None:
        self._rules = rules
        self._terms: dict[str, Terms] = {}
        self._last: dict[str, int] = {}
        # For each rule, the place of the one before about the same subject.
        self._before: list[int] = []
        for place, rule in enumerate(in_slices(rules, pause)):
            before = _NONE
            if rule.kind == "p":
                who, *_, when = rule.fields
                if when not in self._terms:
                    self._terms[when] = parse_terms(when, classifications)
                before = self._last.get(who, _NONE)
                self._last[who] = place
            self._before.append(before)

    def of(self, names: Iterable[str]) -> list[CompiledRule]:
        """The permissions of all the names, in their order in the policy."""
        places: list[int] = []
        for name in names:
            place = self._last.get(name, _NONE)
            while place != _NONE:
                places.append(place)
                place = self._before[place]
        return [self._compiled(place) for place in sorted(places)]

    def subjects(self) -> Iterable[str]:
        """All names that permissions are about."""
        return self._last.keys()

    def parts(self) -> Iterable[object]:
        """What it is made of."""
        return [*self._terms.values(), self._before, self._last]

    def _compiled(self, place: int) -> CompiledRule:
        rule = self._rules[place]
        _, _, tier, action, effect, when = rule.fields
        return CompiledRule(place, tier, action, effect == "deny", self._terms[when], rule)
