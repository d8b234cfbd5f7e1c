"""What becomes of a request: a `Grant` has all that the hot path needs; a `Refusal` is served."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvcustody.identity.assertion import AssertionFailure
from kvcustody.identity.principal import Principal
from kvcustody.namespace import AdapterFailure
from kvcustody.policy import Decision, ModelFacts, SharingRefusal, TierDecision
from kvcustody.sealing import NamespaceKeys

_DENIED = TierDecision(store=Decision(False, None), load=Decision(False, None))


class RefusalReason(StrEnum):
    """Why an identified request gets no custody; see `AssertionFailure`, `AdapterFailure`, too."""

    UNKNOWN_TENANT = "unknown-tenant"
    WRONG_SALT = "wrong-salt"
    POLICY_DENIED = "policy-denied"
    AUDIT_UNAVAILABLE = "audit-unavailable"
    KEYS_UNAVAILABLE = "keys-unavailable"
    INTERNAL_ERROR = "internal-error"
    NO_SUBJECT = "no-subject"
    """Its tenant keeps a cache for each data subject, and it names none."""
    PREFIX_CACHE_ONLY = "prefix-cache-only"
    """Its endpoint has no place for an assertion; a salt ticket came instead."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that neither stores nor loads.

    Args:
        reason: why.
        salt: cache salt of the request's own scope, within which it may read the GPU prefix cache;
            `None` if that isn't known. Then it may read nothing, and its blocks need a salt that
            nobody else will have.

    """

    reason: AssertionFailure | RefusalReason | AdapterFailure | SharingRefusal
    salt: str | None = None

    @property
    def isolated(self) -> bool:
        """Whether the request may read the GPU prefix cache."""
        return self.salt is not None

    @property
    def cache_salt(self) -> str:
        """The salt that the engine must use."""
        return secrets.token_urlsafe(32) if self.salt is None else self.salt


@dataclass(frozen=True, slots=True)
class Grant:
    """What an admitted request may do, and the keys to do it with.

    Args:
        principal: whom the request acts for.
        request_id: the id that the audit trail knows the request by.
        engine_request_id: the engine's id; one request of a client may be several of the engine's.
        cache_salt: the salt that the engine must use.
        keys: the keys of the request's namespace.
        tiers: decisions by tier name.
        policy_version: version of the policy that decided.
        ttl: longest life of a block of this tenant in seconds; `None` leaves it to the tier.
        model: the model that was decided about.
        group: the sharing group whose namespace is used, if any.

    """

    principal: Principal
    request_id: str
    engine_request_id: str
    cache_salt: str
    keys: NamespaceKeys
    tiers: Mapping[str, TierDecision]
    policy_version: str
    ttl: float | None
    model: ModelFacts
    group: str | None

    def may_store(self, tier: str) -> bool:
        """Whether the request may store to a tier."""
        return self.tiers.get(tier, _DENIED).store.allowed

    def may_load(self, tier: str) -> bool:
        """Whether the request may load from a tier."""
        return self.tiers.get(tier, _DENIED).load.allowed

    def life_on(self, tier: str) -> float | None:
        """Longest life of a block on a tier in seconds; `None` leaves it to the tier."""
        lives = (self.ttl, self.tiers.get(tier, _DENIED).store.limits.ttl)
        return min((life for life in lives if life is not None), default=None)

    def audit_fields(self) -> dict[str, str]:
        """What every audit event of this request says."""
        return {
            "tenant": self.principal.tenant,
            "workload": self.principal.workload,
            "request_id": self.request_id,
            "policy_version": self.policy_version,
        }
