"""What a tier counts for metrics: blocks and bytes that moved, and blocks that didn't, with why."""

import threading
from collections import Counter
from enum import StrEnum


class Count(StrEnum):
    """Something counted; each has a label of few values, or none (an empty one)."""

    STORED = "blocks_stored"
    STORED_BYTES = "bytes_stored"
    LOADED = "blocks_loaded"
    LOADED_BYTES = "bytes_loaded"
    DROPPED = "blocks_dropped"
    """Labelled with what failed, `store` or `load`: an error of the store, or a deadline."""
    REJECTED = "blocks_rejected"
    """Labelled with the check that a block failed, an `OpenFailure`."""


class TierCounters:
    """Counters that workers add to and the scheduler takes from."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Count, str]] = Counter()
        # Guards `_counts`.
        self._lock = threading.Lock()

    def add(self, what: Count, amount: int = 1, label: str = "") -> None:
        """Count something."""
        with self._lock:
            self._counts[what, label] += amount

    def take(self) -> dict[tuple[Count, str], int]:
        """What was counted since the last call, by kind and label."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {key: amount for key, amount in counts.items() if amount}
