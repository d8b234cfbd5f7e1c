"""A namespace's keys in memory: those of all epochs that still open blocks, and the naming key."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvcustody.sealing.format import OpenFailure
from kvcustody.sealing.secret import DataKey, SecretKey


@dataclass(frozen=True, slots=True)
class Epochs:
    """The data keys of a namespace.

    Args:
        keys: all that are known, by key id; a destroyed one is `KEY_DESTROYED`.
        current: the newest one, which new blocks are sealed with.
        began: when that one's epoch did, in seconds since 1970.

    """

    keys: Mapping[bytes, DataKey | OpenFailure]
    current: DataKey
    began: float

    def wipe(self, *, but: "Epochs | None" = None) -> None:
        """Wipe the keys from memory, except those that others still hold."""
        kept = set() if but is None else set(map(id, but.keys.values()))
        for key in self.keys.values():
            if isinstance(key, DataKey) and id(key) not in kept:
                key.secret.wipe()


class NamespaceKeys:
    """A namespace's keys in use, until they are wiped or too old.

    Requests hold on to this object, so whatever happens to the keys reaches requests under way:
    afterwards they name, seal and open nothing.

    Args:
        identifier: the namespace's 16 bytes.
        naming_key: the secret behind block names.
        epochs: the data keys.
        usable_until: monotonic seconds; without a new confirmation the keys rest from then on.
        learn: asked to bring news when a block names an unknown key; may block.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        identifier: bytes,
        naming_key: SecretKey,
        epochs: Epochs,
        *,
        usable_until: float = float("inf"),
        learn: Callable[["NamespaceKeys"], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identifier = identifier
        self.usable_until = usable_until
        self._naming_key = naming_key
        # Replaced as a whole, so that threads need no lock to read it.
        self._epochs: Epochs | None = epochs
        # Guards changes of `_epochs`: a late update must not bring wiped keys back.
        self._changing = threading.Lock()
        # Held by whoever compares these keys with the registry, which may take a while.
        self.refreshing = threading.Lock()
        self._gone = OpenFailure.KEY_UNAVAILABLE
        self._learn = learn
        self._clock = clock

    def __repr__(self) -> str:
        return f"NamespaceKeys(identifier={self.identifier.hex()})"

    @property
    def current(self) -> DataKey | None:
        """The data key that new blocks are sealed with; `None` when nothing may be sealed."""
        epochs = self._usable()
        return None if epochs is None else epochs.current

    @property
    def began(self) -> float:
        """When the current epoch began, in seconds since 1970; infinity without one."""
        epochs = self._usable()
        return float("inf") if epochs is None else epochs.began

    def find(self, key_id: bytes) -> DataKey | OpenFailure:
        """The data key of any epoch, or why there is none."""
        epochs = self._usable()
        if epochs is None:
            return self._gone
        return epochs.keys.get(key_id, OpenFailure.KEY_UNAVAILABLE)

    def learn(self, key_id: bytes) -> None:
        """Find out about a key that isn't known yet: another engine may have begun an epoch."""
        epochs = self._usable()
        if epochs is not None and key_id not in epochs.keys and self._learn is not None:
            self._learn(self)

    def name(self, block: bytes) -> bytes | None:
        """The 32-byte name of a block; `None` when nothing may be named.

        Args:
            block: what the engine calls the block (block hash and KV group).

        """
        return None if self._usable() is None else self._naming_key.digest(block)

    def update(self, epochs: Epochs) -> None:
        """Use other data keys from now on; keys that are not among them are wiped.

        Once the keys were wiped nothing brings others in; these are wiped, too.
        """
        with self._changing:
            before = self._epochs
            if before is None:
                epochs.wipe()
                return
            self._epochs = epochs
            before.wipe(but=epochs)

    def wipe(self, why: OpenFailure) -> None:
        """Wipe all keys from memory.

        Args:
            why: `KEY_DESTROYED` or `KEY_UNAVAILABLE`, which is what requests get to know.

        """
        with self._changing:
            self._gone = why
            epochs, self._epochs = self._epochs, None
            self._naming_key.wipe()
            if epochs is not None:
                epochs.wipe()

    @property
    def known(self) -> Mapping[bytes, DataKey | OpenFailure]:
        """All data keys in memory, by key id."""
        return {} if self._epochs is None else self._epochs.keys

    def _usable(self) -> Epochs | None:
        return self._epochs if self._clock() < self.usable_until else None
