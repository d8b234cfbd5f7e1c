"""A tier under custody: seals what goes to its store, opens what comes back, accounts for both.

The scheduler's thread calls `lookup`, `submit_store`, `submit_load` and `finished`, none of which
does I/O. Worker threads do it, and nothing that a store does wrong leaves this module: an error, a
deadline or a damaged block is a miss.
"""

import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from kvcustody.admission import Grant
from kvcustody.audit import AuditLog
from kvcustody.errors import StoreError
from kvcustody.sealing import BlockIdentity, Header, OpenFailure, open_into, seal_into, sealed_size
from kvcustody.stores import Address, TierStore
from kvcustody.tiers.counters import Count, TierCounters
from kvcustody.tiers.jobs import Job, JobOutcome, Slot, StoreTally
from kvcustody.tiers.presence import Presence, PresenceLookups
from kvcustody.workers import WorkerPool

# Sealing runs at memory speed on two threads; a few more keep slow I/O from standing in its way.
# Somebody waits for a load and nobody for a store, so neither queues behind the other.
_LOAD_THREADS = 3
_STORE_THREADS = 2
_LOOKUP_THREADS = 2
# Storing is nobody's wait, but a backlog pins host memory: what isn't sealed by then is dropped.
_STORE_DEADLINE_SECONDS = 30.0
_CLOSE_SECONDS = 4.0
_DRAIN_POLL_SECONDS = 0.001

# A block that fails these checks may be fine for someone with the key; all others are removed.
_KEPT_FAILURES = frozenset({OpenFailure.KEY_UNAVAILABLE})


class GovernedTier:
    """Moves blocks between host memory and a store, sealed.

    Args:
        name: the tier's name.
        store: keeps the sealed blocks.
        audit: told what was stored, loaded and rejected.
        layout: 32-byte digest of what a block's bytes mean.
        block_bytes: bytes of one block in host memory.
        ttl: longest life of a block here, in seconds.
        lookup_deadline: seconds until an unanswered lookup counts as a miss.
        load_deadline: seconds until blocks not yet loaded count as missing.
        clock: seconds since 1970.

    """

    def __init__(
        self,
        name: str,
        store: TierStore,
        audit: AuditLog,
        *,
        layout: bytes,
        block_bytes: int,
        ttl: float,
        lookup_deadline: float,
        load_deadline: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.counters = TierCounters()
        self._store = store
        self._audit = audit
        self._layout = layout
        self._ttl = ttl
        self._load_deadline = load_deadline
        self._clock = clock
        self._lookup_workers = WorkerPool(f"kvcustody-{name}-lookup", _LOOKUP_THREADS)
        self._load_workers = WorkerPool(f"kvcustody-{name}-load", _LOAD_THREADS)
        self._store_workers = WorkerPool(f"kvcustody-{name}-store", _STORE_THREADS)
        self._lookups = PresenceLookups(store, self._lookup_workers, deadline=lookup_deadline)
        # A buffer for each thread, made once: blocks are megabytes, and one byte more than a
        # sealed block shows a longer file for what it is.
        size = sealed_size(block_bytes) + 1
        self._load_buffers = _buffers(_LOAD_THREADS, size)
        self._store_buffers = _buffers(_STORE_THREADS, size)
        self._stores: dict[int, Job] = {}
        self._loads: dict[int, Job] = {}

    def lookup(self, grant: Grant, address: Address) -> Presence:
        """Whether a block lies here, as far as is known yet."""
        if not grant.may_load(self.name):
            return Presence.ABSENT
        return self._lookups.lookup(grant.engine_request_id, address)

    def flush_lookups(self) -> None:
        """Send the lookups since the last call to the workers."""
        self._lookups.flush()

    def forget(self, grant: Grant) -> None:
        """Drop what was looked up for a finished request."""
        self._lookups.forget(grant.engine_request_id)

    def submit_store(self, job_id: int, grant: Grant, slots: Sequence[Slot]) -> None:
        """Begin to seal and store blocks."""
        job = self._new_job(job_id, grant, slots, _STORE_DEADLINE_SECONDS)
        self._stores[job_id] = job
        if not (grant.may_store(self.name) and self._audit.accepting):
            job.give_up()
            return
        tally = StoreTally(len(job.slots))
        for index in range(len(job.slots)):
            self._store_workers.submit(partial(self._store_block, job, index, tally))

    def submit_load(self, job_id: int, grant: Grant, slots: Sequence[Slot]) -> None:
        """Begin to load and open blocks."""
        job = self._new_job(job_id, grant, slots, self._load_deadline)
        self._loads[job_id] = job
        if not (grant.may_load(self.name) and self._audit.accepting):
            job.give_up()
            return
        for index in range(len(job.slots)):
            self._load_workers.submit(partial(self._load_block, job, index))

    def finished(self) -> list[JobOutcome]:
        """Outcomes since the last call; jobs past their deadline are given up."""
        return [
            *(outcome for _, outcome in self._collect(self._stores)),
            *(self._account_load(job, outcome) for job, outcome in self._collect(self._loads)),
        ]

    def has_work(self) -> bool:
        """Whether a job has not ended yet."""
        return bool(self._stores or self._loads)

    def drain(self) -> None:
        """End all jobs: give up what waits, let what is in host memory finish (memory speed)."""
        for job in [*self._stores.values(), *self._loads.values()]:
            job.give_up()
            while job.outcome(time.monotonic()) is None:
                time.sleep(_DRAIN_POLL_SECONDS)

    def close(self) -> bool:
        """End all jobs and stop the threads; false when one hangs in the store."""
        self.drain()
        pools = (self._lookup_workers, self._load_workers, self._store_workers)
        stopped = [pool.close(_CLOSE_SECONDS / len(pools)) for pool in pools]
        return all(stopped)

    def _new_job(self, job_id: int, grant: Grant, slots: Sequence[Slot], patience: float) -> Job:
        now = time.monotonic()
        return Job(job_id, grant, tuple(slots), started=now, deadline=now + patience)

    def _collect(self, jobs: dict[int, Job]) -> list[tuple[Job, JobOutcome]]:
        now = time.monotonic()
        ended = []
        for job in list(jobs.values()):
            if now > job.deadline:
                action = "store" if jobs is self._stores else "load"
                self.counters.add(Count.DROPPED, job.give_up(), action)
            outcome = job.outcome(now)
            if outcome is not None:
                del jobs[job.job_id]
                ended.append((job, outcome))
        return ended

    def _store_block(self, job: Job, index: int, tally: StoreTally) -> None:
        """Seal one block into a buffer, then put it; its slot is free before the slow part."""
        slot = job.slots[index]
        stored = 0
        buffer = self._store_buffers.get()
        try:
            sealed = buffer[: sealed_size(len(slot.memory))]
            if job.claim(index):
                try:
                    is_sealed = self._seal(job.grant, slot, sealed)
                finally:
                    job.release(index, succeeded=True)
                if is_sealed:
                    self._store.put(slot.address, sealed)
                    stored = len(slot.memory)
                else:
                    self._drop(job.grant, "store", "the namespace's keys are not usable any more")
        except StoreError as error:
            self._drop(job.grant, "store", str(error))
        finally:
            self._store_buffers.put(buffer)
            total = tally.count(stored)
            if total is not None:
                self.counters.add(Count.STORED, total[0])
                self.counters.add(Count.STORED_BYTES, total[1])
                self._account("blocks.stored", "store", job, *total)

    def _seal(self, grant: Grant, slot: Slot, sealed: memoryview) -> bool:
        """Seal a block; false when its namespace has no key, so that nothing may be stored."""
        key = grant.keys.current
        if key is None:
            return False
        now = self._clock()
        life = grant.life_on(self.name)
        ttl = self._ttl if life is None else min(self._ttl, life)
        return seal_into(
            sealed,
            slot.memory,
            self._identity(slot),
            key,
            created=int(now * 1000),
            expires=int((now + ttl) * 1000),
        )

    def _load_block(self, job: Job, index: int) -> None:
        """Read one block into a buffer (the slow part), then open it into its slot."""
        slot = job.slots[index]
        if not job.is_open(index):
            return
        buffer = self._load_buffers.get()
        try:
            count = self._store.get(slot.address, buffer)
            if count is not None:
                # Before the claim, because it may ask the registry.
                _learn_key(job.grant, buffer[:count])
            if count is not None and job.claim(index):
                failure: OpenFailure | None = OpenFailure.KEY_UNAVAILABLE
                try:
                    failure = self._open(job.grant, slot, buffer[:count])
                finally:
                    job.release(index, succeeded=failure is None)
                if failure is not None:
                    self._reject(job.grant, slot, failure)
        except StoreError as error:
            self._drop(job.grant, "load", str(error))
        finally:
            self._load_buffers.put(buffer)
            job.fail(index)

    def _open(self, grant: Grant, slot: Slot, sealed: memoryview) -> OpenFailure | None:
        return open_into(
            slot.memory,
            sealed,
            self._identity(slot),
            grant.keys.find,
            now=int(self._clock() * 1000),
        )

    def _identity(self, slot: Slot) -> BlockIdentity:
        return BlockIdentity(slot.address.namespace, slot.address.name, self._layout)

    def _reject(self, grant: Grant, slot: Slot, failure: OpenFailure) -> None:
        """Account for a block that failed a check, and remove it: it would fail again."""
        self.counters.add(Count.REJECTED, label=failure.value)
        self._audit_block(
            "block.rejected",
            grant,
            "load",
            block=slot.address.name.hex(),
            check=failure.value,
        )
        # The slot is released already: a store that hangs here holds up nobody.
        if failure not in _KEPT_FAILURES:
            with suppress(StoreError):
                self._store.delete(slot.address)

    def _drop(self, grant: Grant, action: str, why: str) -> None:
        self.counters.add(Count.DROPPED, label=action)
        self._audit_block("blocks.dropped", grant, action, blocks=1, why=why)

    def _account_load(self, job: Job, outcome: JobOutcome) -> JobOutcome:
        failed = set(outcome.failed)
        for slot in job.slots:
            if slot.key in failed:
                self._lookups.mark_absent(job.grant.engine_request_id, slot.address)
        if job.grant.may_load(self.name):
            self.counters.add(Count.LOADED, len(outcome.succeeded))
            self.counters.add(Count.LOADED_BYTES, outcome.moved_bytes)
            self._account("blocks.loaded", "load", job, len(outcome.succeeded), outcome.moved_bytes)
        return outcome

    def _account(self, event: str, action: str, job: Job, blocks: int, moved_bytes: int) -> None:
        failed = len(job.slots) - blocks
        self._audit.record(
            event,
            **job.grant.audit_fields(),
            tier=self.name,
            action=action,
            outcome="ok" if not failed else "partial" if blocks else "failed",
            blocks=blocks,
            failed=failed,
            bytes=moved_bytes,
        )

    def _audit_block(self, event: str, grant: Grant, action: str, **fields: str | int) -> None:
        self._audit.record(
            event,
            **grant.audit_fields(),
            tier=self.name,
            action=action,
            outcome="failed",
            **fields,
        )


def _learn_key(grant: Grant, sealed: memoryview) -> None:
    header = Header.parse(sealed)
    if isinstance(header, Header):
        grant.keys.learn(header.key_id)


def _buffers(count: int, size: int) -> "queue.SimpleQueue[memoryview]":
    buffers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    for _ in range(count):
        buffers.put(memoryview(bytearray(size)))
    return buffers
