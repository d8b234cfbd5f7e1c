"""What a policy comes to in a deployment: its decisions, and what custody.yaml adds to them."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvcustody.config import Settings
from kvcustody.policy.decisions import (
    ADMINISTRATIVE_ACTIONS,
    TIER_ACTIONS,
    Action,
    Decisions,
    Question,
    cleared,
    context_of,
)
from kvcustody.policy.loading import unenforced_tenants
from kvcustody.policy.terms import UNLIMITED, Limits

NOT_IN_GROUP = "custody.yaml doesn't have the tenant in the group"


@dataclass(frozen=True, slots=True)
class Obligations:
    """What an answer binds to; `None`: nothing.

    Args:
        ttl: longest life of a block in seconds: the shortest of rule, tenant and tier.
        quota: most bytes that the tenant may keep on the tier.
        max_classification: the most sensitive level that may lie on the tier.

    """

    ttl: float | None = None
    quota: int | None = None
    max_classification: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question comes to.

    Args:
        allowed: what the policy says.
        rule: name of the rule that said so; `None`: no rule allows it, or custody.yaml forbids it.
        enforced: whether a denial stops anything.
        obligations: what the answer binds to.
        limits: what of that rules demand.

    """

    allowed: bool
    rule: str | None
    enforced: bool = True
    obligations: Obligations = Obligations()
    limits: Limits = UNLIMITED

    @property
    def word(self) -> str:
        """`allow` or `deny`."""
        return "allow" if self.allowed else "deny"


@dataclass(frozen=True)
class Deployed:
    """What custody.yaml adds to decisions.

    Args:
        tenant_ttls: longest life of each tenant's blocks, where there is one.
        tier_ttls: longest life on each tier, where there is one.
        members: each sharing group's tenants.
        unenforced: tenants whose denials are recorded, not enforced.

    """

    tenant_ttls: Mapping[str, float]
    tier_ttls: Mapping[str, float]
    members: Mapping[str, frozenset[str]]
    unenforced: frozenset[str]


class Answers:
    """Answers questions as a deployment does.

    Args:
        decisions: what the policy says.
        deployed: what custody.yaml adds.

    """

    def __init__(self, decisions: Decisions, deployed: Deployed) -> None:
        self.decisions = decisions
        self.deployed = deployed

    def is_enforced(self, question: Question) -> bool:
        """Whether a denial of what is asked stops anything."""
        if question.action == Action.SHARE or question.action in ADMINISTRATIVE_ACTIONS:
            return True
        if cleared(context_of(question, self.decisions.facts)) is not None:
            return True
        return question.who.partition("/")[0] not in self.deployed.unenforced

    def is_outside(self, question: Question) -> bool:
        """Whether it is about a sharing group that custody.yaml doesn't have the tenant in."""
        if question.action != Action.SHARE:
            return False
        tenant = question.who.partition("/")[0]
        return tenant not in self.deployed.members.get(question.tier, ())

    def answer(self, question: Question) -> Answer:
        """What the question comes to."""
        enforced = self.is_enforced(question)
        if self.is_outside(question):
            return Answer(allowed=False, rule=None)  # which no mode lets through
        decision = self.decisions.answer(question)
        level = decision.max_classification
        if not decision.allowed:
            obligations = Obligations(max_classification=level)
            return Answer(False, decision.rule, enforced, obligations)
        lives = [decision.limits.ttl]
        if question.action in TIER_ACTIONS:
            lives += [
                self.deployed.tenant_ttls.get(question.who.partition("/")[0]),
                self.deployed.tier_ttls.get(question.tier),
            ]
        ttl = min((life for life in lives if life is not None), default=None)
        obligations = Obligations(ttl, decision.limits.quota, level)
        return Answer(True, decision.rule, enforced, obligations, decision.limits)


def deployed_by(settings: Settings) -> Deployed:
    """What custody.yaml adds to decisions."""
    return Deployed(
        {name: each.ttl for name, each in settings.tenants.items() if each.ttl is not None},
        {tier.name: tier.ttl for tier in settings.tiers},
        {entry.group: frozenset(entry.tenants) for entry in settings.sharing},
        unenforced_tenants(settings),
    )
