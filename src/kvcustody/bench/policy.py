"""What the policy costs: a decision looked up, one made, and a new version while others look up.

Each round has all of it: few rules and many, and Casbin's own enforcers beside them.
"""

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import casbin

from kvcustody.bench.gateway import Spread
from kvcustody.bench.generated_policy import (
    MODEL,
    OF_MANY_ROLES,
    OF_MANY_RULES,
    TIER,
    WORKLOADS,
    GeneratedPolicy,
    generate_policy,
    generate_worst,
    tenant,
)
from kvcustody.bench.reloads import BUSY, QUIET, RELOAD, Reloads, Turn
from kvcustody.errors import ConfigurationError
from kvcustody.identity.principal import Principal
from kvcustody.policy import Action, Decisions, Question
from kvcustody.policy.model import casbin_request, plain_enforcer

ENFORCERS = {"Enforcer": casbin.Enforcer, "FastEnforcer": casbin.FastEnforcer}
"""Casbin's own, by the names of their classes."""
_PRINCIPALS = 1000
_MILLI, _NANO = 1e3, 1e9
# Enough of them for a clock, few enough for a slow enforcer.
_ENFORCED_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Args:
        sizes: numbers of rules; the largest is the one that is reloaded.
        tenants: how many custody.yaml has.
        much: rules about a tenant that is much work.
        rounds: how often everything has its turn.
        lookups: in a turn.
        firsts: decisions of principals not seen before, in a turn.
        enforced: up to how many rules Casbin's enforcers have turns; beyond, one call.
        patience: seconds that one call may take.

    """

    sizes: tuple[int, ...] = (10, 1_000, 50_000)
    tenants: int = 10_000
    much: int = 2_000
    rounds: int = 7
    lookups: int = 300_000
    firsts: int = 100
    enforced: int = 1_000
    patience: float = 60.0

    @property
    def turns(self) -> int:
        """How often the progress is told."""
        return 1 + self.rounds


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One number of rules.

    Args:
        rules: how many.
        lookup: nanoseconds that looking up a decision takes, without the loop around it.
        first: milliseconds of a principal's first decision, the median of each round.
        first_longest: the longest of each round.
        casbin: milliseconds that Casbin's enforcers take for one question; `None`: no answer in
            time.

    """

    rules: int
    lookup: Spread
    first: Spread
    first_longest: Spread
    casbin: Mapping[str, Spread | None]


@dataclass(frozen=True, slots=True)
class Beside:
    """Lookups while something else went on, in microseconds, over the rounds.

    Args:
        seconds: how long it went on.
        cpu: seconds of processor time that it took.
        median: of each round's lookups.
        p999: 99.9 in 100 took no longer.
        longest: of each round.
        late: how many took more than a millisecond.

    """

    seconds: Spread
    cpu: Spread
    median: Spread
    p999: Spread
    longest: Spread
    late: Spread


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """All of it.

    Args:
        tenants: how many custody.yaml has.
        rows: by the number of rules.
        worst: milliseconds of the first decision of principals about whom there is much.
        beside: lookups, by what went on beside them.

    """

    tenants: int
    rows: Sequence[PolicyRow]
    worst: Mapping[str, Spread]
    beside: Mapping[str, Beside]


def bench_policy(
    folder: Path, extent: Extent, progress: Callable[[], None] = lambda: None
) -> PolicyFigures:
    """Run the benchmark.

    Args:
        folder: where policy files go; removed afterwards.
        extent: how much is measured.
        progress: told after the preparation and after each round.

    Raises:
        ConfigurationError: the folder can't be used.

    """
    try:
        with TemporaryDirectory(dir=folder, prefix="kvcustody-bench-") as place:
            return _bench(Path(place), extent, progress)
    except OSError as error:
        raise ConfigurationError(f"can't be used: {error.strerror}", folder) from None


def _bench(place: Path, extent: Extent, progress: Callable[[], None]) -> PolicyFigures:
    generated = {size: generate_policy(size, extent.tenants) for size in extent.sizes}
    sizes = [_Size(policy, policy.load(place), extent) for policy in generated.values()]
    worst = _worst_firsts(place, extent)
    reloads = Reloads(place / "reloaded.csv", generated[max(extent.sizes)])
    progress()
    worst_times: dict[str, list[float]] = {name: [] for name in worst}
    noted: dict[str, list[Turn]] = {QUIET: [], BUSY: [], RELOAD: []}
    with _collected():
        for _ in range(extent.rounds):
            for size in sizes:
                size.turn()
            for name, firsts in worst.items():
                worst_times[name].append(max(firsts(extent.firsts // 10 or 1)))
            for name, turn in reloads.turn():
                noted[name].append(turn)
            progress()
    return PolicyFigures(
        extent.tenants,
        [size.row() for size in sizes],
        {name: Spread.of(times) for name, times in worst_times.items()},
        {name: _beside(turns) for name, turns in noted.items()},
    )


@contextmanager
def _collected() -> Iterator[None]:
    """Leave what is there to no garbage collection, as vLLM does once its engine is ready."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Size:
    """The contenders for one number of rules, and their times."""

    def __init__(self, policy: GeneratedPolicy, decisions: Decisions, extent: Extent) -> None:
        self._policy, self._decisions, self._extent = policy, decisions, extent
        numbers = range(min(_PRINCIPALS, extent.tenants))
        step = max(1, extent.tenants // _PRINCIPALS)
        self._seen = [Principal(tenant(number * step), WORKLOADS[0]) for number in numbers]
        for principal in self._seen:
            decisions.decide(principal, MODEL)
        self._unseen = _unseen(extent.tenants)
        self._question = Question(f"{tenant(0)}/{WORKLOADS[0]}", TIER, Action.LOAD, MODEL)
        self._enforcers = {}
        if len(policy.lines) <= extent.enforced:
            self._enforcers = {
                name: plain_enforcer(policy.rules(), policy.facts, its_class)
                for name, its_class in ENFORCERS.items()
            }
        self._lookups: list[float] = []
        self._firsts: list[list[float]] = []
        self._enforced: dict[str, list[float]] = {name: [] for name in self._enforcers}

    def turn(self) -> None:
        """Time each once."""
        self._lookups.append(lookup_nanoseconds(self._decisions, self._seen, self._extent.lookups))
        self._firsts.append(first_times(self._decisions, self._unseen, self._extent.firsts))
        request = casbin_request(self._question, self._policy.facts)
        for name, enforcer in self._enforcers.items():
            self._enforced[name].append(_milliseconds_of(lambda: enforcer.enforce(*request)))  # noqa: B023 - called at once

    def row(self) -> PolicyRow:
        """The summary of all turns."""
        enforced: dict[str, Spread | None] = {
            name: Spread.of(times) for name, times in self._enforced.items()
        }
        for name in ENFORCERS.keys() - enforced.keys():
            took = enforced_once(name, self._policy, self._question, self._extent.patience)
            enforced[name] = None if took is None else Spread.of([took])
        return PolicyRow(
            len(self._policy.lines),
            Spread.of(self._lookups),
            Spread.of([sorted(times)[len(times) // 2] for times in self._firsts]),
            Spread.of([max(times) for times in self._firsts]),
            {name: enforced[name] for name in ENFORCERS},
        )


def lookup_nanoseconds(
    decisions: Decisions, principals: Sequence[Principal], lookups: int
) -> float:
    """What one lookup of a decision takes, as the scheduler makes it, less the loop around it."""
    rounds = max(1, lookups // len(principals))
    clock = time.perf_counter
    began = clock()
    for _ in range(rounds):
        for principal in principals:
            decisions.decide(principal, MODEL)[TIER].load.allowed  # noqa: B018 - that is timed
    between = clock()
    for _ in range(rounds):
        for principal in principals:  # noqa: B007 - likewise
            pass
    ended = clock()
    return ((between - began) - (ended - between)) / (rounds * len(principals)) * _NANO


def first_times(decisions: Decisions, principals: Iterator[Principal], number: int) -> list[float]:
    """Milliseconds that the next principals' first decisions take."""
    times = []
    for principal in islice(principals, number):
        began = time.perf_counter()
        decisions.decide(principal, MODEL)
        times.append((time.perf_counter() - began) * _MILLI)
    return times


def enforced_once(
    enforcer: str, policy: GeneratedPolicy, question: Question, patience: float
) -> float | None:
    """Milliseconds of one call of one of `ENFORCERS`; `None` if it takes longer than patience."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_enforce, args=(its, enforcer, policy, question), daemon=True)
    process.start()
    its.close()
    try:
        # An enforcer of many rules is long in the making.
        ready = mine.poll(patience * 2) and mine.recv() is not None
        return float(mine.recv()) if ready and mine.poll(patience) else None
    finally:
        process.kill()
        process.join()


def _enforce(
    pipe: "multiprocessing.connection.Connection[object, object]",
    enforcer: str,
    policy: GeneratedPolicy,
    question: Question,
) -> None:
    made = plain_enforcer(policy.rules(), policy.facts, ENFORCERS[enforcer])
    pipe.send(enforcer)
    began = time.perf_counter()
    made.enforce(*casbin_request(question, policy.facts))
    pipe.send((time.perf_counter() - began) * _MILLI)


def _worst_firsts(place: Path, extent: Extent) -> dict[str, Callable[[int], list[float]]]:
    policy = generate_worst(max(extent.sizes), extent.tenants, extent.much)
    decisions = policy.load(place)

    def of(name: str) -> Callable[[int], list[float]]:
        principals = (Principal(name, f"workload-{number}") for number in count())
        return lambda number: first_times(decisions, principals, number)

    return {name: of(name) for name in (OF_MANY_ROLES, OF_MANY_RULES)}


def _unseen(tenants: int) -> Iterator[Principal]:
    for number in count():
        # A stride that has no factor in common with round numbers reaches tenants of all kinds.
        yield Principal(tenant(number * 37 % tenants), f"{WORKLOADS[2]}-{number // tenants}")


def _milliseconds_of(call: Callable[[], object]) -> float:
    call()  # a cold cache is nobody's merit
    calls, began = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        seconds = time.perf_counter() - began
        if seconds >= _ENFORCED_SECONDS:
            return seconds / calls * _MILLI


def _beside(turns: Sequence[Turn]) -> Beside:
    found = [turn.latencies for turn in turns]
    return Beside(
        Spread.of([turn.seconds for turn in turns]),
        Spread.of([turn.cpu for turn in turns]),
        Spread.of([each.median for each in found]),
        Spread.of([each.p999 for each in found]),
        Spread.of([each.longest for each in found]),
        Spread.of([each.late for each in found]),
    )
