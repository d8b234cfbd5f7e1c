"""The key ring: unwrapped keys in memory, brought on first use, confirmed while used, wiped after.

- A *service key* is the deployment's own, one for each purpose (assertions, salts, audit, ...).
- A *naming key* belongs to a namespace for its life, so names stay findable across epochs.
- A *data key* belongs to a namespace and an epoch; a key is derived from it for each block.

Known keys go on working for `cached_for` seconds when the provider or the registry is away.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitedTooLong
from functools import partial

from kvcustody.errors import CustodyError, UnavailableError
from kvcustody.namespace.namespace import Namespace
from kvcustody.sealing.format import OpenFailure
from kvcustody.sealing.key_rows import StoredNamespace, data_context, naming_context
from kvcustody.sealing.key_table import KeyTable, ServiceKey
from kvcustody.sealing.namespace_keys import Epochs, NamespaceKeys
from kvcustody.sealing.roots import RootKeys
from kvcustody.sealing.secret import DataKey, SecretKey, wipe
from kvcustody.workers import WorkerPool

# A tenant's first request waits for its keys; several come at once when an engine starts.
_LOADING_THREADS = 4
# More than an engine serves at once; those beyond are wiped, longest unused first.
_MOST_HELD = 10_000
# A forged key id in a block must not make every load ask the registry.
_LEARN_AGAIN_SECONDS = 1.0
_CLOSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Keyring:
    """Gives namespaces their keys.

    Args:
        table: the wrapped keys.
        roots: what unwraps them.
        rotate_every: seconds after which a namespace's next use begins a new epoch.
        cached_for: seconds that keys are usable without asking provider and registry again.
        clock: seconds since 1970.
        monotonic: monotonic seconds.

    """

    def __init__(
        self,
        table: KeyTable,
        roots: RootKeys,
        *,
        rotate_every: float = float("inf"),
        cached_for: float = float("inf"),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._roots = roots
        self._rotate_every = rotate_every
        self._cached_for = cached_for
        self._clock = clock
        self._monotonic = monotonic
        self._held: OrderedDict[Namespace, NamespaceKeys] = OrderedDict()
        self._used: dict[Namespace, float] = {}
        self._loading: dict[Namespace, Future[NamespaceKeys]] = {}
        self._learnt: dict[bytes, float] = {}
        self._identifier_key: bytearray | None = None
        self._closed = False
        # Guards all of the above; nothing that waits is done under it.
        self._lock = threading.Lock()
        self._workers: WorkerPool | None = None

    def service_key(self, purpose: ServiceKey) -> bytes:
        """The deployment's 32-byte key for a purpose, created on first use.

        Raises:
            CustodyError: the registry or the provider can't be reached, or refuses.

        """
        return bytes(self._table.service_key(purpose))

    def namespace_keys(self, namespace: Namespace) -> NamespaceKeys:
        """A namespace's keys, created on first use; waits for registry and provider.

        Raises:
            CustodyError: the registry or the provider can't be reached, or refuses.

        """
        loading, mine = self._begin(namespace)
        if mine:
            self._load(namespace, loading)
        return loading.result()

    def namespace_keys_within(self, namespace: Namespace, seconds: float) -> NamespaceKeys | None:
        """A namespace's keys, brought by another thread.

        Args:
            namespace: whose keys.
            seconds: how long to wait; afterwards they go on coming for whoever asks next.

        Returns:
            `None` when they didn't come in time.

        Raises:
            CustodyError: the registry or the provider can't be reached, or refuses.

        """
        loading, mine = self._begin(namespace)
        if mine:
            self._pool().submit(partial(self._load, namespace, loading))
        try:
            return loading.result(seconds)
        except WaitedTooLong:
            return None

    def holds(self, namespace: Namespace) -> bool:
        """Whether a namespace's keys are in memory, so that nothing need be asked for them."""
        keys = self._held.get(namespace)
        return keys is not None and keys.current is not None

    def refresh(self) -> None:
        """Take over what others did in the registry: epochs begun, keys destroyed.

        Raises:
            CustodyError: the registry or the provider can't be reached, or refuses.

        """
        failure: CustodyError | None = None
        for namespace, keys in self._snapshot():
            try:
                self._refresh(namespace, keys)
            except CustodyError as error:
                failure = failure or error  # the others' keys may have been destroyed
        if failure is not None:
            raise failure

    def rotate_due(self) -> None:
        """Begin a new epoch for the namespaces in memory whose epoch is old enough.

        Raises:
            CustodyError: the registry or the provider can't be reached, or refuses.

        """
        for namespace, keys in self._snapshot():
            if self._is_due(keys.began):
                stored = self._table.read(keys.identifier)
                if stored is not None and stored.current and self._is_due(stored.current.created):
                    self._table.add_epoch(stored, "rotate_every")
                self._refresh(namespace, keys)

    def expire(self) -> None:
        """Wipe keys that are unused or unconfirmed for too long; confirm those in use."""
        now = self._monotonic()
        for namespace, keys in self._snapshot():
            used = self._used.get(namespace, now)
            if now - used >= self._cached_for or now >= keys.usable_until:
                self._drop(namespace, keys, OpenFailure.KEY_UNAVAILABLE)
        for namespace, keys in self._snapshot():
            if keys.usable_until - now < self._cached_for / 2:
                try:
                    self._refresh(namespace, keys, confirm=True)
                except CustodyError:
                    return  # the others would wait as long in vain; the next round asks again

    def close(self) -> None:
        """Wipe all keys from memory."""
        if self._workers is not None:
            self._workers.close(_CLOSE_SECONDS)
        with self._lock:
            self._closed = True
        for namespace, keys in self._snapshot():
            self._drop(namespace, keys, OpenFailure.KEY_UNAVAILABLE)
        if self._identifier_key is not None:
            wipe(self._identifier_key)
        self._roots.close()

    def _snapshot(self) -> list[tuple[Namespace, NamespaceKeys]]:
        with self._lock:
            return list(self._held.items())

    def _pool(self) -> WorkerPool:
        with self._lock:
            if self._workers is None:
                self._workers = WorkerPool("kvcustody-keys", _LOADING_THREADS)
            return self._workers

    def _begin(self, namespace: Namespace) -> tuple[Future[NamespaceKeys], bool]:
        """The keys' future, and whether the caller is to bring them."""
        with self._lock:
            keys = self._held.get(namespace)
            if keys is not None and keys.current is not None:
                self._held.move_to_end(namespace)
                self._used[namespace] = self._monotonic()
                done: Future[NamespaceKeys] = Future()
                done.set_result(keys)
                return done, False
            loading = self._loading.get(namespace)
            if loading is not None:
                return loading, False
            loading = self._loading[namespace] = Future()
            return loading, True

    def _load(self, namespace: Namespace, loading: Future[NamespaceKeys]) -> None:
        try:
            keys = self._fetch(namespace)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the keys gets it
            with self._lock:
                del self._loading[namespace]
            loading.set_exception(error)
            return
        with self._lock:
            del self._loading[namespace]
            outdated = self._held.get(namespace)
            self._held[namespace] = keys
            self._used[namespace] = self._monotonic()
            most = 0 if self._closed else _MOST_HELD
            surplus = list(self._held.items())[: max(0, len(self._held) - most)]
        try:
            # What was destroyed while the keys came is noticed now or never.
            self._refresh(namespace, keys)
        except CustodyError:
            logger.debug("A namespace's keys could not be compared with the registry at once")
        loading.set_result(keys)
        if outdated is not None:
            outdated.wipe(OpenFailure.KEY_UNAVAILABLE)
        for old, its_keys in surplus:
            self._drop(old, its_keys, OpenFailure.KEY_UNAVAILABLE)

    def _fetch(self, namespace: Namespace) -> NamespaceKeys:
        identifier = namespace.identifier(bytes(self._identifying_key()))
        stored = self._table.read(identifier)
        if stored is None or stored.naming_key is None or stored.current is None:
            stored = self._table.create(namespace, identifier)
        elif self._is_due(stored.current.created) and self._table.add_epoch(stored, "rotate_every"):
            stored = self._table.read(identifier) or stored
        epochs = self._unwrap(stored, None)
        if stored.naming_key is None or epochs is None:
            raise UnavailableError("a namespace's keys were destroyed while it was being used")
        try:
            naming_key = self._roots.unwrap(stored.naming_key, naming_context(identifier))
        except CustodyError:
            epochs.wipe()
            raise
        return NamespaceKeys(
            identifier,
            SecretKey(naming_key),
            epochs,
            usable_until=self._monotonic() + self._cached_for,
            learn=partial(self._learn, namespace),
            clock=self._monotonic,
        )

    def _identifying_key(self) -> bytearray:
        if self._identifier_key is None:
            self._identifier_key = self._table.service_key(ServiceKey.NAMESPACE)
        return self._identifier_key

    def _unwrap(self, stored: StoredNamespace, known: NamespaceKeys | None) -> Epochs | None:
        """A namespace's data keys, with those in memory taken from there; `None` if destroyed."""
        if stored.naming_key is None or stored.current is None:
            return None
        in_memory = {} if known is None else known.known
        keys: dict[bytes, DataKey | OpenFailure] = {}
        fresh: list[DataKey] = []
        try:
            for epoch in stored.epochs:
                before = in_memory.get(epoch.key_id)
                if epoch.wrapped is None:
                    keys[epoch.key_id] = OpenFailure.KEY_DESTROYED
                elif isinstance(before, DataKey):
                    keys[epoch.key_id] = before
                else:
                    context = data_context(stored.identifier, epoch.key_id)
                    secret = self._roots.unwrap(epoch.wrapped, context)
                    fresh.append(DataKey(epoch.key_id, secret))
                    keys[epoch.key_id] = fresh[-1]
        except CustodyError:
            for key in fresh:
                key.secret.wipe()
            raise
        current = keys[stored.current.key_id]
        assert isinstance(current, DataKey)  # noqa: S101 - `stored.current` is not destroyed
        return Epochs(keys, current, stored.current.created)

    def _refresh(self, namespace: Namespace, keys: NamespaceKeys, *, confirm: bool = False) -> None:
        """Compare a namespace's keys with the registry.

        Args:
            namespace: whose keys.
            keys: what is in memory of them.
            confirm: whether the provider has to unwrap all anew, which extends their use.

        """
        with keys.refreshing:
            current = keys.current
            if current is None:
                return
            stored = self._table.read(keys.identifier)
            # Needs no provider. After a destruction the naming key is another one, too, so that
            # all is brought anew when the namespace is used next.
            if stored is None or not stored.has(current.key_id):
                self._drop(namespace, keys, OpenFailure.KEY_DESTROYED)
                return
            epochs = self._unwrap(stored, None if confirm else keys)
            if epochs is not None:
                keys.update(epochs)
                if confirm:
                    keys.usable_until = self._monotonic() + self._cached_for

    def _learn(self, namespace: Namespace, keys: NamespaceKeys) -> None:
        now = self._monotonic()
        with self._lock:
            if now - self._learnt.get(keys.identifier, float("-inf")) < _LEARN_AGAIN_SECONDS:
                return
            self._learnt[keys.identifier] = now
        try:
            self._refresh(namespace, keys)
        except CustodyError:
            return  # the block stays unreadable for now, which is a miss

    def _is_due(self, began: float) -> bool:
        return self._clock() - began >= self._rotate_every

    def _drop(self, namespace: Namespace, keys: NamespaceKeys, why: OpenFailure) -> None:
        with self._lock:
            if self._held.get(namespace) is keys:
                del self._held[namespace]
                self._used.pop(namespace, None)
                self._learnt.pop(keys.identifier, None)
        keys.wipe(why)
