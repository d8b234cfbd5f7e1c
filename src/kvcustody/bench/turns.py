"""Time contenders by turns, so that whatever else the machine does hits all of them alike."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Step = Callable[[], object]
"""One operation of a contender."""

Contender = Callable[[int], Step]
"""Prepares one thread of a contender, by the thread's number; its step is then repeated."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second over the rounds.

    Args:
        median: of all rounds.
        lowest: of the slowest round.
        highest: of the fastest round.

    """

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, rates: Sequence[float]) -> "Rate":
        """The summary of some rounds' rates."""
        return cls(statistics.median(rates), min(rates), max(rates))


def by_turns(
    contenders: Mapping[str, Contender],
    *,
    step_bytes: int,
    threads: int,
    rounds: int,
    seconds: float,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Rate]:
    """Time contenders, each for a moment, round after round.

    Args:
        contenders: by name.
        step_bytes: what one step of each moves.
        threads: how many do the same at once.
        rounds: how often each has its turn.
        seconds: length of a turn.
        progress: told after each turn.

    """
    steps = {name: [make(index) for index in range(threads)] for name, make in contenders.items()}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, its_steps in steps.items():
            rates[name].append(step_bytes * _steps_per_second(its_steps, seconds))
            progress()
    return {name: Rate.of(its_rates) for name, its_rates in rates.items()}


def _steps_per_second(steps: Sequence[Step], seconds: float) -> float:
    counts = [0] * len(steps)
    start = threading.Barrier(len(steps) + 1)
    stop = threading.Event()

    def work(index: int) -> None:
        step = steps[index]
        step()  # a cold cache is nobody's merit
        start.wait()
        while not stop.is_set():
            step()
            counts[index] += 1

    workers = [threading.Thread(target=work, args=[index]) for index in range(len(steps))]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)
