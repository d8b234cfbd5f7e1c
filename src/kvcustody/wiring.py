"""Wire the stages together from custody.yaml; the one place where collaborators are chosen."""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcustody.admission import HOST_TIER, Admission, Salts
from kvcustody.audit import AuditLog, AuditWriter, check_writable
from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError
from kvcustody.gateway.response_ids import ResponseIds
from kvcustody.gateway.services import ClientParameters, GatewayServices
from kvcustody.identity.assertion import AssertionSigner, AssertionVerifier
from kvcustody.identity.authenticator import Authenticator
from kvcustody.identity.key_usage import KeyUsage
from kvcustody.identity.opening import open_bearer
from kvcustody.identity.principal import Principal
from kvcustody.identity.salt_ticket import SaltTickets
from kvcustody.identity.tokens import KeyStore
from kvcustody.namespace import AdapterRevisions
from kvcustody.policy import Decisions, Sharing, load_policy
from kvcustody.registry import Registry, open_registry
from kvcustody.sealing import KeyChange, KeyMaintenance, Keyring, KeyTable, RootKeys, ServiceKey
from kvcustody.sealing.providers import blamed_field, open_provider
from kvcustody.stores import FilesystemStore
from kvcustody.tiers import GovernedTier

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where vLLM keeps the host tier

_KEY_EVENTS = {"create": "key.created", "destroy": "key.destroyed"}

ANONYMOUS_WORKLOAD = "anonymous"
"""Workload of callers without a key, where custody.yaml maps them to a tenant."""


@dataclass(frozen=True)
class EngineCustody:
    """What the connector needs in the scheduler's process.

    Args:
        admission: admits requests.
        client_parameters: names of the transfer parameters that a client may set.
        adapters: knows the content of LoRA adapters.
        tiers: the tiers beyond host memory, in lookup order.
        audit: the engine's audit stream.
        close: stops threads and closes files; the audit stream ends with a signed checkpoint.

    """

    admission: Admission
    client_parameters: frozenset[str]
    adapters: AdapterRevisions
    tiers: tuple[GovernedTier, ...]
    audit: AuditLog
    close: Callable[[], None]


def build_engine(
    settings: Settings, *, model_revision: str, layout: str, block_bytes: int
) -> EngineCustody:
    """Wire the engine's side: admission and tiers.

    Args:
        settings: custody.yaml.
        model_revision: revision of the model that is served.
        layout: hex digest of the engine's KV layout (32 bytes).
        block_bytes: bytes of one block in host memory.

    Raises:
        ConfigurationError: custody.yaml, or a file that it names, is wrong.
        UnavailableError: the registry can't be reached.

    """
    keys = open_keys(settings)
    keyring = keys.keyring
    decisions = load_decisions(settings)
    stores = open_stores(settings)
    audit = open_audit(settings, keyring, "engine")
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
        decisions=decisions,
        sharing=load_sharing(settings, decisions),
        keyring=keyring,
        audit=audit,
        tenants=settings.tenants,
        deployment=settings.deployment,
        model_revision=model_revision,
        layout=layout,
        salt_key=keyring.service_key(ServiceKey.CACHE_SALT),
    )
    audit.record(
        "engine.started",
        action="start",
        outcome="ok",
        policy_version=decisions.version,
        model_revision=model_revision,
        layout=layout,
        config_digest=_digest(settings),
        tiers=[HOST_TIER, *(tier.name for tier in tiers)],
    )

    adapters = AdapterRevisions(settings.state / "adapter-digests.json")

    def close() -> None:
        for tier in tiers:
            tier.close()
        maintenance.close()
        adapters.close()
        audit.record("engine.stopped", action="stop", outcome="ok")
        audit.close()
        keys.close()

    maintenance.start()
    return EngineCustody(
        admission,
        frozenset(settings.identity.allowed_parameters),
        adapters,
        tiers,
        audit,
        close,
    )


def build_gateway(
    settings: Settings, clock: Callable[[], float] = time.monotonic
) -> GatewayServices:
    """Wire the gateway's side: authentication, assertions and salts.

    Args:
        settings: custody.yaml.
        clock: monotonic seconds, for what is remembered of credentials.

    Raises:
        ConfigurationError: custody.yaml, or a file that it names, is wrong.
        UnavailableError: the registry can't be reached.

    """
    decisions = load_decisions(settings)
    bearer = open_bearer(settings)
    keys = open_keys(settings)
    audit = open_audit(settings, keys.keyring, "gateway")
    key_store = KeyStore(keys.registry)
    usage = KeyUsage(key_store)
    anonymous = settings.identity.anonymous

    assertion_key = keys.keyring.service_key(ServiceKey.ASSERTION)
    assertion_ttl = settings.identity.assertion_ttl

    def close() -> None:
        usage.close()
        audit.close()
        keys.close()

    usage.start()
    return GatewayServices(
        authenticator=Authenticator(key_store, usage, bearer, settings.tenants, clock=clock),
        signer=AssertionSigner(assertion_key, settings.deployment, assertion_ttl),
        tickets=SaltTickets(assertion_key, assertion_ttl),
        salts=Salts(
            settings.tenants, settings.deployment, keys.keyring.service_key(ServiceKey.CACHE_SALT)
        ),
        sharing=load_sharing(settings, decisions),
        response_ids=ResponseIds(keys.keyring.service_key(ServiceKey.RESPONSE_IDS)),
        client_parameters=ClientParameters(
            refused=settings.identity.client_parameters == "refuse",
            allowed=frozenset(settings.identity.allowed_parameters),
        ),
        audit=audit,
        anonymous=None if anonymous == "deny" else Principal(anonymous, ANONYMOUS_WORKLOAD),
        tenants=settings.tenants,
        close=close,
    )


def preflight(settings: Settings) -> None:
    """Check all that custody.yaml names, before minutes are spent on loading a model.

    Raises:
        ConfigurationError: something is wrong; its text says what and where.
        UnavailableError: the registry can't be reached.

    """
    load_decisions(settings)
    open_bearer(settings)
    with settings.places.blame("host", "bytes"):
        _check_shared_memory(settings.host.bytes)
    open_stores(settings)
    with settings.places.blame("audit", "path"):
        check_writable(settings.audit.path)
    with closing(open_keys(settings)) as keys:
        for purpose in ServiceKey:
            keys.keyring.service_key(purpose)


def _check_shared_memory(needed: int) -> None:
    """Check that the host tier fits where vLLM puts it; a container's default is 64 MiB."""
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return  # vLLM will say what it misses
    size = status.f_blocks * status.f_frsize
    if needed > size:
        raise ConfigurationError(
            f"more than {_SHARED_MEMORY} holds ({size // 2**20} MiB); take less, or enlarge it "
            "(Docker: --shm-size)"
        )


@dataclass(frozen=True)
class Keys:
    """The key hierarchy, open.

    Args:
        registry: holds the wrapped keys, and API keys.
        roots: wrap and unwrap.
        table: the wrapped keys.
        keyring: keys in memory.

    """

    registry: Registry
    roots: RootKeys
    table: KeyTable
    keyring: Keyring

    def close(self) -> None:
        """Wipe all keys from memory and close the registry."""
        self.keyring.close()
        self.registry.close()


def open_keys(settings: Settings) -> Keys:
    """Open the registry and the key hierarchy in it.

    Raises:
        ConfigurationError: the root key or the registry can't be used.
        UnavailableError: the registry can't be reached.

    """
    roots = open_roots(settings)
    try:
        with settings.places.blame("registry" if settings.registry else "state"):
            registry = open_registry(settings.registry_url)
    except BaseException:
        roots.close()
        raise
    table = KeyTable(registry, roots)
    keyring = Keyring(
        table,
        roots,
        rotate_every=settings.keys.rotate_every,
        cached_for=settings.keys.cached_for,
    )
    return Keys(registry, roots, table, keyring)


def open_roots(settings: Settings) -> RootKeys:
    """Open the providers of the root keys.

    Raises:
        ConfigurationError: a root key can't be used.

    """
    with settings.places.blame("keys", blamed_field(settings.keys)):
        current = open_provider(settings.keys)
    opened = [current]
    try:
        for index, root in enumerate(settings.keys.previous):
            with settings.places.blame("keys", "previous", index):
                opened.append(open_provider(root))
    except BaseException:
        for provider in opened:
            provider.close()
        raise
    return RootKeys(current, opened[1:])


def load_decisions(settings: Settings) -> Decisions:
    """Read and compile the policy.

    Raises:
        ConfigurationError: the policy or the model is wrong.

    """
    return load_policy(
        settings.authorization.policy,
        settings.authorization.model,
        deployment=settings.deployment,
        tiers=[HOST_TIER, *(tier.name for tier in settings.tiers)],
        tenants=settings.tenants,
        groups=[entry.group for entry in settings.sharing],
    )


def load_sharing(settings: Settings, decisions: Decisions) -> Sharing:
    """Who may use which sharing group's namespace."""
    return Sharing(
        {entry.group: frozenset(entry.tenants) for entry in settings.sharing},
        frozenset(name for name, tenant in settings.tenants.items() if tenant.scope == "subject"),
        decisions.may_share,
    )


def open_stores(settings: Settings) -> list[FilesystemStore]:
    """Open the store of each tier.

    Raises:
        ConfigurationError: a tier's folder can't be used.

    """
    stores = []
    for index, tier in enumerate(settings.tiers):
        with settings.places.blame("tiers", index, "path"):
            stores.append(FilesystemStore(tier.path, min_free=tier.min_free))
    return stores


def audit_signing_key(keyring: Keyring) -> Ed25519PrivateKey:
    """The key that signs audit checkpoints; its public half verifies them."""
    return Ed25519PrivateKey.from_private_bytes(keyring.service_key(ServiceKey.AUDIT_SIGNING))


def open_audit(
    settings: Settings, keyring: Keyring, kind: Literal["engine", "gateway", "offline", "cli"]
) -> AuditWriter:
    """Open a new audit stream.

    Raises:
        ConfigurationError: the audit folder can't be written.

    """
    signing_key = audit_signing_key(keyring)
    with settings.places.blame("audit", "path"):
        return AuditWriter(
            settings.audit.path,
            kind=kind,
            signing_key=signing_key,
            on_failure=settings.audit.on_failure,
            checkpoint_every=settings.audit.checkpoint_every,
            deployment=settings.deployment,
        )


def audit_key_changes(table: KeyTable, audit: AuditLog) -> None:
    """Have keys that come and go recorded."""

    def record(change: KeyChange) -> None:
        audit.record(
            _KEY_EVENTS[change.action],
            tenant=change.tenant,
            action=change.action,
            outcome="ok",
            reason=change.reason,
            namespace=change.namespace,
            key_id=change.key_id,
            epoch=change.epoch,
        )

    table.on_change = record


def _digest(settings: Settings) -> str:
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
