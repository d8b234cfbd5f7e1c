"""Open the key hierarchy."""

from dataclasses import dataclass

from kvcustody.audit import AuditLog
from kvcustody.config import Settings
from kvcustody.registry import Registry, open_registry
from kvcustody.sealing import KeyChange, Keyring, KeyTable, RootKeys
from kvcustody.sealing.providers import blamed_field, open_provider

_KEY_EVENTS = {"create": "key.created", "destroy": "key.destroyed"}


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
