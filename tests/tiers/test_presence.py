import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from kvcustody.errors import StoreError
from kvcustody.stores import Address
from kvcustody.tiers.presence import Presence, PresenceLookups
from kvcustody.workers import WorkerPool

pytestmark = pytest.mark.unit

HERE = Address(b"\x01" * 16, b"\x02" * 32)
THERE = Address(b"\x01" * 16, b"\x03" * 32)
DEADLINE = 0.2


class PresenceStub:
    """A store of which only `exists` is asked; it may fail, or hang until it is let go."""

    def __init__(self, *present: Address) -> None:
        self.present = set(present)
        self.asked: list[Address] = []
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()

    def exists(self, address: Address) -> bool:
        self.asked.append(address)
        assert self.answers.wait(10)
        if self.error is not None:
            raise self.error
        return address in self.present

    def put(self, address: Address, sealed: memoryview) -> None:
        raise NotImplementedError

    def get(self, address: Address, buffer: memoryview) -> int | None:
        raise NotImplementedError

    def delete(self, address: Address) -> bool:
        raise NotImplementedError

    def addresses(self) -> Iterator[Address]:
        raise NotImplementedError


class ManualPool(WorkerPool):
    """A pool without threads, whose tasks run when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, task: Callable[[], None]) -> None:
        self.waiting.append(task)

    def run(self) -> None:
        """Run all tasks that wait."""
        while self.waiting:
            self.waiting.pop(0)()


class Clock:
    """Monotonic seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fixture:
    """Lookups with a store, a pool and a clock that the test holds in its hand."""

    def __init__(self, *present: Address) -> None:
        self.store = PresenceStub(*present)
        self.pool = ManualPool()
        self.clock = Clock()
        self.lookups = PresenceLookups(self.store, self.pool, deadline=DEADLINE, clock=self.clock)

    def answer(self) -> None:
        """Send the questions off and let the workers answer them."""
        self.lookups.flush()
        self.pool.run()


def test_a_block_is_unknown_until_the_store_has_answered() -> None:
    fixture = Fixture(HERE)
    assert fixture.lookups.lookup("r", HERE) is Presence.UNKNOWN
    fixture.lookups.flush()
    assert fixture.lookups.lookup("r", HERE) is Presence.UNKNOWN
    fixture.pool.run()
    assert fixture.lookups.lookup("r", HERE) is Presence.PRESENT


def test_a_block_that_is_not_there_is_absent() -> None:
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", THERE)
    fixture.answer()
    assert fixture.lookups.lookup("r", THERE) is Presence.ABSENT


def test_the_store_is_asked_once_for_each_block_of_a_request() -> None:
    fixture = Fixture(HERE)
    for _ in range(3):
        fixture.lookups.lookup("r", HERE)
        fixture.lookups.lookup("r", THERE)
        fixture.answer()
    assert fixture.store.asked == [HERE, THERE]


def test_the_questions_of_a_request_travel_together() -> None:
    fixture = Fixture()
    for request in ("r", "s"):
        fixture.lookups.lookup(request, HERE)
        fixture.lookups.lookup(request, THERE)
    fixture.lookups.flush()
    assert len(fixture.pool.waiting) == 2
    fixture.lookups.flush()
    assert len(fixture.pool.waiting) == 2


def test_nothing_is_asked_before_a_flush() -> None:
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", HERE)
    assert fixture.pool.waiting == []
    assert fixture.store.asked == []


def test_a_failing_store_has_no_block() -> None:
    fixture = Fixture(HERE)
    fixture.store.error = StoreError("stat failed")
    fixture.lookups.lookup("r", HERE)
    fixture.answer()
    assert fixture.lookups.lookup("r", HERE) is Presence.ABSENT


def test_a_store_with_a_bug_has_no_block_once_the_deadline_has_passed() -> None:
    fixture = Fixture(HERE)
    fixture.store.error = ZeroDivisionError()
    fixture.lookups.lookup("r", HERE)
    with pytest.raises(ZeroDivisionError):
        fixture.answer()
    fixture.clock.now += DEADLINE + 0.01
    assert fixture.lookups.lookup("r", HERE) is Presence.ABSENT


@pytest.mark.parametrize("sent", [True, False], ids=["hanging", "never sent"])
def test_a_question_past_its_deadline_is_answered_with_absent(sent: bool) -> None:
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", HERE)
    if sent:
        fixture.lookups.flush()
    fixture.clock.now += DEADLINE - 0.01
    assert fixture.lookups.lookup("r", HERE) is Presence.UNKNOWN
    fixture.clock.now += 0.02
    assert fixture.lookups.lookup("r", HERE) is Presence.ABSENT


def test_a_late_answer_does_not_bring_a_block_back() -> None:
    """The scheduler has begun to recompute the block; it must not change its mind."""
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", HERE)
    fixture.clock.now += DEADLINE + 0.01
    assert fixture.lookups.lookup("r", HERE) is Presence.ABSENT
    fixture.answer()
    assert fixture.lookups.lookup("r", HERE) is Presence.ABSENT


def test_an_answer_in_time_counts_for_the_rest_of_the_request() -> None:
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", HERE)
    fixture.answer()
    fixture.clock.now += 3600
    fixture.store.present.clear()
    assert fixture.lookups.lookup("r", HERE) is Presence.PRESENT


def test_the_next_request_asks_again() -> None:
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", HERE)
    fixture.answer()
    fixture.store.present.clear()
    assert fixture.lookups.lookup("s", HERE) is Presence.UNKNOWN
    fixture.answer()
    assert fixture.lookups.lookup("s", HERE) is Presence.ABSENT


def test_a_block_marked_absent_is_absent_for_this_request_only() -> None:
    fixture = Fixture(HERE)
    for request in ("r", "s"):
        fixture.lookups.lookup(request, HERE)
    fixture.answer()
    fixture.lookups.mark_absent("r", HERE)
    fixture.lookups.mark_absent("unknown", HERE)
    assert fixture.lookups.lookup("r", HERE) is Presence.ABSENT
    assert fixture.lookups.lookup("s", HERE) is Presence.PRESENT


def test_a_forgotten_request_costs_the_store_nothing_more() -> None:
    fixture = Fixture(HERE)
    fixture.lookups.lookup("r", HERE)
    fixture.lookups.flush()
    fixture.lookups.forget("r")
    fixture.lookups.forget("unknown")
    fixture.pool.run()
    assert fixture.store.asked == []
    assert fixture.lookups.lookup("r", HERE) is Presence.UNKNOWN


def test_a_store_that_hangs_never_blocks_the_scheduler() -> None:
    store = PresenceStub(HERE, THERE)
    store.answers.clear()
    pool = WorkerPool("test", 2)
    lookups = PresenceLookups(store, pool, deadline=0.05)
    started = time.monotonic()
    addresses = [Address(b"\x01" * 16, bytes([number] * 32)) for number in range(20)]
    for address in addresses:
        assert lookups.lookup("r", address) is Presence.UNKNOWN
        lookups.flush()
    assert time.monotonic() - started < 1  # the store hangs for longer
    time.sleep(0.06)
    assert {lookups.lookup("r", address) for address in addresses} == {Presence.ABSENT}
    store.answers.set()
    assert pool.close(5)


def test_a_task_that_raises_leaves_the_workers_at_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = WorkerPool("test", 1)
    done = threading.Event()

    def fail() -> None:
        raise ZeroDivisionError

    pool.submit(fail)
    pool.submit(done.set)
    assert done.wait(5)
    assert pool.close(5)
    assert "ZeroDivisionError" in caplog.text


def test_tasks_that_wait_are_done_before_a_pool_closes() -> None:
    pool = WorkerPool("test", 2)
    done: list[int] = []
    for number in range(50):
        pool.submit(partial(done.append, number))
    assert pool.close(5)
    assert sorted(done) == list(range(50))


def test_a_hung_worker_keeps_neither_close_nor_the_process_waiting() -> None:
    pool = WorkerPool("test", 2)
    hang = threading.Event()
    pool.submit(lambda: assert_waited(hang))
    assert pool.close(0.05) is False
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("test-"))
    hang.set()
    assert pool.close(5)


def assert_waited(event: threading.Event) -> None:
    assert event.wait(10)
