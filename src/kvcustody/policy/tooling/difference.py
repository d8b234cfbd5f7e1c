"""Which answers change from one policy to another.

A change is left out where it follows from one that is there: a workload's that is its tenant's, a
model's that is the unknown model's, a tenant's that is all tenants'. What stays although the change
it would follow from says otherwise is an exception, and there, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, product

from kvcustody.operating_user import OPERATOR_FORM
from kvcustody.policy.decisions import (
    ADMINISTRATIVE_ACTIONS,
    ANYTHING,
    EVERY_TENANT,
    SERVING_ACTIONS,
    TIER_ACTIONS,
    Action,
    Question,
)
from kvcustody.policy.facts import ModelFacts
from kvcustody.policy.permissions import CompiledRule
from kvcustody.policy.tooling.answers import Answer, Answers
from kvcustody.policy.tooling.model_samples import sample_models

_DENIED = Answer(allowed=False, rule=None)
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Change:
    """A question, and both answers.

    Args:
        question: what is asked.
        old: what it came to.
        new: what it comes to.

    """

    question: Question
    old: Answer
    new: Answer

    @property
    def effect(self) -> object:
        """What is different; `None` if nothing is, whichever rules say so."""
        action = self.question.action
        old, new = _outcome(action, self.old), _outcome(action, self.new)
        return None if old == new else (old, new)


@dataclass
class Difference:
    """What is different.

    Args:
        changes: answers that change.
        exceptions: answers that stay, unlike those around them.
        complete: whether models were asked about in every combination that rules tell apart.

    """

    changes: list[Change] = field(default_factory=list)
    exceptions: list[Change] = field(default_factory=list)
    complete: bool = True


def find_difference(old: Answers, new: Answers) -> Difference:
    """Compare two policies, each in its deployment."""
    return _Comparison(old, new).run()


class _Comparison:
    """One comparison.

    Args:
        old: one side.
        new: the other.

    """

    def __init__(self, old: Answers, new: Answers) -> None:
        self._old, self._new = old, new
        self._found = Difference()
        facts = (old.decisions.facts, new.decisions.facts)
        tiers = dict.fromkeys(chain(*(each.tiers for each in facts)))
        groups = dict.fromkeys(chain(*(each.groups for each in facts)))
        self._objects = [
            *product(tiers, sorted(TIER_ACTIONS)),
            *product(groups, [Action.SHARE]),
        ]
        self._same_tiers = (
            facts[0].tiers == facts[1].tiers
            and facts[0].classifications == facts[1].classifications
            and old.deployed.tier_ttls == new.deployed.tier_ttls
        )
        self._compare = lru_cache(_REMEMBERED)(self._compare_answers)

    def run(self) -> Difference:
        """All differences, tenant by tenant, then operators."""
        for tenant, workloads in self._tenants().items():
            tenant_differs = self._may_differ(tenant)
            for who in (tenant, *workloads):
                # A workload that stays as it is may be an exception.
                if tenant_differs or self._may_differ(who):
                    self._serving(who, tenant)
                    self._administrative(who)
        for operator in self._operators():
            if self._may_differ(operator):
                own = (rule for rule in self._rules(operator) if _is_own(rule))
                if any(rule.action in {*SERVING_ACTIONS, ANYTHING} for rule in own):
                    self._serving(operator, operator)
                self._administrative(operator)
        return self._found

    def _tenants(self) -> dict[str, list[str]]:
        """All tenants, with the workloads that rules name."""
        found: dict[str, list[str]] = {}
        for side in (self._old, self._new):
            for tenant in side.decisions.facts.tenants:
                found.setdefault(tenant, [])
        for name in self._names():
            tenant, slash, _ = name.partition("/")
            if slash and tenant in found:
                found[tenant].append(name)
        return found

    def _operators(self) -> Iterator[str]:
        return (name for name in self._names() if OPERATOR_FORM.fullmatch(name))

    def _names(self) -> dict[str, None]:
        return dict.fromkeys(chain(self._old.decisions.subjects(), self._new.decisions.subjects()))

    def _may_differ(self, who: str) -> bool:
        """Whether it is worth to ask: most tenants' rules stay as they are."""
        if not self._same_tiers:
            return True
        return _signature(self._old, who) != _signature(self._new, who)

    def _rules(self, who: str) -> list[CompiledRule]:
        return [*self._old.decisions.rules_about(who), *self._new.decisions.rules_about(who)]

    def _serving(self, who: str, tenant: str) -> None:
        samples = sample_models(rule.terms for rule in self._rules(who))
        self._found.complete = self._found.complete and samples.complete
        for tier, action in self._objects:
            general = self._compare(Question(who, tier, action))
            of_tenant = self._compare(general.question._replace(who=tenant))
            # A tenant's own answer has nothing to follow from.
            self._list(general, [] if who == tenant else [of_tenant])
            is_as_its_tenants = who != tenant and general.effect == of_tenant.effect
            for model in samples.models if action in TIER_ACTIONS else ():
                change = self._compare(general.question._replace(model=model))
                if is_as_its_tenants:
                    above = [change.question._replace(who=tenant)]
                else:
                    above = [change.question._replace(model=each) for each in _vaguer(model)]
                self._list(change, [self._compare(question) for question in above])

    def _administrative(self, who: str) -> None:
        rules = [rule for rule in self._rules(who) if rule.action in ADMINISTRATIVE_ACTIONS]
        if not rules:
            return
        # Other tenants' answers are those for all.
        tenants = dict.fromkeys(rule.tier for rule in rules if rule.tier != ANYTHING)
        for action in sorted(ADMINISTRATIVE_ACTIONS):
            general = self._compare(Question(who, ANYTHING, action))
            self._list(general, [])
            for tenant in tenants:
                self._list(self._compare(Question(who, tenant, action)), [general])

    def _list(self, change: Change, above: Sequence[Change]) -> None:
        """Take a change, or an exception, unless it follows from those above it."""
        expected = {each.effect for each in above} or {None}
        if expected == {change.effect}:
            return
        if change.effect is not None:
            self._found.changes.append(change)
        elif any(_misleads(each, change) for each in above):
            self._found.exceptions.append(change)

    def _compare_answers(self, question: Question) -> Change:
        return Change(question, _answer(self._old, question), _answer(self._new, question))


def _outcome(action: Action, answer: Answer) -> object:
    if not answer.allowed:
        return answer.enforced
    # Only what is stored has a life and takes room.
    limits = (answer.obligations.ttl, answer.obligations.quota) if action == Action.STORE else None
    return ("allowed", limits)


def _answer(answers: Answers, question: Question) -> Answer:
    """The answer of one side, which may not know who asks or the tier: then nobody may."""
    facts = answers.decisions.facts
    tenant = question.who.partition("/")[0]
    if tenant not in facts.tenants and not OPERATOR_FORM.fullmatch(question.who):
        return _DENIED
    if question.action in ADMINISTRATIVE_ACTIONS:
        known = question.tier == ANYTHING or question.tier in facts.tenants
    elif question.action == Action.SHARE:
        known = question.tier in facts.groups
    else:
        known = question.tier in facts.tiers
    return answers.answer(question) if known else _DENIED


def _misleads(above: Change, staying: Change) -> bool:
    """Whether one would think that an answer changes, too, and be wrong about what it is then."""
    action = staying.question.action
    if above.effect is None or _outcome(action, above.new) == _outcome(action, staying.new):
        return False
    return staying.new.allowed or above.old.allowed != above.new.allowed


def _vaguer(model: ModelFacts) -> list[ModelFacts]:
    """The model, with one thing less known of it."""
    known = [name for name, value in zip(model._fields, model, strict=True) if value is not None]
    return [model._replace(**{name: None}) for name in known]


def _is_own(rule: CompiledRule) -> bool:
    return rule.rule.fields[0] != EVERY_TENANT


def _signature(answers: Answers, who: str) -> object:
    """All that the answers for one depend on, beside tiers; sides with the same one agree."""
    deployed = answers.deployed
    tenant = who.partition("/")[0]
    return (
        answers.decisions.facts.tenants.get(tenant),
        deployed.tenant_ttls.get(tenant),
        tenant in deployed.unenforced,
        {group for group, members in deployed.members.items() if tenant in members},
        {
            (rule.tier, rule.action, rule.denies, rule.rule.fields[-1])
            for rule in answers.decisions.rules_about(who)
        },
    )
