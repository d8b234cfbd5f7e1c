"""What rules may ask about: the tenants, tiers and models that a decision concerns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvcustody.config.values import CLASSIFICATIONS

HOST_TIER = "host"
"""Name of the host-memory tier in policies and audit events."""
HOST_KIND = "memory"
"""Its kind."""


class ModelFacts(NamedTuple):
    """The model of a request; what isn't known matches no pattern.

    Args:
        name: the name that it is served under.
        revision: its revision.
        lora: name of the request's LoRA adapter; `None` without one.

    """

    name: str | None = None
    revision: str | None = None
    lora: str | None = None


UNKNOWN_MODEL = ModelFacts()
"""Where no model is known: in the gateway, and for administrative actions."""


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """A tenant's data.

    Args:
        classification: rank of its level, 0 for the least sensitive.
        residency: patterns of the regions where it may lie; empty: anywhere.

    """

    classification: int
    residency: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TierFacts:
    """A tier.

    Args:
        kind: such as `filesystem`; `memory` for host memory.
        labels: the operator's words for it.
        clearance: rank of the most sensitive level that may lie there.
        region: where it is; `None` if custody.yaml doesn't say.

    """

    kind: str
    clearance: int
    labels: frozenset[str] = frozenset()
    region: str | None = None

    def selectors(self) -> tuple[str, ...]:
        """How rules may name the tier, beside its name."""
        return (f"kind:{self.kind}", *(f"label:{label}" for label in sorted(self.labels)))

    def is_selected_by(self, selector: str) -> bool:
        """Whether `selector` is one of `selectors()`."""
        name, _, value = selector.partition(":")
        return value == self.kind if name == "kind" else name == "label" and value in self.labels


@dataclass(frozen=True, slots=True)
class Facts:
    """What custody.yaml says of all that rules name.

    Args:
        deployment: the domain of every request.
        tiers: by name, in lookup order, host memory first.
        tenants: by name.
        groups: names of the sharing groups.
        classifications: levels of data, the least sensitive first.

    """

    deployment: str
    tiers: Mapping[str, TierFacts]
    tenants: Mapping[str, TenantFacts]
    groups: tuple[str, ...] = ()
    classifications: tuple[str, ...] = CLASSIFICATIONS


class Context(NamedTuple):
    """What a decision is about beyond names; Casbin's `r.ctx`.

    Args:
        tenant: the tenant; `None` for somebody who is none.
        tier: the tier; `None` where the rule's object is no tier.
        model: the model.

    """

    tenant: TenantFacts | None
    tier: TierFacts | None
    model: ModelFacts
