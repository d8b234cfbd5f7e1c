"""Whether blocks lie in a tier: asked off the scheduler's thread, answered within a deadline."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from kvcustody.errors import StoreError
from kvcustody.stores import Address, TierStore
from kvcustody.workers import WorkerPool


class Presence(Enum):
    """What is known of a block."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Lookups:
    """One request's lookups.

    Args:
        known: answers so far.
        asked: when each open question was asked, in monotonic seconds.
        fresh: questions that are not with a worker yet.

    """

    known: dict[Address, Presence] = field(default_factory=dict)
    asked: dict[Address, float] = field(default_factory=dict)
    fresh: list[Address] = field(default_factory=list)


class PresenceLookups:
    """Asks a store for the blocks of each request, in batches.

    An answer counts for the rest of the request; a question that outlives its deadline counts as
    answered with "absent", so a slow tier costs a recompute and never a hang.

    Args:
        store: the tier's store.
        workers: threads to ask from.
        deadline: seconds until an open question counts as absent.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        store: TierStore,
        workers: WorkerPool,
        *,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._workers = workers
        self._deadline = deadline
        self._clock = clock
        self._requests: dict[str, _Lookups] = {}
        # Guards `_requests` and all below it: workers answer while the scheduler asks.
        self._lock = threading.Lock()

    def lookup(self, request_id: str, address: Address) -> Presence:
        """What is known of a block; the first call asks, `flush` sends the questions off."""
        now = self._clock()
        with self._lock:
            lookups = self._requests.setdefault(request_id, _Lookups())
            known = lookups.known.get(address)
            if known is not None:
                return known
            asked = lookups.asked.get(address)
            if asked is None:
                lookups.asked[address] = now
                lookups.fresh.append(address)
            elif now - asked > self._deadline:
                lookups.known[address] = Presence.ABSENT
                return Presence.ABSENT
            return Presence.UNKNOWN

    def flush(self) -> None:
        """Send the questions since the last call to the workers, one task a request."""
        with self._lock:
            batches = [
                (request_id, tuple(lookups.fresh))
                for request_id, lookups in self._requests.items()
                if lookups.fresh
            ]
            for request_id, _ in batches:
                self._requests[request_id].fresh.clear()
        for request_id, batch in batches:
            self._workers.submit(partial(self._answer, request_id, batch))

    def mark_absent(self, request_id: str, address: Address) -> None:
        """Remember that a block turned out to be of no use to this request."""
        with self._lock:
            lookups = self._requests.get(request_id)
            if lookups is not None:
                lookups.known[address] = Presence.ABSENT

    def forget(self, request_id: str) -> None:
        """Drop a finished request's answers."""
        with self._lock:
            self._requests.pop(request_id, None)

    def _answer(self, request_id: str, batch: Sequence[Address]) -> None:
        for address in batch:
            with self._lock:
                lookups = self._requests.get(request_id)
                if lookups is None:
                    return  # the request is gone; nobody waits for the rest
            try:
                found = self._store.exists(address)
            except StoreError:
                found = False
            with self._lock:
                # A question that has run into its deadline stays answered.
                lookups.known.setdefault(address, Presence.PRESENT if found else Presence.ABSENT)
