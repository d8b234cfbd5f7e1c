"""A request's way through identity, policy and namespace, walked once when it arrives."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvcustody.admission.outcome import Grant, Refusal, RefusalReason
from kvcustody.admission.salts import lacks_subject
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
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.namespace import AdapterFailure, Namespace, Scope
from kvcustody.policy import (
    HOST_TIER,
    Action,
    Decision,
    ModelFacts,
    PolicyInForce,
    Sharing,
    TierDecision,
)
from kvcustody.sealing import Keyring, NamespaceKeys
from kvcustody.sealing.providers import WrappedKeyError

# Long enough that a registry that is away costs almost no request its time.
_KEYS_RETRY_SECONDS = 5.0
# A local provider takes hundredths, on a busy disk tenths; at most one such wait in the time above.
_KEYS_PATIENCE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Admission:
    """Admits requests.

    Args:
        verifier: checks the gateway's assertions.
        tickets: opens the gateway's salt tickets.
        policy: the policy in force.
        sharing: who may use a sharing group's namespace.
        keyring: gives namespaces their keys.
        audit: told the outcome of each request.
        tenants: the tenants of custody.yaml.
        deployment: name of the deployment.
        model: the model that is served.
        layout: hex digest of the engine's KV layout.
        salt_key: the deployment's cache-salt key, 32 bytes.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        *,
        verifier: AssertionVerifier,
        tickets: SaltTickets,
        policy: PolicyInForce,
        sharing: Sharing,
        keyring: Keyring,
        audit: AuditLog,
        tenants: Mapping[str, TenantSettings],
        deployment: str,
        model: ModelFacts,
        layout: str,
        salt_key: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._keys_retry_at = float("-inf")
        self._keys_patient_at = float("-inf")
        self._verifier = verifier
        self._tickets = tickets
        self._sharing = sharing
        self._policy = policy
        self._keyring = keyring
        self._audit = audit
        self._tenants = tenants
        self._deployment = deployment
        self._model = model
        if model.revision is None:
            raise ValueError("blocks belong to a revision of the model")
        self._model_revision = model.revision
        self._layout = layout
        self._salt_key = salt_key

    def admit(
        self,
        parameters: object,
        *,
        engine_request_id: str,
        cache_salt: str | None,
        adapter: str | AdapterFailure | None,
        adapter_name: str | None = None,
    ) -> Grant | Refusal:
        """Decide what a request may do; audited either way; never raises.

        Args:
            parameters: the request's `kv_transfer_params`, believed in nothing.
            engine_request_id: the engine's id for it.
            cache_salt: the salt that the engine has for it; `None` if it has none.
            adapter: revision of its LoRA adapter, or why that isn't known; `None` without one.
            adapter_name: what rules know the adapter by.

        """
        model = self._model._replace(lora=adapter_name)
        try:
            return self._admit(parameters, engine_request_id, cache_salt, adapter, model)
        except Exception:
            # It would end the engine for all tenants; a request without custody ends nobody.
            logger.exception("Admission failed; the request is served without custody")
            refusal = Refusal(RefusalReason.INTERNAL_ERROR)
            return self._refuse(refusal, None, engine_request_id)

    def _admit(
        self,
        parameters: object,
        engine_request_id: str,
        cache_salt: str | None,
        adapter: str | AdapterFailure | None,
        model: ModelFacts,
    ) -> Grant | Refusal:
        presented = parameters.get(ASSERTION_PARAMETER) if isinstance(parameters, dict) else None
        ticket = cache_salt and self._tickets.open(cache_salt, engine_request_id)
        if ticket and presented is None:
            salt, request_id = ticket
            return self._refuse(_prefix_cache_only(salt, adapter), None, request_id)
        verified = self._verifier.verify(
            presented, request_id=engine_request_id, cache_salt=cache_salt
        )
        if isinstance(verified, AssertionFailure):
            return self._refuse(Refusal(verified), None, engine_request_id)
        principal, request_id = verified.principal, verified.request_id
        outcome = self._decide(verified, engine_request_id, cache_salt, adapter, model)
        if isinstance(outcome, Refusal):
            return self._refuse(outcome, principal, request_id)
        self._audit.record(
            "request.admitted",
            **outcome.audit_fields(),
            action="admit",
            outcome="admitted",
            namespace=outcome.keys.identifier.hex(),
            group=verified.group,
            adapter=adapter,
            **_describe(outcome.tiers),
            unenforced=self._unenforced(outcome),
        )
        return outcome

    def _unenforced(self, grant: Grant) -> list[dict[str, str | None]]:
        """What the policy denies the request, but for now lets it do."""
        found = [
            (name, action, decision)
            for name, tier in grant.tiers.items()
            for action, decision in ((Action.STORE, tier.store), (Action.LOAD, tier.load))
        ]
        return [
            {"tier": name, "action": action.value, "rule": decision.rule}
            for name, action, decision in found
            if decision.unenforced
        ]

    def _decide(
        self,
        verified: Verified,
        engine_request_id: str,
        cache_salt: str | None,
        adapter: str | AdapterFailure | None,
        model: ModelFacts,
    ) -> Grant | Refusal:
        principal = verified.principal
        tenant = self._tenants.get(principal.tenant)
        if tenant is None:
            return Refusal(RefusalReason.UNKNOWN_TENANT)
        # Before any question: what changes meanwhile makes the grant an old one, to be renewed.
        decisions = self._policy.current
        if verified.group is not None:
            # The gateway asked, too; the policy may have changed since, and here it is enforced.
            unshared = self._sharing.refusal(principal, verified.group)
            if unshared is not None:
                return Refusal(unshared)
        if lacks_subject(tenant, principal, verified.group):
            return Refusal(RefusalReason.NO_SUBJECT)
        scope = Scope.of(principal, self._deployment, tenant.scope, verified.group)
        salt = scope.cache_salt(self._salt_key)
        if cache_salt not in {None, salt}:
            return Refusal(RefusalReason.WRONG_SALT)
        if isinstance(adapter, AdapterFailure):
            # The GPU prefix cache may hold blocks of another content under the adapter's name.
            return Refusal(adapter)
        if not self._audit.accepting:
            return Refusal(RefusalReason.AUDIT_UNAVAILABLE, salt)
        tiers = decisions.decide(principal, model)
        host = tiers[HOST_TIER]
        if not (host.store.allowed or host.load.allowed):
            return Refusal(RefusalReason.POLICY_DENIED, salt)
        keys = self._keys(Namespace(scope, self._model_revision, self._layout, adapter))
        if isinstance(keys, RefusalReason):
            return Refusal(keys, salt)
        return Grant(
            principal,
            verified.request_id,
            engine_request_id,
            salt,
            keys,
            tiers,
            decisions.version,
            tenant.ttl,
            model,
            verified.group,
        )

    def renew(self, grant: Grant) -> Grant:
        """A grant under the policy that is in force now; the same one if that hasn't changed.

        What began under the old one goes on with the old grant.
        """
        decisions = self._policy.current
        if grant.policy_version == decisions.version:
            return grant
        tiers = decisions.decide(grant.principal, grant.model)
        if grant.group is not None and self._sharing.refusal(grant.principal, grant.group):
            tiers = {}
        return replace(grant, tiers=tiers, policy_version=decisions.version)

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
            policy_version=self._policy.version,
            action="admit",
            outcome="ungoverned",
            reason=refusal.reason.value,
        )
        return refusal


def _prefix_cache_only(salt: str, adapter: str | AdapterFailure | None) -> Refusal:
    if isinstance(adapter, AdapterFailure):
        return Refusal(adapter)
    return Refusal(RefusalReason.PREFIX_CACHE_ONLY, salt)


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
