"""Look decisions up without a pause, and note how long each took."""

import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_BIN_NANOSECONDS = 10
_BINS = 100_000
_MILLISECOND = 10**6


@dataclass(frozen=True, slots=True)
class Latencies:
    """How long lookups took while something else went on, in microseconds.

    Args:
        count: how many there were.
        median: of them.
        p999: 99.9 in 100 took no longer.
        longest: of them.
        late: how many took more than a millisecond.

    """

    count: int
    median: float
    p999: float
    longest: float
    late: int


@dataclass
class _Noted:
    """Times between the ends of one lookup and the next, of which none goes unseen."""

    bins: "array[int]" = field(default_factory=lambda: array("q", bytes(8 * _BINS)))
    late: list[int] = field(default_factory=list)

    def summary(self) -> Latencies:
        total = sum(self.bins) + len(self.late)
        longest = max(self.late, default=0) or _BIN_NANOSECONDS * max(
            (place for place, count in enumerate(self.bins) if count), default=0
        )
        return Latencies(
            total,
            self._below(total * 0.5) / 1000,
            self._below(total * 0.999) / 1000,
            longest / 1000,
            len(self.late),
        )

    def _below(self, wanted: float) -> int:
        seen = 0
        for place, count in enumerate(self.bins):
            seen += count
            if seen >= wanted:
                return (place + 1) * _BIN_NANOSECONDS
        return max(self.late)


@contextmanager
def lookups(look_up: Callable[[], object]) -> Iterator[Callable[[], Latencies]]:
    """Look up in another thread meanwhile.

    Yields:
        What to call for the figures, after the block.

    """
    noted = _Noted()
    begun, stop = threading.Event(), threading.Event()

    def work() -> None:
        bins, late, clock, stopped = noted.bins, noted.late, time.perf_counter_ns, stop.is_set
        begun.set()
        before = clock()
        while not stopped():
            look_up()
            now = clock()
            took = now - before
            before = now
            if took < _MILLISECOND:
                bins[took // _BIN_NANOSECONDS] += 1
            else:
                late.append(took)

    worker = threading.Thread(target=work, name="kvcustody-bench")
    worker.start()
    begun.wait()
    try:
        yield noted.summary
    finally:
        stop.set()
        worker.join()
