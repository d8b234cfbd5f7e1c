"""Admission: a request's way through identity, policy and namespace, walked once when it arrives.

The outcome is a value. A `Grant` carries all that the hot path needs; a `Refusal` means that the
request is served, but neither stores nor loads.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvcustody.audit import AuditLog
from kvcustody.config import TenantSettings
from kvcustody.errors import CustodyError
from kvcustody.identity.assertion import (
    ASSERTION_PARAMETER,
    AssertionFailure,
    AssertionVerifier,
    Verified,
)
from kvcustody.identity.principal import Principal
from kvcustody.namespace import AdapterFailure, Namespace, Scope
from kvcustody.policy import Decision, Decisions, TierDecision
from kvcustody.sealing import Keyring, NamespaceKeys
from kvcustody.sealing.providers import WrappedKeyError

HOST_TIER = "host"
"""Name of the host-memory tier in policies and audit events."""

# Long enough that a registry that is away costs almost no request its time.
_KEYS_RETRY_SECONDS = 5.0
# A local provider takes hundredths, on a busy disk tenths; at most one such wait in the time above.
_KEYS_PATIENCE_SECONDS = 1.0

logger = logging.getLogger(__name__)

_DENIED = TierDecision(store=Decision(False, None), load=Decision(False, None))


class RefusalReason(StrEnum):
    """Why an identified request gets no custody; see `AssertionFailure`, `AdapterFailure`, too."""

    UNKNOWN_TENANT = "unknown-tenant"
    WRONG_SALT = "wrong-salt"
    POLICY_DENIED = "policy-denied"
    AUDIT_UNAVAILABLE = "audit-unavailable"
    KEYS_UNAVAILABLE = "keys-unavailable"
    INTERNAL_ERROR = "internal-error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that neither stores nor loads.

    Args:
        reason: why.
        isolated: whether the request's cache salt is known to be its own scope's, so that it may
            read the GPU prefix cache.

    """

    reason: AssertionFailure | RefusalReason | AdapterFailure
    isolated: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """What an admitted request may do, and the keys to do it with.

    Args:
        principal: whom the request acts for.
        request_id: the id that the audit trail knows the request by.
        engine_request_id: the engine's id; one request of a client may be several of the engine's.
        keys: the keys of the request's namespace.
        tiers: decisions by tier name.
        policy_version: version of the policy that decided.
        ttl: longest life of a block of this tenant in seconds; `None` leaves it to the tier.

    """

    principal: Principal
    request_id: str
    engine_request_id: str
    keys: NamespaceKeys
    tiers: Mapping[str, TierDecision]
    policy_version: str
    ttl: float | None

    def may_store(self, tier: str) -> bool:
        """Whether the request may store to a tier."""
        return self.tiers.get(tier, _DENIED).store.allowed

    def may_load(self, tier: str) -> bool:
        """Whether the request may load from a tier."""
        return self.tiers.get(tier, _DENIED).load.allowed

    def audit_fields(self) -> dict[str, str]:
        """What every audit event of this request says."""
        return {
            "tenant": self.principal.tenant,
            "workload": self.principal.workload,
            "request_id": self.request_id,
            "policy_version": self.policy_version,
        }


class Admission:
    """Admits requests.

    Args:
        verifier: checks the gateway's assertions.
        decisions: the policy in force.
        keyring: gives namespaces their keys.
        audit: told the outcome of each request.
        tenants: the tenants of custody.yaml.
        deployment: name of the deployment.
        model_revision: revision of the model that is served.
        layout: hex digest of the engine's KV layout.
        salt_key: the deployment's cache-salt key, 32 bytes.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        *,
        verifier: AssertionVerifier,
        decisions: Decisions,
        keyring: Keyring,
        audit: AuditLog,
        tenants: Mapping[str, TenantSettings],
        deployment: str,
        model_revision: str,
        layout: str,
        salt_key: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._keys_retry_at = float("-inf")
        self._keys_patient_at = float("-inf")
        self._verifier = verifier
        self._decisions = decisions
        self._keyring = keyring
        self._audit = audit
        self._tenants = tenants
        self._deployment = deployment
        self._model_revision = model_revision
        self._layout = layout
        self._salt_key = salt_key

    def admit(
        self,
        parameters: object,
        *,
        engine_request_id: str,
        cache_salt: str | None,
        adapter: str | AdapterFailure | None,
    ) -> Grant | Refusal:
        """Decide what a request may do; audited either way; never raises.

        Args:
            parameters: the request's `kv_transfer_params`, believed in nothing.
            engine_request_id: the engine's id for it.
            cache_salt: the salt that the engine mixes into its block hashes.
            adapter: revision of its LoRA adapter, or why that isn't known; `None` without one.

        """
        try:
            return self._admit(parameters, engine_request_id, cache_salt, adapter=adapter)
        except Exception:
            # It would end the engine for all tenants; a request without custody ends nobody.
            logger.exception("Admission failed; the request is served without custody")
            refusal = Refusal(RefusalReason.INTERNAL_ERROR, isolated=False)
            return self._refuse(refusal, None, engine_request_id)

    def _admit(
        self,
        parameters: object,
        engine_request_id: str,
        cache_salt: str | None,
        *,
        adapter: str | AdapterFailure | None,
    ) -> Grant | Refusal:
        presented = parameters.get(ASSERTION_PARAMETER) if isinstance(parameters, dict) else None
        verified = self._verifier.verify(
            presented, request_id=engine_request_id, cache_salt=cache_salt
        )
        if isinstance(verified, AssertionFailure):
            return self._refuse(Refusal(verified, isolated=False), None, engine_request_id)
        principal, request_id = verified.principal, verified.request_id
        outcome = self._decide(verified, engine_request_id, cache_salt, adapter=adapter)
        if isinstance(outcome, Refusal):
            return self._refuse(outcome, principal, request_id)
        self._audit.record(
            "request.admitted",
            **outcome.audit_fields(),
            action="admit",
            outcome="admitted",
            namespace=outcome.keys.identifier.hex(),
            adapter=adapter,
            **_describe(outcome.tiers),
        )
        return outcome

    def _decide(
        self,
        verified: Verified,
        engine_request_id: str,
        cache_salt: str | None,
        *,
        adapter: str | AdapterFailure | None,
    ) -> Grant | Refusal:
        principal = verified.principal
        tenant = self._tenants.get(principal.tenant)
        if tenant is None:
            return Refusal(RefusalReason.UNKNOWN_TENANT, isolated=False)
        scope = Scope.of(principal, self._deployment, tenant.scope)
        if cache_salt != scope.cache_salt(self._salt_key):
            return Refusal(RefusalReason.WRONG_SALT, isolated=False)
        if isinstance(adapter, AdapterFailure):
            # The GPU prefix cache may hold blocks of another content under the adapter's name.
            return Refusal(adapter, isolated=False)
        if not self._audit.accepting:
            return Refusal(RefusalReason.AUDIT_UNAVAILABLE, isolated=True)
        tiers = self._decisions.decide(principal)
        host = tiers.get(HOST_TIER, _DENIED)
        if not (host.store.allowed or host.load.allowed):
            return Refusal(RefusalReason.POLICY_DENIED, isolated=True)
        keys = self._keys(Namespace(scope, self._model_revision, self._layout, adapter))
        if isinstance(keys, RefusalReason):
            return Refusal(keys, isolated=True)
        return Grant(
            principal,
            verified.request_id,
            engine_request_id,
            keys,
            tiers,
            self._decisions.version,
            tenant.ttl,
        )

    def _keys(self, namespace: Namespace) -> NamespaceKeys | RefusalReason:
        """A namespace's keys, if they are or come soon.

        After a failure nothing is asked for a while, and while keys are slow to come nobody waits
        for them: the scheduler's time is all requests' time.
        """
        now = self._clock()
        if now < self._keys_retry_at and not self._keyring.holds(namespace):
            return RefusalReason.KEYS_UNAVAILABLE
        patience = 0.0 if now < self._keys_patient_at else _KEYS_PATIENCE_SECONDS
        try:
            keys = self._keyring.namespace_keys_within(namespace, patience)
        except WrappedKeyError:
            return RefusalReason.KEYS_UNAVAILABLE  # this namespace's trouble and nobody else's
        except CustodyError:
            self._keys_retry_at = self._clock() + _KEYS_RETRY_SECONDS
            return RefusalReason.KEYS_UNAVAILABLE
        if keys is None:
            if patience:
                self._keys_patient_at = self._clock() + _KEYS_RETRY_SECONDS
            return RefusalReason.KEYS_UNAVAILABLE
        return keys

    def _refuse(self, refusal: Refusal, principal: Principal | None, request_id: str) -> Refusal:
        self._audit.record(
            "request.ungoverned",
            tenant=principal.tenant if principal else None,
            workload=principal.workload if principal else None,
            request_id=request_id,
            policy_version=self._decisions.version,
            action="admit",
            outcome="ungoverned",
            reason=refusal.reason.value,
        )
        return refusal


def salt_source(
    tenants: Mapping[str, TenantSettings], deployment: str, salt_key: bytes
) -> Callable[[Principal], str]:
    """How the gateway finds the cache salt of a principal; the connector checks the same."""

    def salt(principal: Principal) -> str:
        kind = tenants[principal.tenant].scope
        return Scope.of(principal, deployment, kind).cache_salt(salt_key)

    return salt


def _describe(tiers: Mapping[str, TierDecision]) -> dict[str, Any]:
    def word(decision: Decision) -> str:
        return "allow" if decision.allowed else "deny"

    rules = {
        decision.rule
        for tier in tiers.values()
        for decision in (tier.store, tier.load)
        if decision.rule is not None
    }
    return {
        "tiers": {
            name: {"store": word(tier.store), "load": word(tier.load)}
            for name, tier in tiers.items()
        },
        "rules": sorted(rules),
    }
