"""Whom a policy's rules reach: the tenants that have a role, and what each name may do."""

from collections.abc import Iterable, Mapping, Sequence

from kvcustody.policy.decisions import EVERY_TENANT
from kvcustody.policy.facts import Facts, TenantFacts
from kvcustody.policy.rules import Rule

Profiles = Mapping[TenantFacts, str]
"""What the tenants that have a name are like; for each kind of tenant, the first one's name."""

# Closest first. A tenant with more roles costs time, and what we miss is a warning.
_MOST_ROLES = 64


class Reach:
    """Who has which names. All walks are memoised, so all of them together cost one pass.

    Args:
        rules: checked rules: no circles, and not nested too deeply.
        facts: what custody.yaml says of tenants.

    """

    def __init__(self, rules: Iterable[Rule], facts: Facts) -> None:
        self._facts = facts
        self._roles: dict[str, list[str]] = {}
        self._members: dict[str, list[str]] = {}
        for rule in rules:
            if rule.kind == "g":
                member, role = rule.fields[:2]
                self._roles.setdefault(member, []).append(role)
                self._members.setdefault(role, []).append(member)
        self._profiles: dict[str, Profiles] = {}

    def roles_of(self, name: str) -> Sequence[str]:
        """The roles that a name has itself."""
        return self._roles.get(name, ())

    def members(self) -> Iterable[str]:
        """All names that have a role."""
        return self._roles.keys()

    def above(self, name: str) -> list[str]:
        """Other names whose rules count for whoever has a name, the closest first.

        Some are left out where there are very many.
        """
        tenant = name.partition("/")[0]
        found = dict.fromkeys((name, EVERY_TENANT, tenant))
        waiting = [name, tenant]
        for each in waiting:
            for role in self.roles_of(each):
                if len(found) < _MOST_ROLES and role not in found:
                    found[role] = None
                    waiting.append(role)
        del found[name]
        return list(found)

    def profiles(self, name: str) -> Profiles:
        """What the tenants are like for whom a rule with this subject counts; empty: none."""
        if name not in self._profiles:
            found: dict[TenantFacts, str] = {}
            if name == EVERY_TENANT:
                for tenant, facts in self._facts.tenants.items():
                    found.setdefault(facts, tenant)
            own = self._facts.tenants.get(name.partition("/")[0])
            if own is not None:
                found[own] = name
            for member in self._members.get(name, ()):
                for facts, tenant in self.profiles(member).items():
                    found.setdefault(facts, tenant)
            self._profiles[name] = found
        return self._profiles[name]
