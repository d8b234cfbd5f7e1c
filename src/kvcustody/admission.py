"""Admission: a request's way through identity, policy and namespace, walked once when it arrives.

The outcome is a value. A `Grant` carries all that the hot path needs; a `Refusal` means that the
request is served, but neither stores nor loads. Both name the salt that the engine must use.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
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
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.namespace import AdapterFailure, Namespace, Scope
from kvcustody.policy import Decision, Decisions, Sharing, SharingRefusal, TierDecision
from kvcustody.sealing import Keyring, NamespaceKeys
from kvcustody.sealing.providers import WrappedKeyError

HOST_TIER = "host"
"""Name of the host-memory tier in policies and audit events."""

# Long enough that a registry that is away costs almost no request its time.
_KEYS_RETRY_SECONDS = 5.0
# A local provider takes hundredths, on a busy disk tenths; at most one such wait in the time above.
_KEYS_PATIENCE_SECONDS = 1.0

logger = logging.getLogger(__name__)

# Some MB; a deployment with more data subjects than this derives again.
_MOST_SALTS = 16_384

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

    """

    principal: Principal
    request_id: str
    engine_request_id: str
    cache_salt: str
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
        tickets: opens the gateway's salt tickets.
        decisions: the policy in force.
        sharing: who may use a sharing group's namespace.
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
        tickets: SaltTickets,
        decisions: Decisions,
        sharing: Sharing,
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
        self._tickets = tickets
        self._sharing = sharing
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
            cache_salt: the salt that the engine has for it; `None` if it has none.
            adapter: revision of its LoRA adapter, or why that isn't known; `None` without one.

        """
        try:
            return self._admit(parameters, engine_request_id, cache_salt, adapter=adapter)
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
        *,
        adapter: str | AdapterFailure | None,
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
        outcome = self._decide(verified, engine_request_id, cache_salt, adapter=adapter)
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
            return Refusal(RefusalReason.UNKNOWN_TENANT)
        if verified.group is not None:
            # The gateway asked, too; the policy may have changed since, and here it is enforced.
            unshared = self._sharing.refusal(principal, verified.group)
            if unshared is not None:
                return Refusal(unshared)
        if _lacks_subject(tenant, principal, verified.group):
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
        tiers = self._decisions.decide(principal)
        host = tiers.get(HOST_TIER, _DENIED)
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


def _prefix_cache_only(salt: str, adapter: str | AdapterFailure | None) -> Refusal:
    if isinstance(adapter, AdapterFailure):
        return Refusal(adapter)
    return Refusal(RefusalReason.PREFIX_CACHE_ONLY, salt)


def _lacks_subject(tenant: TenantSettings, principal: Principal, group: str | None) -> bool:
    """Whether a request names no person, though its tenant keeps each person's cache apart.

    One cache for all who name none would mix persons' data where they can't be erased one by one.
    """
    return tenant.scope == "subject" and principal.subject is None and group is None


class Salts:
    """How the gateway finds the cache salt of a request; the connector checks the same.

    Args:
        tenants: the tenants of custody.yaml.
        deployment: name of the deployment.
        salt_key: the deployment's cache-salt key, 32 bytes.

    """

    def __init__(
        self, tenants: Mapping[str, TenantSettings], deployment: str, salt_key: bytes
    ) -> None:
        self._tenants = tenants
        self._deployment = deployment
        self._salt_key = salt_key
        # A method's own cache would keep this object, and its key, for ever.
        self._salt = lru_cache(_MOST_SALTS)(self._derive)

    def scope(self, principal: Principal, group: str | None = None) -> Scope:
        """Within what a request of the principal may share, or the sharing group that it uses."""
        kind = self._tenants[principal.tenant].scope
        return Scope.of(principal, self._deployment, kind, group)

    def __call__(self, principal: Principal, group: str | None = None) -> str:
        """The cache salt of a principal's scope, or of a sharing group.

        One that nobody else will have, if the principal names no data subject and must.
        """
        if _lacks_subject(self._tenants[principal.tenant], principal, group):
            return secrets.token_urlsafe(32)
        return self._salt(principal, group)

    def _derive(self, principal: Principal, group: str | None) -> str:
        return self.scope(principal, group).cache_salt(self._salt_key)


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
