"""A store that hangs costs a recompute, and never the scheduler's time."""

import time

import pytest

from kvcustody.tiers import governed
from tier_doubles import (
    BLOCK_BYTES,
    PATIENCE,
    Custody,
    address,
    content,
    empty_slots,
    eventually,
    full_slots,
    grant,
    outcome_of,
    store_blocks,
    within,
)

pytestmark = pytest.mark.unit


def test_blocks_not_loaded_by_the_deadline_are_missing(custody: Custody) -> None:
    tier = custody.tier(deadline=0.05)
    store_blocks(custody, tier, 10)
    custody.store.hang("get")
    started = time.monotonic()
    tier.submit_load(1, grant(), empty_slots(10))
    outcome = outcome_of(tier)
    assert time.monotonic() - started < 1
    assert (outcome.succeeded, len(outcome.failed), outcome.moved_bytes) == ((), 10, 0)


def test_a_slot_is_never_written_to_after_its_job_was_reported(custody: Custody) -> None:
    """The engine gives the memory to another request as soon as the job is reported."""
    tier = custody.tier(deadline=0.05)
    store_blocks(custody, tier, 4)
    custody.store.hang("get")
    slots = empty_slots(4)
    tier.submit_load(1, grant(), slots)
    assert len(outcome_of(tier).failed) == 4
    for reused in slots:
        reused.memory[:] = b"\xbb" * BLOCK_BYTES
    custody.close()
    assert [bytes(slot.memory) for slot in slots] == [b"\xbb" * BLOCK_BYTES] * 4


def test_a_slot_is_free_before_the_slow_part_of_storing(custody: Custody) -> None:
    tier = custody.tier()
    custody.store.hang("put")
    slots = full_slots(2)
    tier.submit_store(1, grant(), slots)
    assert outcome_of(tier).succeeded == (b"block-0", b"block-1")
    for reused in slots:
        reused.memory[:] = b"\xbb" * BLOCK_BYTES
    custody.store.release()
    eventually(lambda: len(custody.store.blocks) == 2)
    loaded = empty_slots(2)
    tier.submit_load(2, grant(), loaded)
    outcome_of(tier)
    assert [bytes(slot.memory) for slot in loaded] == [content(0), content(1)]


def test_blocks_not_sealed_by_the_deadline_are_dropped(
    custody: Custody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governed, "_STORE_DEADLINE_SECONDS", 0.05)
    tier = custody.tier()
    custody.store.hang("put")
    tier.submit_store(1, grant(), full_slots(20))
    outcome = outcome_of(tier)
    assert 0 < len(outcome.succeeded) <= governed._STORE_THREADS
    assert len(outcome.succeeded) + len(outcome.failed) == 20
    custody.store.release()
    eventually(lambda: bool(custody.audit.named("blocks.stored")))
    (stored,) = custody.audit.named("blocks.stored")
    assert stored["blocks"] == len(custody.store.blocks) == len(outcome.succeeded)
    assert stored["outcome"] == "partial"


@pytest.mark.parametrize("method", ["get", "put", "exists", "delete"])
def test_a_store_that_hangs_never_blocks_the_scheduler(custody: Custody, method: str) -> None:
    tier = custody.tier(deadline=0.05)
    store_blocks(custody, tier, 10)
    custody.store.blocks[address(0)] = b"rejected, therefore deleted"
    custody.store.hang(method)

    def schedule() -> None:
        tier.submit_load(1, grant(), empty_slots(10))
        tier.submit_store(2, grant(), full_slots(10))
        tier.lookup(grant(), address())
        tier.flush_lookups()
        tier.finished()

    assert within(1, schedule)
    ended: set[int] = set()

    def collect() -> bool:
        ended.update(outcome.job_id for outcome in tier.finished())
        return 1 in ended

    eventually(collect)


@pytest.mark.parametrize("method", ["get", "put", "exists", "delete"])
def test_a_store_that_hangs_never_holds_a_drain_up(custody: Custody, method: str) -> None:
    tier = custody.tier()
    store_blocks(custody, tier, 10)
    custody.store.blocks[address(0)] = b"rejected, therefore deleted"
    custody.store.hang(method)
    slots = empty_slots(10)
    tier.submit_load(1, grant(), slots)
    tier.submit_store(2, grant(), full_slots(20)[10:])
    eventually(lambda: method in custody.store.calls or method == "exists")
    assert within(1, tier.drain)
    assert {outcome.job_id for outcome in tier.finished()} == {1, 2}
    assert not tier.has_work()


def test_a_drain_ends_all_jobs(custody: Custody) -> None:
    tier = custody.tier()
    tier.drain()
    tier.submit_store(1, grant(), full_slots(20))
    tier.submit_load(2, grant(), empty_slots(20))
    assert within(1, tier.drain)
    assert {outcome.job_id for outcome in tier.finished()} == {1, 2}


def test_close_tells_whether_a_thread_hangs_in_the_store(
    custody: Custody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governed, "_CLOSE_SECONDS", 0.1)
    tier = custody.tier()
    custody.store.hang("put")
    tier.submit_store(1, grant(), full_slots(1))
    eventually(lambda: "put" in custody.store.calls)
    assert tier.close() is False
    custody.store.release()
    monkeypatch.setattr(governed, "_CLOSE_SECONDS", 2 * PATIENCE)
    assert tier.close() is True
