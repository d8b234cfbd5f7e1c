"""The answers of one policy version: compiled from its rules, looked up once they were given.

Casbin's `policies/model.conf` says what rules mean. This is the same meaning at the speed of a
dictionary: Casbin asks every rule for every request, here only a principal's own are asked, and
once. A property test holds the two against each other.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from kvcustody.identity.principal import Principal
from kvcustody.policy.facts import UNKNOWN_MODEL, Context, Facts, ModelFacts
from kvcustody.policy.roles import Roles
from kvcustody.policy.rules import Pause, Rule, in_slices, never_pause
from kvcustody.policy.terms import UNLIMITED, Condition, Limits, Terms, parse_terms, strictest

# Some MB; beyond it, a principal that was not seen for long is decided again.
_MOST_DECIDED = 65_536
# Of those about whom several questions are asked, one after the other.
_MOST_FOUND = 16

EVERY_TENANT = "*"
"""The subject of rules for every tenant; it may have no administrative ones."""
ANYTHING = "*"
"""The tier of rules for all tiers, and of an administrative question about all tenants."""


class Action(StrEnum):
    """What a principal does with a tier, a sharing group, or a tenant's data."""

    STORE = "store"
    LOAD = "load"
    SHARE = "share"
    SERVE_PEER = "serve-peer"
    ERASE = "erase"
    ROTATE = "rotate"
    AUDIT_READ = "audit-read"
    POLICY_WRITE = "policy-write"


SERVING_ACTIONS = frozenset({Action.STORE, Action.LOAD, Action.SHARE, Action.SERVE_PEER})
"""What `*` stands for; an administrative action must be named."""
TIER_ACTIONS = frozenset({Action.STORE, Action.LOAD, Action.SERVE_PEER})
"""Actions on a tier."""
ADMINISTRATIVE_ACTIONS = frozenset(Action) - SERVING_ACTIONS
"""Actions on a tenant's data."""


class Mismatch(Enum):
    """Why a rule has no say, beside a condition that doesn't hold."""

    ACTION = "another action"
    TIER = "another tier"
    CLASSIFICATION = "the tenant's data is classified above the tier's clearance"
    RESIDENCY = "the tenant's data may not lie in the tier's region"


class Question(NamedTuple):
    """What is asked.

    Args:
        who: a tenant, `TENANT/WORKLOAD`, or an operator `user:NAME`.
        tier: a tier, a sharing group or, for administrative actions, a tenant or `*`.
        action: what is to be done.
        model: the model of the request.

    """

    who: str
    tier: str
    action: Action
    model: ModelFacts = UNKNOWN_MODEL


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer.

    Args:
        allowed: whether the action may happen.
        rule: name of the rule that said so; `None`: no rule allows it.
        limits: what the permission is limited to.
        max_classification: the most sensitive level that may lie on the tier; `None`: no tier.
        unenforced: the policy denies it, but this tenant's decisions are not enforced.

    """

    allowed: bool
    rule: str | None
    limits: Limits = UNLIMITED
    max_classification: str | None = None
    unenforced: bool = False


@dataclass(frozen=True, slots=True)
class TierDecision:
    """A principal's decisions on one tier."""

    store: Decision
    load: Decision


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


class Decisions:
    """The answers of one policy version, immutable but for the cache of answers given.

    Args:
        rules: the policy's rules, checked.
        facts: what custody.yaml says of tenants and tiers.
        version: digest of model and policy.
        unenforced: tenants whose denials are recorded, not enforced.
        pause: called now and then while this is built.

    Raises:
        ValueError: a rule's terms can't be read.

    """

    def __init__(
        self,
        rules: Sequence[Rule],
        facts: Facts,
        version: str,
        unenforced: Container[str] = frozenset(),
        pause: Pause = never_pause,
    ) -> None:
        self.version = version
        self.facts = facts
        self._roles = Roles(rules, pause)
        self._unenforced = unenforced
        self._rules = _compile(rules, facts.classifications, pause)
        # Methods' own caches would keep every version for ever.
        self._decided = lru_cache(_MOST_DECIDED)(self._decide_tiers)
        self._shared = lru_cache(_MOST_DECIDED)(self._decide_share)
        self._about = lru_cache(_MOST_FOUND)(self._find_rules)

    def decide(
        self, principal: Principal, model: ModelFacts = UNKNOWN_MODEL
    ) -> Mapping[str, TierDecision]:
        """What the principal may do on each tier, by the tier's name."""
        return self._decided(principal.tenant, principal.workload, model)

    def may_share(self, principal: Principal, group: str) -> Decision:
        """Whether the principal may use a sharing group's namespace.

        Args:
            principal: who asks.
            group: name of a sharing group of custody.yaml.

        """
        return self._shared(principal.tenant, principal.workload, group)

    def answer(self, question: Question) -> Decision:
        """What the policy says, whether or not that is enforced."""
        context = context_of(question, self.facts)
        counting = [
            rule
            for rule in self.rules_about(question.who)
            if _mismatch(rule, question, context) is None
        ]
        denial = next((rule for rule in counting if rule.denies), None)
        level = None
        if context.tier is not None:
            level = self.facts.classifications[context.tier.clearance]
        if denial is not None:
            return Decision(False, denial.rule.name, max_classification=level)
        if not counting:
            return Decision(False, None, max_classification=level)
        limits = strictest(rule.terms.limits for rule in counting)
        return Decision(True, counting[0].rule.name, limits, level)

    def considered(
        self, question: Question
    ) -> Iterator[tuple[CompiledRule, Mismatch | Condition | None]]:
        """The rules about who asks, in order, and why each has no say (`None`: it has)."""
        context = context_of(question, self.facts)
        for rule in self.rules_about(question.who):
            yield rule, _mismatch(rule, question, context)

    def rules_about(self, who: str) -> Sequence[CompiledRule]:
        """The rules of who asks, of its tenant, of all their roles, and of every tenant."""
        return self._about(who)

    def subjects(self) -> Iterator[str]:
        """All names that rules are about, or that have a role."""
        yield from dict.fromkeys((*self._rules, *self._roles.members()))

    def _decide_tiers(
        self, tenant: str, workload: str, model: ModelFacts
    ) -> Mapping[str, TierDecision]:
        who = f"{tenant}/{workload}"
        return MappingProxyType(
            {
                tier: TierDecision(
                    store=self._enforced(tenant, Question(who, tier, Action.STORE, model)),
                    load=self._enforced(tenant, Question(who, tier, Action.LOAD, model)),
                )
                for tier in self.facts.tiers
            }
        )

    def _decide_share(self, tenant: str, workload: str, group: str) -> Decision:
        return self._enforced(tenant, Question(f"{tenant}/{workload}", group, Action.SHARE))

    def _enforced(self, tenant: str, question: Question) -> Decision:
        decision = self.answer(question)
        if decision.allowed or tenant not in self._unenforced:
            return decision
        return replace(decision, allowed=True, unenforced=True)

    def _find_rules(self, who: str) -> Sequence[CompiledRule]:
        names = self._roles.of({who, _tenant_of(who), EVERY_TENANT})
        return sorted(rule for name in names for rule in self._rules.get(name, ()))


def context_of(question: Question, facts: Facts) -> Context:
    """What a question is about beyond names; Casbin's `r.ctx`."""
    return Context(
        facts.tenants.get(_tenant_of(question.who)),
        facts.tiers.get(question.tier) if question.action in TIER_ACTIONS else None,
        question.model,
    )


def covers(pattern: str, action: str) -> bool:
    """Whether a rule's action takes in an action; Casbin's `covers`."""
    return pattern == action or (pattern == "*" and action in SERVING_ACTIONS)


def cleared(context: Context) -> Mismatch | None:
    """Why data may not lie on a tier, whatever rules say; Casbin's `cleared` is its absence."""
    tenant, tier, _ = context
    if tenant is None or tier is None:
        return None
    if tenant.classification > tier.clearance:
        return Mismatch.CLASSIFICATION
    if tenant.residency and (
        tier.region is None
        or not any(fnmatchcase(tier.region, pattern) for pattern in tenant.residency)
    ):
        return Mismatch.RESIDENCY
    return None


def _tenant_of(who: str) -> str:
    tenant, _, workload = who.partition("/")
    return who if "/" in workload else tenant


def _mismatch(
    rule: CompiledRule, question: Question, context: Context
) -> Mismatch | Condition | None:
    """Why a rule about who asks has no say; `None` if it has."""
    if not covers(rule.action, question.action):
        return Mismatch.ACTION
    if rule.tier not in {ANYTHING, question.tier}:
        tier = context.tier
        if tier is None or not tier.is_selected_by(rule.tier):
            return Mismatch.TIER
    unmet = rule.terms.unmet(context)
    if unmet is not None:
        return unmet
    return None if rule.denies else cleared(context)


def _compile(
    rules: Sequence[Rule], classifications: Sequence[str], pause: Pause
) -> dict[str, list[CompiledRule]]:
    """Each subject's permissions."""
    terms: dict[str, Terms] = {}
    compiled: dict[str, list[CompiledRule]] = {}
    for order, rule in enumerate(in_slices(rules, pause)):
        if rule.kind != "p":
            continue
        who, _, tier, action, effect, when = rule.fields
        if when not in terms:
            terms[when] = parse_terms(when, classifications)
        compiled.setdefault(who, []).append(
            CompiledRule(order, tier, action, effect == "deny", terms[when], rule)
        )
    return compiled
