"""Open an audit stream, whose key is one of the key hierarchy."""

from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kvcustody.audit import AuditWriter
from kvcustody.config import Settings
from kvcustody.policy import PolicyInForce
from kvcustody.sealing import Keyring, ServiceKey


def audit_signing_key(keyring: Keyring) -> Ed25519PrivateKey:
    """The key that signs audit checkpoints; its public half verifies them."""
    return Ed25519PrivateKey.from_private_bytes(keyring.service_key(ServiceKey.AUDIT_SIGNING))


def open_audit(
    settings: Settings,
    keyring: Keyring,
    kind: Literal["engine", "gateway", "offline", "cli"],
    policy: PolicyInForce | None,
) -> AuditWriter:
    """Open a new audit stream.

    Args:
        settings: custody.yaml.
        keyring: has the key that signs.
        kind: what writes the stream.
        policy: the policy in force; `None` if there is none that can be read.

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
            policy_version=lambda: None if policy is None else policy.version,
        )
