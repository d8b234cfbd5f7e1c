"""Wire the engine's side."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from kvcustody.admission import Admission
from kvcustody.audit import AuditLog
from kvcustody.config import Settings
from kvcustody.identity.assertion import AssertionVerifier
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.namespace import AdapterRevisions
from kvcustody.policy import HOST_TIER, ModelFacts, PolicyInForce
from kvcustody.sealing import KeyMaintenance, ServiceKey
from kvcustody.tiers import GovernedTier
from kvcustody.wiring.keys import audit_key_changes, open_keys
from kvcustody.wiring.policy import LivePolicy, load_sharing
from kvcustody.wiring.tier_stores import open_stores
from kvcustody.wiring.trail import open_audit


@dataclass(frozen=True)
class EngineCustody:
    """What the connector needs in the scheduler's process.

    Args:
        admission: admits requests.
        policy: the policy in force.
        client_parameters: names of the transfer parameters that a client may set.
        adapters: knows the content of LoRA adapters.
        tiers: the tiers beyond host memory, in lookup order.
        audit: the engine's audit stream.
        close: stops threads and closes files; the audit stream ends with a signed checkpoint.

    """

    admission: Admission
    policy: PolicyInForce
    client_parameters: frozenset[str]
    adapters: AdapterRevisions
    tiers: tuple[GovernedTier, ...]
    audit: AuditLog
    close: Callable[[], None]


def build_engine(
    settings: Settings, *, model: ModelFacts, layout: str, block_bytes: int
) -> EngineCustody:
    """Wire the engine's side: admission and tiers.

    Args:
        settings: custody.yaml.
        model: the model that is served.
        layout: hex digest of the engine's KV layout (32 bytes).
        block_bytes: bytes of one block in host memory.

    Raises:
        ConfigurationError: custody.yaml, or a file that it names, is wrong.
        UnavailableError: the registry can't be reached.

    """
    keys = open_keys(settings)
    keyring = keys.keyring
    policy = LivePolicy(settings)
    stores = open_stores(settings)
    audit = open_audit(settings, keyring, "engine", policy.in_force)
    audit_key_changes(keys.table, audit)
    maintenance = KeyMaintenance(
        keyring, keys.table, longest_life=max(tier.ttl for tier in settings.tiers)
    )
    tiers = tuple(
        GovernedTier(
            tier.name,
            store,
            audit,
            layout=bytes.fromhex(layout),
            block_bytes=block_bytes,
            ttl=tier.ttl,
            lookup_deadline=settings.failure.lookup_deadline,
            load_deadline=settings.failure.load_deadline,
        )
        for tier, store in zip(settings.tiers, stores, strict=True)
    )
    assertion_key = keyring.service_key(ServiceKey.ASSERTION)
    admission = Admission(
        verifier=AssertionVerifier(assertion_key, settings.deployment),
        tickets=SaltTickets(assertion_key, settings.identity.assertion_ttl),
        policy=policy.in_force,
        sharing=load_sharing(settings, policy.in_force),
        keyring=keyring,
        audit=audit,
        tenants=settings.tenants,
        deployment=settings.deployment,
        model=model,
        layout=layout,
        salt_key=keyring.service_key(ServiceKey.CACHE_SALT),
    )
    audit.record(
        "engine.started",
        action="start",
        outcome="ok",
        policy_version=policy.in_force.version,
        model_revision=model.revision,
        layout=layout,
        config_digest=_digest(settings),
        tiers=[HOST_TIER, *(tier.name for tier in tiers)],
    )

    adapters = AdapterRevisions(settings.state / "adapter-digests.json")

    def close() -> None:
        policy.close()
        for tier in tiers:
            tier.close()
        maintenance.close()
        adapters.close()
        audit.record("engine.stopped", action="stop", outcome="ok")
        audit.close()
        keys.close()

    maintenance.start()
    policy.watch(audit)
    return EngineCustody(
        admission,
        policy.in_force,
        frozenset(settings.identity.allowed_parameters),
        adapters,
        tiers,
        audit,
        close,
    )


def _digest(settings: Settings) -> str:
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
