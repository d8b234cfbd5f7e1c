"""Jobs of a tier: blocks on their way between host memory and a store.

The one rule that keeps memory safe: a worker touches a block's slot in host memory only between
`claim` and `release`, and a job is reported finished only when none of its blocks is claimed.
A job can therefore be given up at its deadline, whatever a worker hangs in, and the engine may use
the slots for something else.
"""

import threading
from dataclasses import dataclass, field
from enum import Enum, auto

from kvcustody.admission import Grant
from kvcustody.stores import Address


@dataclass(frozen=True, slots=True)
class Slot:
    """A block and its place in host memory.

    Args:
        key: what the engine calls the block, echoed in the outcome.
        address: where the block lies in the store.
        memory: its bytes in host memory.

    """

    key: bytes
    address: Address
    memory: memoryview


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job.

    Args:
        job_id: the job.
        succeeded: keys of the blocks that arrived.
        failed: keys of those that didn't.
        moved_bytes: bytes of KV data that arrived.
        seconds: from submission to the end.

    """

    job_id: int
    succeeded: tuple[bytes, ...]
    failed: tuple[bytes, ...]
    moved_bytes: int
    seconds: float


class _State(Enum):
    WAITING = auto()
    CLAIMED = auto()
    SUCCEEDED = auto()
    FAILED = auto()


@dataclass(slots=True)
class Job:
    """A batch of blocks of one request, moving in one direction.

    Args:
        job_id: the engine's number for it.
        grant: what the request may do.
        slots: the blocks.
        started: monotonic seconds.
        deadline: monotonic seconds at which blocks that wait are given up.

    """

    job_id: int
    grant: Grant
    slots: tuple[Slot, ...]
    started: float
    deadline: float
    _states: list[_State] = field(init=False)
    # Guards `_states`, which workers and the scheduler change.
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._states = [_State.WAITING] * len(self.slots)

    def claim(self, index: int) -> bool:
        """Begin to use a slot's memory; false when the block was given up meanwhile."""
        with self._lock:
            if self._states[index] is not _State.WAITING:
                return False
            self._states[index] = _State.CLAIMED
            return True

    def release(self, index: int, *, succeeded: bool) -> None:
        """End the use of a slot's memory; the block's fate is decided."""
        with self._lock:
            self._states[index] = _State.SUCCEEDED if succeeded else _State.FAILED

    def fail(self, index: int) -> None:
        """Decide the fate of a block whose slot was never claimed."""
        with self._lock:
            if self._states[index] is _State.WAITING:
                self._states[index] = _State.FAILED

    def give_up(self) -> int:
        """Fail all blocks that wait; how many those were."""
        with self._lock:
            waiting = [i for i, state in enumerate(self._states) if state is _State.WAITING]
            for index in waiting:
                self._states[index] = _State.FAILED
            return len(waiting)

    def is_open(self, index: int) -> bool:
        """Whether a block still waits for its worker."""
        with self._lock:
            return self._states[index] is _State.WAITING

    def outcome(self, now: float) -> JobOutcome | None:
        """What became of the job; `None` while a block waits or is claimed."""
        with self._lock:
            states = tuple(self._states)
        if any(state in {_State.WAITING, _State.CLAIMED} for state in states):
            return None
        arrived = [s for s, st in zip(self.slots, states, strict=True) if st is _State.SUCCEEDED]
        failed = [s for s, st in zip(self.slots, states, strict=True) if st is _State.FAILED]
        return JobOutcome(
            self.job_id,
            succeeded=tuple(slot.key for slot in arrived),
            failed=tuple(slot.key for slot in failed),
            moved_bytes=sum(len(slot.memory) for slot in arrived),
            seconds=now - self.started,
        )


class StoreTally:
    """Counts what a store job really put into the store, which goes on after its slots are free.

    Args:
        blocks: how many blocks the job has.

    """

    def __init__(self, blocks: int) -> None:
        self._open = blocks
        self._stored = 0
        self._bytes = 0
        # Guards the counts, which several workers change.
        self._lock = threading.Lock()

    def count(self, moved_bytes: int) -> tuple[int, int] | None:
        """Count one block: its bytes, or 0 if it wasn't stored.

        Returns:
            Blocks and bytes stored in all, when this was the job's last block.

        """
        with self._lock:
            self._open -= 1
            self._stored += moved_bytes > 0
            self._bytes += moved_bytes
            return (self._stored, self._bytes) if self._open == 0 else None
