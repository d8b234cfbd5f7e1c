"""New versions of a policy, while another thread looks up decisions."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from kvcustody.bench.generated_policy import MODEL, TIER, WORKLOADS, GeneratedPolicy, tenant
from kvcustody.bench.lookups import Latencies, lookups
from kvcustody.identity.principal import Principal
from kvcustody.policy import Decisions, PolicyInForce, PolicyWatch, load_policy
from kvcustody.policy.rules import Pause, in_slices, let_others_run, short_turns

QUIET, BUSY, RELOAD = "quiet", "busy", "reload"
"""What goes on beside lookups: nothing, another thread that counts, a new version of the policy."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One of them in one round.

    Args:
        seconds: how long it went on.
        cpu: seconds of processor time that it took, without the lookups'.
        latencies: of the lookups beside it.

    """

    seconds: float
    cpu: float
    latencies: Latencies


class Reloads:
    """Lookups in one thread, and by turns nothing, a busy thread and new versions beside it.

    Args:
        file: where the policy is written.
        policy: what is loaded again and again.

    """

    def __init__(self, file: Path, policy: GeneratedPolicy) -> None:
        self._file, self._policy = file, policy
        self._version = 0
        self._write()
        self._in_force = PolicyInForce(load_policy(file, None, policy.facts))
        self._watch = PolicyWatch(
            self._in_force,
            self,
            self.signature(),
            on_loaded=lambda _: None,
            on_rejected=_fail,
        )
        self._seconds = 1.0

    def signature(self) -> object:
        """The version of the file."""
        return self._version

    def load(self, pause: Pause) -> Decisions:
        """The policy in the file."""
        return load_policy(self._file, None, self._policy.facts, pause=pause)

    def turn(self) -> Iterator[tuple[str, Turn]]:
        """What lookups took beside each, and how long that lasted."""
        self._write()
        self._watch.look()  # only at the second look it is sure that nobody writes any more
        yield RELOAD, self._beside(self._reload)
        yield QUIET, self._beside(lambda: time.sleep(self._seconds))
        yield BUSY, self._beside(self._count)

    def _beside(self, work: Callable[[], None]) -> Turn:
        principal = Principal(tenant(1), WORKLOADS[0])
        policy = self._in_force
        with lookups(lambda: policy.current.decide(principal, MODEL)[TIER].load.allowed) as found:
            began, used = time.perf_counter(), time.thread_time()
            work()
            seconds, cpu = time.perf_counter() - began, time.thread_time() - used
        return Turn(seconds, cpu, found())

    def _write(self) -> None:
        self._version += 1
        comment = f"# version {self._version}"
        replace(self._policy, lines=(*self._policy.lines, comment)).write(self._file)

    def _reload(self) -> None:
        began, before = time.perf_counter(), self._in_force.version
        self._watch.look()
        self._seconds = time.perf_counter() - began
        if self._in_force.version == before:
            raise RuntimeError("the benchmark's policy was not loaded")

    def _count(self) -> None:
        """Work with pauses that calls nothing that could hold up others."""
        until = time.monotonic() + self._seconds
        with short_turns():
            for _ in in_slices(count(), let_others_run):
                if time.monotonic() > until:
                    return


def _fail(error: Exception) -> None:
    raise error
