"""Rows of the registry's keys: how they are read and written within a transaction."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, select, update

from kvcustody.namespace.namespace import Namespace
from kvcustody.registry import Registry
from kvcustody.registry.schema import data_keys, namespaces
from kvcustody.sealing.providers.base import KeyContext
from kvcustody.sealing.roots import Wrapped


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """A data key in the registry.

    Args:
        key_id: 16 bytes.
        number: 1 for the namespace's first.
        wrapped: `None` once destroyed.
        created: seconds since 1970.
        retired: when the next epoch began; `None` for the current one.

    """

    key_id: bytes
    number: int
    wrapped: Wrapped | None
    created: float
    retired: float | None = None


@dataclass(frozen=True, slots=True)
class StoredNamespace:
    """A namespace's keys in the registry.

    Args:
        identifier: 16 bytes.
        naming_key: `None` once destroyed.
        epochs: oldest first.

    """

    identifier: bytes
    naming_key: Wrapped | None
    epochs: tuple[StoredEpoch, ...]

    @property
    def current(self) -> StoredEpoch | None:
        """The epoch that new blocks are sealed with; `None` once the namespace is destroyed."""
        newest = self.epochs[-1] if self.epochs else None
        return newest if newest is not None and newest.wrapped is not None else None

    def has(self, key_id: bytes) -> bool:
        """Whether a data key is there and not destroyed."""
        return any(epoch.key_id == key_id and epoch.wrapped is not None for epoch in self.epochs)

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that comes next."""
        return self.epochs[-1].number + 1 if self.epochs else 1


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A data key that came or went.

    Args:
        action: `create` or `destroy`.
        namespace: hex identifier.
        key_id: hex identifier.
        epoch: its number.
        tenant: whose it is; `None` for a sharing group.
        reason: why.

    """

    action: Literal["create", "destroy"]
    namespace: str
    key_id: str
    epoch: int
    tenant: str | None
    reason: str


def naming_context(identifier: bytes) -> KeyContext:
    """What a namespace's naming key is wrapped for."""
    return KeyContext("naming key", identifier.hex())


def data_context(identifier: bytes, key_id: bytes) -> KeyContext:
    """What a data key is wrapped for."""
    return KeyContext("data key", f"{identifier.hex()}/{key_id.hex()}")


def naming_row(connection: Connection, identifier: bytes, *, lock: bool = False) -> Any:
    """A namespace's row or `None`; `lock` keeps others from changing it in this transaction."""
    table = namespaces
    query = select(table.c.root, table.c.wrapped_naming_key, table.c.tenant).where(
        table.c.id == identifier.hex()
    )
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def read(connection: Connection, identifier: bytes) -> StoredNamespace | None:
    """A namespace's keys; `None` if it was never used."""
    row = naming_row(connection, identifier)
    if row is None:
        return None
    table = data_keys
    columns = (table.c.id, table.c.epoch, table.c.root, table.c.wrapped)
    epochs = connection.execute(
        select(*columns, table.c.created, table.c.retired)
        .where(table.c.namespace == identifier.hex())
        .order_by(table.c.epoch)
    )
    return StoredNamespace(
        identifier,
        _wrapped(row.root, row.wrapped_naming_key),
        tuple(
            StoredEpoch(bytes.fromhex(key_id), epoch, _wrapped(root, wrapped), created, retired)
            for key_id, epoch, root, wrapped, created, retired in epochs
        ),
    )


def _wrapped(root: str | None, ciphertext: bytes | None) -> Wrapped | None:
    return None if ciphertext is None else Wrapped(root, bytes(ciphertext))


def claim(
    registry: Registry,
    connection: Connection,
    namespace: Namespace,
    identifier: bytes,
    *,
    naming_key: Wrapped,
    now: float,
) -> None:
    """Make a namespace's row and lock it for this transaction; it gets a naming key if it has none.

    Args:
        registry: whose database it is.
        connection: in a transaction.
        namespace: what the namespace is.
        identifier: 16 bytes.
        naming_key: the key to give.
        now: seconds since 1970.

    """
    scope = namespace.scope
    key = {"wrapped_naming_key": naming_key.ciphertext, "root": naming_key.root}
    inserted = registry.insert_if_absent(
        connection,
        namespaces,
        id=identifier.hex(),
        tenant=scope.tenant or "",
        workload=scope.workload,
        subject=scope.subject,
        sharing_group=scope.group,
        model_revision=namespace.model_revision,
        adapter=namespace.adapter,
        layout=namespace.layout,
        created=now,
        **key,
    )
    if not inserted and naming_row(connection, identifier, lock=True).wrapped_naming_key is None:
        connection.execute(
            update(namespaces)
            .where(namespaces.c.id == identifier.hex())
            .values(destroyed=None, **key)
        )


def insert_epoch(
    registry: Registry, connection: Connection, identifier: bytes, epoch: StoredEpoch
) -> bool:
    """Begin an epoch, which ends those before it; false if somebody else just did."""
    assert epoch.wrapped is not None  # noqa: S101 - a new epoch has a key
    inserted = registry.insert_if_absent(
        connection,
        data_keys,
        id=epoch.key_id.hex(),
        namespace=identifier.hex(),
        epoch=epoch.number,
        wrapped=epoch.wrapped.ciphertext,
        root=epoch.wrapped.root,
        created=epoch.created,
    )
    if inserted:
        connection.execute(
            update(data_keys)
            .where(data_keys.c.namespace == identifier.hex(), data_keys.c.epoch < epoch.number)
            .where(data_keys.c.retired.is_(None))
            .values(retired=epoch.created)
        )
    return inserted


def destroy_epochs(
    connection: Connection, which: ColumnElement[bool], reason: str, now: float
) -> list[KeyChange]:
    """Destroy data keys.

    Args:
        connection: in a transaction.
        which: condition on `data_keys`; destroyed ones are passed over.
        reason: for the audit trail.
        now: seconds since 1970.

    """
    table = data_keys
    alive = which & table.c.wrapped.is_not(None)
    rows = connection.execute(
        select(table.c.namespace, table.c.id, table.c.epoch, namespaces.c.tenant)
        .join(namespaces, namespaces.c.id == table.c.namespace)
        .where(alive)
        .order_by(table.c.namespace, table.c.epoch)
        .with_for_update()
    ).all()
    connection.execute(update(table).where(alive).values(wrapped=None, root=None, destroyed=now))
    return [
        KeyChange("destroy", namespace, key_id, epoch, tenant or None, reason)
        for namespace, key_id, epoch, tenant in rows
    ]
