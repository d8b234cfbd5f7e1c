"""What namespaces and keys a registry holds, for people who look after them, without unwrapping."""

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, select, true

from kvcustody.registry import Registry
from kvcustody.registry.schema import data_keys, namespaces


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """An epoch of a namespace; times in seconds since 1970.

    Args:
        number: 1 for the first.
        key_id: hex.
        root: identifier of the root key that wraps its key; `None` once destroyed.
        created: when it began.
        retired: when the next one began.
        destroyed: when its key was destroyed.

    """

    number: int
    key_id: str
    root: str | None
    created: float
    retired: float | None
    destroyed: float | None


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace; times in seconds since 1970.

    Args:
        identifier: hex.
        tenant: `None` for a sharing group.
        workload: set where the scope is narrower than the tenant.
        subject: set where the scope is one data subject.
        sharing_group: set where tenants share.
        model_revision: of the model.
        adapter: digest of the LoRA adapter's content, if any.
        layout: digest of the KV layout.
        created: when it was used first.
        destroyed: when its keys were, unless it began anew since.
        epochs: oldest first.

    """

    identifier: str
    tenant: str | None
    workload: str | None
    subject: str | None
    sharing_group: str | None
    model_revision: str
    adapter: str | None
    layout: str
    created: float
    destroyed: float | None
    epochs: tuple[EpochRecord, ...]

    @property
    def living_keys(self) -> int:
        """How many of its data keys are not destroyed."""
        return sum(epoch.destroyed is None for epoch in self.epochs)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which namespaces are meant; what is left out matches all.

    Args:
        namespace: hex identifier.
        tenant: name of a tenant.
        workload: name of one of its workloads.
        subject: one of its data subjects.

    """

    namespace: str | None = None
    tenant: str | None = None
    workload: str | None = None
    subject: str | None = None

    def condition(self) -> ColumnElement[bool]:
        """The selection as a condition on `namespaces`."""
        columns = namespaces.c
        wanted = {
            columns.id: self.namespace,
            columns.tenant: self.tenant,
            columns.workload: self.workload,
            columns.subject: self.subject,
        }
        return and_(
            true(), *(column == value for column, value in wanted.items() if value is not None)
        )


def list_namespaces(registry: Registry, which: Selection) -> list[NamespaceRecord]:
    """Namespaces of a registry, oldest first.

    Raises:
        UnavailableError: the registry can't be reached.

    """
    columns = namespaces.c
    chosen = which.condition()
    with registry.read() as connection:
        rows = connection.execute(
            select(namespaces).where(chosen).order_by(columns.created, columns.id)
        ).all()
        keys = connection.execute(
            select(data_keys)
            .join(namespaces, columns.id == data_keys.c.namespace)
            .where(chosen)
            .order_by(data_keys.c.epoch)
        ).all()
    epochs: dict[str, list[EpochRecord]] = defaultdict(list)
    for key in keys:
        epochs[key.namespace].append(
            EpochRecord(key.epoch, key.id, key.root, key.created, key.retired, key.destroyed)
        )
    return [
        NamespaceRecord(
            identifier=row.id,
            tenant=row.tenant or None,
            workload=row.workload,
            subject=row.subject,
            sharing_group=row.sharing_group,
            model_revision=row.model_revision,
            adapter=row.adapter,
            layout=row.layout,
            created=row.created,
            destroyed=row.destroyed,
            epochs=tuple(epochs[row.id]),
        )
        for row in rows
    ]
