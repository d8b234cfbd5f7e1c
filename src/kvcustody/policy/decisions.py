"""Casbin decides once per principal and policy version; afterwards the answer is looked up."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import casbin

from kvcustody.identity.principal import Principal


class Action(StrEnum):
    """What a principal does with a tier or, to share, with a sharing group."""

    STORE = "store"
    LOAD = "load"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an action is allowed, and the rule that said so (`None`: no rule allows it)."""

    allowed: bool
    rule: str | None


@dataclass(frozen=True, slots=True)
class TierDecision:
    """A principal's decisions on one tier."""

    store: Decision
    load: Decision


class Decisions:
    """The answers of one policy version, immutable but for the cache of answers given.

    Args:
        enforcer: Casbin enforcer that holds the model and the rules.
        rule_names: name of each rule, by its fields as Casbin reports them.
        version: digest of model and policy.
        deployment: the domain of every request.
        tiers: names of all tiers, host memory included.

    """

    def __init__(
        self,
        enforcer: casbin.Enforcer,
        *,
        rule_names: Mapping[tuple[str, ...], str],
        version: str,
        deployment: str,
        tiers: Sequence[str],
    ) -> None:
        self.version = version
        self._enforcer = enforcer
        self._rule_names = rule_names
        self._deployment = deployment
        self._tiers = tuple(tiers)
        self._decided: dict[tuple[str, str], Mapping[str, TierDecision]] = {}
        self._shared: dict[tuple[str, str, str], Decision] = {}
        # Guards the enforcer, whose role graph grows with each new workload.
        self._lock = threading.Lock()

    def decide(self, principal: Principal) -> Mapping[str, TierDecision]:
        """What the principal may do on each tier, by the tier's name.

        A principal's first call asks Casbin (0.2 ms or more for each answer); later ones are a
        dictionary look-up.
        """
        who = (principal.tenant, principal.workload)
        decided = self._decided.get(who)
        if decided is None:
            decided = self._decided[who] = self._ask(*who)
        return decided

    def may_share(self, principal: Principal, group: str) -> Decision:
        """Whether the principal may use a sharing group's namespace; costs what `decide` costs.

        Args:
            principal: who asks.
            group: name of a sharing group of custody.yaml.

        """
        who = (principal.tenant, principal.workload, group)
        decision = self._shared.get(who)
        if decision is None:
            with self._lock:
                subject = self._subject(principal.tenant, principal.workload)
                decision = self._enforce(subject, group, Action.SHARE)
            self._shared[who] = decision
        return decision

    def _ask(self, tenant: str, workload: str) -> Mapping[str, TierDecision]:
        with self._lock:
            subject = self._subject(tenant, workload)
            return MappingProxyType(
                {
                    tier: TierDecision(
                        store=self._enforce(subject, tier, Action.STORE),
                        load=self._enforce(subject, tier, Action.LOAD),
                    )
                    for tier in self._tiers
                }
            )

    def _subject(self, tenant: str, workload: str) -> str:
        """How rules name a workload, which has whatever its tenant has."""
        subject = f"{tenant}/{workload}"
        self._enforcer.add_named_grouping_policy("g", subject, tenant, self._deployment)
        return subject

    def _enforce(self, subject: str, tier: str, action: Action) -> Decision:
        allowed, rule = self._enforcer.enforce_ex(subject, self._deployment, tier, action.value)
        return Decision(allowed=bool(allowed), rule=self._rule_names.get(tuple(rule)))
