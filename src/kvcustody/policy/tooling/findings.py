"""What is allowed in a policy, and probably not what its author meant."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvcustody.config.places import Location, Places
from kvcustody.policy.decisions import (
    ANYTHING,
    EVERY_TENANT,
    TIER_ACTIONS,
    Mismatch,
    cleared,
    covers,
)
from kvcustody.policy.facts import HOST_TIER, UNKNOWN_MODEL, Context, Facts, TierFacts
from kvcustody.policy.rules import Rule
from kvcustody.policy.spelling import some_of
from kvcustody.policy.terms import MODEL_FACTS, Terms, TermsReader
from kvcustody.policy.tooling.capabilities import MOVES, Capabilities
from kvcustody.policy.tooling.reach import Reach
from kvcustody.policy.tooling.subsumption import UselessRules


class FindingKind(StrEnum):
    """What kind of thing was found."""

    REPEATED = "repeated"
    NO_EFFECT = "no-effect"
    UNUSED_ROLE = "unused-role"
    TENANT_WITHOUT_RULE = "tenant-without-rule"
    UNUSED_TIER = "unused-tier"
    TIER_WITHOUT_HOST = "tier-without-host"
    WIDER_THAN_CLEARANCE = "wider-than-clearance"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at.

    Args:
        kind: what kind of thing.
        message: what it is.
        file: where it stands; `None` if the settings came from no file.
        line: the 1-based line.

    """

    kind: FindingKind
    message: str
    file: Path | None
    line: int

    def __str__(self) -> str:
        place = "" if self.file is None else f"{self.file}:{self.line}: "
        return f"{place}{self.message}"


def find_warnings(rules: Sequence[Rule], facts: Facts, places: Places) -> list[Finding]:
    """What to look at in a policy without errors; the policy's lines first, then custody.yaml's.

    Args:
        rules: checked rules.
        facts: what custody.yaml says of tenants and tiers.
        places: where custody.yaml says it.

    """
    reach = Reach(rules, facts)
    terms = TermsReader(facts.classifications)
    capabilities = Capabilities(rules, facts, reach, terms)
    found = [
        *_useless(rules, facts, reach, terms),
        *_unused_roles(rules, reach),
        *_without_host(facts, capabilities),
        *_wider_than_clearance(rules, facts, reach, terms),
        *_quotas(rules, terms),
    ]
    found.sort(key=lambda each: each.line)
    found += _left_out_tenants(rules, facts, reach, places)
    found += _unused_tiers(facts, capabilities, places)
    return found


def _useless(
    rules: Sequence[Rule], facts: Facts, reach: Reach, terms: TermsReader
) -> Iterator[Finding]:
    for rule, other in UselessRules(facts, reach, terms).find(rules):
        if (rule.kind, rule.fields) == (other.kind, other.fields):
            yield _about(rule, FindingKind.REPEATED, f"is written on line {other.line}, too")
            continue
        effects = (rule.fields[4], other.fields[4])
        reason = {
            ("allow", "deny"): "denies all of it",
            ("allow", "allow"): "allows it, too, and limits it as much",
            ("deny", "deny"): "denies it, too",
        }[effects]
        message = f"never has an effect: {other.name} {reason} ({other.text})"
        yield _about(rule, FindingKind.NO_EFFECT, message)


def _unused_roles(rules: Sequence[Rule], reach: Reach) -> Iterator[Finding]:
    used = _Used(rules, reach)
    for rule in rules:
        if rule.kind == "g" and not used.by_rules(rule.fields[1]):
            yield _about(
                rule, FindingKind.UNUSED_ROLE, f"no p line is about the role '{rule.fields[1]}'"
            )


def _without_host(facts: Facts, capabilities: Capabilities) -> Iterator[Finding]:
    stuck: dict[tuple[str, int], tuple[Rule, str, list[str]]] = {}
    for who in (*facts.tenants, *capabilities.named_workloads()):
        uses = capabilities.uses(who)
        through_host = {use.action for use in uses if use.tier == HOST_TIER}
        for use, rule in uses.items():
            if use.action not in through_host:
                entry = stuck.setdefault((use.tier, rule.line), (rule, use.tier, []))
                if not {who, who.partition("/")[0]}.intersection(entry[2][-1:]):
                    entry[2].append(who)
    for rule, tier, names in stuck.values():
        yield _about(
            rule,
            FindingKind.TIER_WITHOUT_HOST,
            f"is for '{tier}', and {some_of(names)} may not do it on '{HOST_TIER}', through which "
            "everything goes",
        )


def _wider_than_clearance(
    rules: Sequence[Rule], facts: Facts, reach: Reach, terms: TermsReader
) -> Iterator[Finding]:
    """Permissions that name a tier for data that may not lie there.

    One for all tiers, or for every tenant, leaves it to clearances on purpose.
    """
    for rule in rules:
        if rule.kind != "p" or rule.fields[4] == "deny":
            continue
        who, _, selector, action, _, when = rule.fields
        if who == EVERY_TENANT or selector == ANYTHING:
            continue
        if not any(covers(action, each) for each in TIER_ACTIONS):
            continue
        for name, tier in facts.tiers.items():
            if name == selector or tier.is_selected_by(selector):
                for mismatch, tenant in _uncleared(who, tier, terms.read(when), reach).items():
                    message = f"'{tenant}' may not use '{name}' all the same: {mismatch.value}"
                    yield _about(rule, FindingKind.WIDER_THAN_CLEARANCE, message)


def _uncleared(who: str, tier: TierFacts, terms: Terms, reach: Reach) -> Mapping[Mismatch, str]:
    """Why data may not lie on a tier, and the first tenant of whom that is so."""
    found: dict[Mismatch, str] = {}
    for facts, tenant in reach.profiles(who).items():
        context = Context(facts, tier, UNKNOWN_MODEL)
        mismatch = cleared(context)
        if mismatch is not None and all(
            each.fact in MODEL_FACTS or each.holds(context) for each in terms.conditions
        ):
            found.setdefault(mismatch, tenant)
    return found


def _quotas(rules: Sequence[Rule], terms: TermsReader) -> Iterator[Finding]:
    for rule in rules:
        if rule.kind == "p" and "quota" in rule.fields[5]:
            if terms.read(rule.fields[5]).limits.quota is None:
                continue
            message = "quotas are recorded with decisions; tiers don't enforce them yet"
            yield _about(rule, FindingKind.QUOTA, message)
            return


def _left_out_tenants(
    rules: Sequence[Rule], facts: Facts, reach: Reach, places: Places
) -> Iterator[Finding]:
    used = _Used(rules, reach)
    if used.by_rules(EVERY_TENANT):
        return
    concerned = {name.partition("/")[0] for name in used.names() if used.by_rules(name)}
    for tenant in facts.tenants:
        if tenant not in concerned:
            yield _in_settings(
                places,
                ("tenants", tenant),
                FindingKind.TENANT_WITHOUT_RULE,
                f"no rule is about tenant '{tenant}', who may do nothing",
            )


def _unused_tiers(facts: Facts, capabilities: Capabilities, places: Places) -> Iterator[Finding]:
    used: set[str] = set()
    for who in (*facts.tenants, *capabilities.named_workloads()):
        used.update(use.tier for use in capabilities.uses(who))
        if len(used) == len(facts.tiers):
            return
    for index, tier in enumerate(facts.tiers):
        if tier not in used:
            # Host memory comes first, and has a section of its own.
            place: Location = ("host",) if tier == HOST_TIER else ("tiers", index - 1)
            moves = " or ".join(action.value for action in MOVES)
            yield _in_settings(
                places, place, FindingKind.UNUSED_TIER, f"nobody may {moves} on tier '{tier}'"
            )


class _Used:
    """Which names permissions are about, directly or through roles."""

    def __init__(self, rules: Sequence[Rule], reach: Reach) -> None:
        self._reach = reach
        self._used = {rule.fields[0]: True for rule in rules if rule.kind == "p"}

    def names(self) -> list[str]:
        """All names that rules have as subject or member."""
        return [*self._used, *self._reach.members()]

    def by_rules(self, name: str) -> bool:
        """Whether a permission counts for whoever has the name."""
        if name not in self._used:
            self._used[name] = any(self.by_rules(role) for role in self._reach.roles_of(name))
        return self._used[name]


def _about(rule: Rule, kind: FindingKind, message: str) -> Finding:
    return Finding(kind, message, rule.file, rule.line)


def _in_settings(places: Places, location: Location, kind: FindingKind, message: str) -> Finding:
    return Finding(kind, message, places.file, places.line(location))
