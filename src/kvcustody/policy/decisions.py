"""The answers of one policy version: compiled from its rules, looked up once they were given.

Casbin's `policies/model.conf` says what rules mean. This is the same meaning at the speed of a
dictionary: Casbin asks every rule for every request, here only a principal's own are asked, and
once. A property test holds the two against each other.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from kvcustody.identity.principal import Principal
from kvcustody.policy.facts import UNKNOWN_MODEL, Context, Facts, ModelFacts
from kvcustody.policy.permissions import CompiledRule, Permissions
from kvcustody.policy.roles import Roles
from kvcustody.policy.rules import Pause, Rule, RuleList, never_pause
from kvcustody.policy.terms import UNLIMITED, Condition, Limits, strictest

# Some MB; beyond it, those that were decided first are decided again.
_MOST_DECIDED = 65_536
# Of those about whom several questions are asked, one after the other.
_MOST_FOUND = 16

_Asking = TypeVar("_Asking")
_Answer = TypeVar("_Answer")

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
        self._rules = rules
        self._roles = Roles(rules, pause)
        self._unenforced = unenforced
        self._permissions = Permissions(rules, facts.classifications, pause)
        # Not functools.lru_cache: a version could not be freed before the next full collection.
        self._decided: OrderedDict[tuple[str, str, ModelFacts], Mapping[str, TierDecision]] = (
            OrderedDict()
        )
        self._shared: OrderedDict[tuple[str, str, str], Decision] = OrderedDict()
        self._found: OrderedDict[str, Sequence[CompiledRule]] = OrderedDict()

    def decide(
        self, principal: Principal, model: ModelFacts = UNKNOWN_MODEL
    ) -> Mapping[str, TierDecision]:
        """What the principal may do on each tier, by the tier's name."""
        asking = principal.tenant, principal.workload, model
        decided = self._decided.get(asking)
        if decided is None:
            decided = _keep(self._decided, asking, self._decide_tiers(*asking), _MOST_DECIDED)
        return decided

    def may_share(self, principal: Principal, group: str) -> Decision:
        """Whether the principal may use a sharing group's namespace.

        Args:
            principal: who asks.
            group: name of a sharing group of custody.yaml.

        """
        asking = principal.tenant, principal.workload, group
        decided = self._shared.get(asking)
        if decided is None:
            decided = _keep(self._shared, asking, self._decide_share(*asking), _MOST_DECIDED)
        return decided

    def answer(self, question: Question) -> Decision:
        """What the policy says, whether or not that is enforced."""
        return self._answer(question, self.rules_about(question.who))

    def _answer(self, question: Question, about: Iterable[CompiledRule]) -> Decision:
        context = context_of(question, self.facts)
        counting = [rule for rule in about if _mismatch(rule, question, context) is None]
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
        found = self._found.get(who)
        if found is None:
            names = self._roles.of({who, _tenant_of(who), EVERY_TENANT})
            found = _keep(self._found, who, self._permissions.of(names), _MOST_FOUND)
        return found

    def subjects(self) -> Iterator[str]:
        """All names that rules are about, or that have a role."""
        yield from dict.fromkeys((*self._permissions.subjects(), *self._roles.members()))

    def parts(self) -> Iterator[object]:
        """What it is made of, one by one.

        Freeing 50,000 rules in one go stops all threads for milliseconds. Whoever holds the parts
        while the last user lets go of the whole can free them little by little.
        """
        rules = self._rules
        yield from rules.parts() if isinstance(rules, RuleList) else rules
        yield from self._roles.parts()
        yield from self._permissions.parts()
        yield from list(self._decided.values())
        yield from list(self._decided)

    def _decide_tiers(
        self, tenant: str, workload: str, model: ModelFacts
    ) -> Mapping[str, TierDecision]:
        who = f"{tenant}/{workload}"
        # Of rules that say the same, the first speaks for all.
        alike: dict[tuple[str, ...], CompiledRule] = {}
        for rule in self.rules_about(who):
            alike.setdefault(rule.rule.fields[2:], rule)
        by_tier: dict[str, list[CompiledRule]] = {}
        for rule in alike.values():
            by_tier.setdefault(rule.tier, []).append(rule)

        def decide(tier: str, action: Action, about: Iterable[CompiledRule]) -> Decision:
            question = Question(who, tier, action, model)
            return self._enforced(tenant, question, self._answer(question, about))

        decided: dict[str, TierDecision] = {}
        for tier, facts in self.facts.tiers.items():
            names = (ANYTHING, tier, *facts.selectors())
            about = sorted(rule for name in names for rule in by_tier.get(name, ()))
            decided[tier] = TierDecision(
                decide(tier, Action.STORE, about), decide(tier, Action.LOAD, about)
            )
        return MappingProxyType(decided)

    def _decide_share(self, tenant: str, workload: str, group: str) -> Decision:
        # Always enforced: it is also about the others in the group.
        return self.answer(Question(f"{tenant}/{workload}", group, Action.SHARE))

    def _enforced(self, tenant: str, question: Question, decision: Decision) -> Decision:
        if decision.allowed or tenant not in self._unenforced:
            return decision
        if cleared(context_of(question, self.facts)) is not None:
            return decision  # what would lie there stays when rules are enforced one day
        return replace(decision, allowed=True, unenforced=True)


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
    if rule.tier != ANYTHING and rule.tier != question.tier:  # noqa: PLR1714 - twice as fast
        tier = context.tier
        if tier is None or not tier.is_selected_by(rule.tier):
            return Mismatch.TIER
    unmet = rule.terms.unmet(context)
    if unmet is not None:
        return unmet
    return None if rule.denies else cleared(context)


def _keep(
    answers: OrderedDict[_Asking, _Answer],
    asking: _Asking,
    answer: _Answer,
    most: int,
) -> _Answer:
    """Remember an answer, and of threads that found one at once, give all the first's."""
    kept = answers.setdefault(asking, answer)
    if len(answers) > most:
        answers.popitem(last=False)
    return kept
