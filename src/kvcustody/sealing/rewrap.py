"""Root-key rotation: wrap the registry's keys under the current root key; blocks stay untouched.

Each key is replaced on its own and only if it is still what was read, so the work may be killed and
begun again at any point, and a key that was destroyed meanwhile stays destroyed.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sqlalchemy import ColumnElement, Table, func, or_, select, update

from kvcustody.registry import Registry
from kvcustody.registry.schema import data_keys, namespaces, service_keys
from kvcustody.sealing.key_rows import data_context, naming_context
from kvcustody.sealing.providers.base import KeyContext, WrappedKeyError
from kvcustody.sealing.roots import RootKeys, Wrapped
from kvcustody.sealing.secret import wipe

# Small enough to lose little when killed, and to hold the registry's lock for milliseconds.
_BATCH = 64
# A remote provider answers each call in tens of milliseconds.
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """What a rewrap did.

    Args:
        keys: how many were wrapped anew.
        failed: how many are left: none of the configured root keys unwraps them.

    """

    keys: int
    failed: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """A table with wrapped keys.

    Args:
        table: the table.
        key: its primary key's column.
        wrapped: the column of the wrapped key.
        context: what a key is wrapped for, from the values of primary key and `owner`.
        owner: a further column that the context needs.

    """

    table: Table
    key: str
    wrapped: str
    context: Callable[[str, str], KeyContext]
    owner: str

    def pending(self, root: str) -> ColumnElement[bool]:
        """Which rows are not wrapped by a root key yet."""
        columns = self.table.c
        elsewhere = or_(columns.root.is_(None), columns.root != root)
        return columns[self.wrapped].is_not(None) & elsewhere


_KINDS = (
    _Kind(
        service_keys,
        "purpose",
        "wrapped",
        lambda purpose, _: KeyContext("service key", purpose),
        "purpose",
    ),
    _Kind(
        namespaces,
        "id",
        "wrapped_naming_key",
        lambda identifier, _: naming_context(bytes.fromhex(identifier)),
        "id",
    ),
    _Kind(
        data_keys,
        "id",
        "wrapped",
        lambda key_id, owner: data_context(bytes.fromhex(owner), bytes.fromhex(key_id)),
        "namespace",
    ),
)


def count_pending(registry: Registry, roots: RootKeys) -> int:
    """How many keys are not wrapped by the current root key.

    Raises:
        CustodyError: registry or provider can't be reached, or refuses.

    """
    root = roots.current
    with registry.read() as connection:
        return sum(
            connection.scalar(
                select(func.count()).select_from(kind.table).where(kind.pending(root))
            )
            or 0
            for kind in _KINDS
        )


def rewrap(
    registry: Registry, roots: RootKeys, progress: Callable[[int], None] = lambda _done: None
) -> Rewrapped:
    """Wrap all keys under the current root key.

    Args:
        registry: holds the keys.
        roots: unwrap and wrap them.
        progress: told how many keys were looked at so far.

    Raises:
        CustodyError: registry or provider can't be reached, or refuses; what is done stays done.

    """
    done = 0
    with ThreadPoolExecutor(_THREADS, "kvcustody-rewrap") as pool:
        # Engines may wrap more with the old root key meanwhile, so once over is not enough.
        while replaced := _pass(registry, roots, pool, progress, done):
            done += replaced
    registry.scrub()
    return Rewrapped(done, count_pending(registry, roots))


def _pass(
    registry: Registry,
    roots: RootKeys,
    pool: ThreadPoolExecutor,
    progress: Callable[[int], None],
    before: int,
) -> int:
    """Go over all keys once; how many were wrapped anew."""
    done = 0
    for kind in _KINDS:
        last = ""
        while batch := _next_batch(registry, kind, roots.current, last):
            last = batch[-1][0]
            fresh = list(pool.map(partial(_wrap_again, roots, kind), batch))
            good = [pair for pair in zip(batch, fresh, strict=True) if pair[1] is not None]
            done += _replace(registry, kind, good)
            progress(before + done)
    return done


_Row = tuple[str, str, str | None, bytes]
"""Primary key, owner, root and ciphertext."""


def _next_batch(registry: Registry, kind: _Kind, root: str, after: str) -> list[_Row]:
    columns = kind.table.c
    key = columns[kind.key]
    query = (
        select(key, columns[kind.owner], columns.root, columns[kind.wrapped])
        .where(kind.pending(root), key > after)
        .order_by(key)
        .limit(_BATCH)
    )
    with registry.read() as connection:
        return [
            (identifier, owner, wrapper, bytes(wrapped))
            for identifier, owner, wrapper, wrapped in connection.execute(query)
        ]


def _wrap_again(roots: RootKeys, kind: _Kind, row: _Row) -> Wrapped | None:
    identifier, owner, root, wrapped = row
    context = kind.context(identifier, owner)
    try:
        secret = roots.unwrap(Wrapped(root, wrapped), context)
    except WrappedKeyError:
        return None
    try:
        return roots.wrap(secret, context)
    finally:
        wipe(secret)


def _replace(registry: Registry, kind: _Kind, pairs: Iterable[tuple[_Row, Wrapped | None]]) -> int:
    columns = kind.table.c
    replaced = 0
    with registry.write() as connection:
        for (identifier, _, _, before), fresh in pairs:
            assert fresh is not None  # noqa: S101 - the caller sorted the others out
            replaced += connection.execute(
                update(kind.table)
                .where(columns[kind.key] == identifier, columns[kind.wrapped] == before)
                .values({kind.wrapped: fresh.ciphertext, "root": fresh.root})
            ).rowcount
    return replaced
