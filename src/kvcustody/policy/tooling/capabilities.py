"""What tenants may do on tiers if the model of their requests is right.

Coarser than decisions, and one pass over the rules instead of one for each tenant: what
`policy check` needs to find tenants and tiers that rules leave out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kvcustody.policy.decisions import (
    ANYTHING,
    EVERY_TENANT,
    Action,
    cleared,
    covers,
)
from kvcustody.policy.facts import UNKNOWN_MODEL, Context, Facts, TenantFacts
from kvcustody.policy.rules import Rule
from kvcustody.policy.terms import MODEL_FACTS, Condition, TermsReader
from kvcustody.policy.tooling.reach import Reach

MOVES = (Action.STORE, Action.LOAD)
"""Actions that use a tier."""


class Use(NamedTuple):
    """A way to use a tier."""

    tier: str
    action: Action


class _Grant(NamedTuple):
    use: Use
    denies: bool
    levels: frozenset[str]


class Capabilities:
    """Who may use which tier.

    Args:
        rules: checked rules.
        facts: what custody.yaml says of tenants and tiers.
        reach: who has which names.
        terms: reads rules' terms.

    """

    def __init__(
        self, rules: Iterable[Rule], facts: Facts, reach: Reach, terms: TermsReader
    ) -> None:
        self._facts = facts
        self._reach = reach
        self._terms = terms
        self._levels: dict[str, Condition] = {}
        self._own: dict[str, dict[_Grant, Rule]] = {}
        for rule in rules:
            if rule.kind == "p":
                own = self._own.setdefault(rule.fields[0], {})
                for grant in self._grants(rule):
                    own.setdefault(grant, rule)
        self._all: dict[str, Mapping[_Grant, Rule]] = {}

    def named_workloads(self) -> Iterator[str]:
        """The workloads that rules name."""
        names = dict.fromkeys((*self._own, *self._reach.members()))
        return (name for name in names if "/" in name and self._tenant(name) is not None)

    def uses(self, who: str) -> dict[Use, Rule]:
        """How a tenant or workload may use tiers, and a rule that allows it."""
        tenant = self._tenant(who)
        if tenant is None:
            return {}
        names = dict.fromkeys((who, who.partition("/")[0], EVERY_TENANT))
        holding = [
            (grant, rule)
            for name in names
            for grant, rule in self._grants_of(name).items()
            if self._holds(grant, tenant)
        ]
        denied = {grant.use for grant, _ in holding if grant.denies}
        found: dict[Use, Rule] = {}
        for grant, rule in holding:
            if not grant.denies and grant.use not in denied:
                context = Context(tenant, self._facts.tiers[grant.use.tier], UNKNOWN_MODEL)
                if cleared(context) is None:
                    found.setdefault(grant.use, rule)
        return found

    def _grants_of(self, name: str) -> Mapping[_Grant, Rule]:
        """What a name has, by itself and by its roles."""
        if name not in self._all:
            found = dict(self._own.get(name, {}))
            for role in self._reach.roles_of(name):
                for grant, rule in self._grants_of(role).items():
                    found.setdefault(grant, rule)
            self._all[name] = found
        return self._all[name]

    def _grants(self, rule: Rule) -> Iterator[_Grant]:
        _, _, selector, pattern, effect, when = rule.fields
        conditions = self._terms.read(when).conditions
        denies = effect == "deny"
        if denies and any(condition.fact in MODEL_FACTS for condition in conditions):
            return  # which leaves other models
        levels = [each for each in conditions if each.fact == "classification"]
        self._levels.update((each.text, each) for each in levels)
        for name in self._tiers(selector):
            context = Context(None, self._facts.tiers[name], UNKNOWN_MODEL)
            if all(each.holds(context) for each in conditions if each.fact == "region"):
                for action in MOVES:
                    if covers(pattern, action):
                        texts = frozenset(each.text for each in levels)
                        yield _Grant(Use(name, action), denies, texts)

    def _tiers(self, selector: str) -> Iterator[str]:
        for name, tier in self._facts.tiers.items():
            if selector in {ANYTHING, name} or tier.is_selected_by(selector):
                yield name

    def _holds(self, grant: _Grant, tenant: TenantFacts) -> bool:
        context = Context(tenant, self._facts.tiers[grant.use.tier], UNKNOWN_MODEL)
        return all(self._levels[text].holds(context) for text in grant.levels)

    def _tenant(self, who: str) -> TenantFacts | None:
        return self._facts.tenants.get(who.partition("/")[0])
