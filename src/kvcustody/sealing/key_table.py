"""The registry's keys: namespaces with their epochs, and the deployment's own keys, all wrapped.

Every change is one transaction, and may be made by several engines and commands at once: a key is
created by whoever comes first, and a destroyed one is never written back.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from sqlalchemy import func, select, update

from kvcustody.namespace.namespace import Namespace
from kvcustody.registry import Registry
from kvcustody.registry.schema import data_keys, namespaces, service_keys
from kvcustody.sealing import key_rows
from kvcustody.sealing.format import KEY_ID_BYTES, OpenFailure
from kvcustody.sealing.key_rows import (
    KeyChange,
    StoredEpoch,
    StoredNamespace,
    data_context,
    naming_context,
)
from kvcustody.sealing.providers.base import KeyContext
from kvcustody.sealing.roots import RootKeys, Wrapped
from kvcustody.sealing.secret import DataKey, wipe

KEY_BYTES = 32


class ServiceKey(StrEnum):
    """What a key of the deployment itself is for."""

    ASSERTION = "assertion"
    CACHE_SALT = "cache-salt"
    NAMESPACE = "namespace"
    AUDIT_SIGNING = "audit-signing"
    RESPONSE_IDS = "response-ids"


class KeyTable:
    """Keeps wrapped keys in the registry.

    Args:
        registry: where they are kept.
        roots: what wraps them.
        clock: seconds since 1970.

    All methods raise `UnavailableError` when the registry can't be reached, and those that wrap or
    unwrap what `RootKeys` raises.
    """

    def __init__(
        self, registry: Registry, roots: RootKeys, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry
        self._roots = roots
        self._clock = clock
        self.on_change: Callable[[KeyChange], None] = lambda _change: None

    def service_key(self, purpose: ServiceKey) -> bytearray:
        """The deployment's 32-byte key for a purpose, created on first use."""
        context = KeyContext("service key", purpose.value)
        table = service_keys
        query = select(table.c.root, table.c.wrapped).where(table.c.purpose == purpose.value)
        with self._registry.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            fresh = self._roots.wrap(os.urandom(KEY_BYTES), context)
            with self._registry.write() as connection:
                # Another process may have been faster; then its key counts.
                self._registry.insert_if_absent(
                    connection,
                    table,
                    purpose=purpose.value,
                    wrapped=fresh.ciphertext,
                    root=fresh.root,
                    created=self._clock(),
                )
                row = connection.execute(query).one()
        return self._roots.unwrap(Wrapped(*row), context)

    def read(self, identifier: bytes) -> StoredNamespace | None:
        """A namespace's keys; `None` if it was never used."""
        with self._registry.read() as connection:
            return key_rows.read(connection, identifier)

    def create(self, namespace: Namespace, identifier: bytes) -> StoredNamespace:
        """A namespace's keys, created if it has none or they were destroyed.

        Whoever creates them first, everybody gets the same. After a destruction names and keys are
        new, so nothing from before is ever found again.
        """
        naming_key = self._roots.wrap(os.urandom(KEY_BYTES), naming_context(identifier))
        epoch = self._new_epoch(identifier, 1)
        now = epoch.created
        with self._registry.write() as connection:
            key_rows.claim(
                self._registry, connection, namespace, identifier, naming_key=naming_key, now=now
            )
            stored = _found(key_rows.read(connection, identifier))
            created = stored.current is None
            if created:
                epoch = replace(epoch, number=stored.next_epoch)
                key_rows.insert_epoch(self._registry, connection, identifier, epoch)
                stored = _found(key_rows.read(connection, identifier))
        if created:
            reason = "first use" if epoch.number == 1 else "first use after destruction"
            self._report_created(identifier, epoch, namespace.scope.tenant, reason)
        return stored

    def add_epoch(self, stored: StoredNamespace, reason: str) -> bool:
        """Begin the epoch after a namespace's current one; false if somebody else just did."""
        epoch = self._new_epoch(stored.identifier, stored.next_epoch)
        with self._registry.write() as connection:
            row = key_rows.naming_row(connection, stored.identifier, lock=True)
            # A namespace that was destroyed meanwhile begins anew when it is used, not here.
            if row is None or row.wrapped_naming_key is None:
                return False
            added = key_rows.insert_epoch(self._registry, connection, stored.identifier, epoch)
        if added:
            self._report_created(stored.identifier, epoch, row.tenant or None, reason)
        return added

    def destroy(self, identifiers: Iterable[str], reason: str) -> list[KeyChange]:
        """Destroy all keys of namespaces, in one transaction, and what traces the database keeps.

        Args:
            identifiers: hex identifiers.
            reason: for the audit trail.

        Returns:
            The data keys that were destroyed.

        """
        changes: list[KeyChange] = []
        now = self._clock()
        with self._registry.write() as connection:
            for identifier in identifiers:
                # First, because it locks out who would begin an epoch meanwhile.
                connection.execute(
                    update(namespaces)
                    .where(namespaces.c.id == identifier)
                    .where(namespaces.c.wrapped_naming_key.is_not(None))
                    .values(wrapped_naming_key=None, root=None, destroyed=now)
                )
                changes += key_rows.destroy_epochs(
                    connection, data_keys.c.namespace == identifier, reason, now
                )
        self._report(changes)
        self._registry.scrub()
        return changes

    def destroy_retired(self, before: float) -> list[KeyChange]:
        """Destroy the data keys of epochs that ended before a time, in seconds since 1970."""
        ended = data_keys.c.retired < before
        with self._registry.read() as connection:
            query = select(func.count()).where(ended, data_keys.c.wrapped.is_not(None))
            if not connection.scalar(query.select_from(data_keys)):
                return []
        with self._registry.write() as connection:
            changes = key_rows.destroy_epochs(
                connection, ended, "epoch outlived its blocks", self._clock()
            )
        self._report(changes)
        self._registry.scrub()
        return changes

    def data_key(self, namespace: bytes, key_id: bytes) -> DataKey | OpenFailure:
        """One data key, or why there is none."""
        stored = self.read(namespace)
        epochs = () if stored is None else stored.epochs
        epoch = next((epoch for epoch in epochs if epoch.key_id == key_id), None)
        if epoch is None:
            return OpenFailure.KEY_UNAVAILABLE
        if epoch.wrapped is None:
            return OpenFailure.KEY_DESTROYED
        return DataKey(key_id, self._roots.unwrap(epoch.wrapped, data_context(namespace, key_id)))

    def signature(self) -> tuple[int, ...]:
        """Numbers that change whenever a key comes or goes, cheap to ask for."""
        with self._registry.read() as connection:
            keys = connection.execute(
                select(func.count(), func.count(data_keys.c.wrapped)).select_from(data_keys)
            ).one()
            named = connection.scalar(
                select(func.count(namespaces.c.wrapped_naming_key)).select_from(namespaces)
            )
        return (*keys, named or 0)

    def _new_epoch(self, identifier: bytes, number: int) -> StoredEpoch:
        key_id = os.urandom(KEY_ID_BYTES)
        secret = bytearray(os.urandom(KEY_BYTES))
        try:
            wrapped = self._roots.wrap(secret, data_context(identifier, key_id))
        finally:
            wipe(secret)
        return StoredEpoch(key_id, number, wrapped, self._clock())

    def _report_created(
        self, identifier: bytes, epoch: StoredEpoch, tenant: str | None, reason: str
    ) -> None:
        namespace, key_id = identifier.hex(), epoch.key_id.hex()
        self._report([KeyChange("create", namespace, key_id, epoch.number, tenant, reason)])

    def _report(self, changes: Sequence[KeyChange]) -> None:
        for change in changes:
            self.on_change(change)


def _found(stored: StoredNamespace | None) -> StoredNamespace:
    assert stored is not None  # noqa: S101 - its row was inserted, in this transaction or before
    return stored
