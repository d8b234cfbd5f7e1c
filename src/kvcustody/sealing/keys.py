"""The key hierarchy: the root key wraps random keys, which the registry keeps.

- A *service key* is the deployment's own, one for each purpose (assertions, salts, audit, ...).
- A *naming key* belongs to a namespace for its life, so names stay findable across epochs.
- A *data key* belongs to a namespace and an epoch; a key is derived from it for each block.

Destroying a namespace's wrapped keys erases its blocks wherever their copies lie.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, insert, select

from kvcustody.namespace.namespace import Namespace
from kvcustody.registry import Registry
from kvcustody.registry.schema import data_keys, namespaces, service_keys
from kvcustody.sealing.block import DataKey
from kvcustody.sealing.format import KEY_ID_BYTES, OpenFailure
from kvcustody.sealing.providers.base import KeyProvider

_KEY_BYTES = 32


class ServiceKey(StrEnum):
    """What a key of the deployment itself is for."""

    ASSERTION = "assertion"
    CACHE_SALT = "cache-salt"
    NAMESPACE = "namespace"
    AUDIT_SIGNING = "audit-signing"


@dataclass(frozen=True, slots=True)
class NamespaceKeys:
    """A namespace's keys in use.

    Args:
        identifier: the namespace's 16 bytes.
        naming_key: 32 bytes.
        current: the data key of the newest epoch, which new blocks are sealed with.
        find: finds the data key of any epoch of this namespace.

    """

    identifier: bytes
    naming_key: bytes
    current: DataKey
    find: Callable[[bytes], DataKey | OpenFailure]

    def __repr__(self) -> str:
        return f"NamespaceKeys(identifier={self.identifier.hex()})"


class Keyring:
    """Creates keys on first use and keeps unwrapped ones in memory.

    Args:
        registry: holds the wrapped keys.
        provider: wraps and unwraps them.
        clock: seconds since 1970.
        on_created: told the namespace id, key id and epoch of each new data key.

    """

    def __init__(
        self,
        registry: Registry,
        provider: KeyProvider,
        *,
        clock: Callable[[], float] = time.time,
        on_created: Callable[[str, str, int], None] | None = None,
    ) -> None:
        self._registry = registry
        self._provider = provider
        self._clock = clock
        self._on_created = on_created
        self._namespaces: dict[Namespace, NamespaceKeys] = {}
        # Guards `_namespaces` and makes one thread at a time create a namespace's keys.
        self._lock = threading.Lock()

    def service_key(self, purpose: ServiceKey) -> bytes:
        """The deployment's 32-byte key for a purpose, created on first use.

        Raises:
            UnavailableError: the registry or the provider can't be reached.
            WrappedKeyError: the root key is not the one that wrapped it.

        """
        context = b"kvcustody/1 service key " + purpose.encode()
        table = service_keys
        with self._registry.read() as connection:
            wrapped = connection.scalar(
                select(table.c.wrapped).where(table.c.purpose == purpose.value)
            )
        if wrapped is None:
            fresh = self._provider.wrap(os.urandom(_KEY_BYTES), context)
            with self._registry.write() as connection:
                # Another process may have been faster; then its key counts.
                self._registry.insert_if_absent(
                    connection, table, purpose=purpose.value, wrapped=fresh, created=self._clock()
                )
                wrapped = connection.scalar(
                    select(table.c.wrapped).where(table.c.purpose == purpose.value)
                )
        return self._provider.unwrap(bytes(wrapped or b""), context)

    def namespace_keys(self, namespace: Namespace) -> NamespaceKeys | OpenFailure:
        """A namespace's keys, created on first use; `KEY_DESTROYED` once it was erased.

        Raises:
            UnavailableError: the registry or the provider can't be reached.
            WrappedKeyError: the root key is not the one that wrapped them.

        """
        with self._lock:
            keys = self._namespaces.get(namespace)
            if keys is None:
                loaded = self._load(namespace)
                if isinstance(loaded, OpenFailure):
                    return loaded
                keys = self._namespaces[namespace] = loaded
            return keys

    def holds(self, namespace: Namespace) -> bool:
        """Whether a namespace's keys are in memory, so that nothing need be asked for them."""
        return namespace in self._namespaces

    def _load(self, namespace: Namespace) -> NamespaceKeys | OpenFailure:
        identifier = namespace.identifier(self.service_key(ServiceKey.NAMESPACE))
        with self._registry.read() as connection:
            stored = _read_namespace(connection, identifier.hex())
        if stored is None:
            stored = self._create(namespace, identifier)
        wrapped_naming_key, wrapped_data_keys = stored
        found: dict[bytes, DataKey | OpenFailure] = {}
        current: DataKey | None = None
        for key_id, wrapped in wrapped_data_keys.items():
            if wrapped is None:
                found[key_id] = OpenFailure.KEY_DESTROYED
                continue
            secret = self._provider.unwrap(wrapped, _data_context(identifier, key_id))
            current = found[key_id] = DataKey(key_id, secret)
        if wrapped_naming_key is None or current is None:
            return OpenFailure.KEY_DESTROYED

        def find(key_id: bytes) -> DataKey | OpenFailure:
            # An epoch that is not known here may have begun in another engine meanwhile.
            return found.get(key_id, OpenFailure.KEY_UNAVAILABLE)

        return NamespaceKeys(
            identifier,
            self._provider.unwrap(wrapped_naming_key, _naming_context(identifier)),
            current=current,
            find=find,
        )

    def _create(self, namespace: Namespace, identifier: bytes) -> "_StoredNamespace":
        key_id = os.urandom(KEY_ID_BYTES)
        naming_key = self._provider.wrap(os.urandom(_KEY_BYTES), _naming_context(identifier))
        data_key = self._provider.wrap(os.urandom(_KEY_BYTES), _data_context(identifier, key_id))
        now = self._clock()
        with self._registry.write() as connection:
            created = self._registry.insert_if_absent(
                connection,
                namespaces,
                id=identifier.hex(),
                tenant=namespace.scope.tenant,
                workload=namespace.scope.workload,
                subject=namespace.scope.subject,
                model_revision=namespace.model_revision,
                layout=namespace.layout,
                wrapped_naming_key=naming_key,
                created=now,
            )
            if created:
                connection.execute(
                    insert(data_keys).values(
                        id=key_id.hex(),
                        namespace=identifier.hex(),
                        epoch=1,
                        wrapped=data_key,
                        created=now,
                    )
                )
            stored = _read_namespace(connection, identifier.hex())
        if created and self._on_created is not None:
            self._on_created(identifier.hex(), key_id.hex(), 1)
        return stored or (None, {})


_StoredNamespace = tuple[bytes | None, dict[bytes, bytes | None]]
"""A namespace's wrapped naming key and data keys, oldest epoch first; `None` once destroyed."""


def _read_namespace(connection: Connection, identifier: str) -> _StoredNamespace | None:
    row = connection.execute(
        select(namespaces.c.wrapped_naming_key).where(namespaces.c.id == identifier)
    ).one_or_none()
    if row is None:
        return None
    epochs = connection.execute(
        select(data_keys.c.id, data_keys.c.wrapped)
        .where(data_keys.c.namespace == identifier)
        .order_by(data_keys.c.epoch)
    )
    return row[0], {bytes.fromhex(key_id): wrapped for key_id, wrapped in epochs}


def _naming_context(identifier: bytes) -> bytes:
    return b"kvcustody/1 naming key " + identifier


def _data_context(identifier: bytes, key_id: bytes) -> bytes:
    return b"kvcustody/1 data key " + identifier + key_id
