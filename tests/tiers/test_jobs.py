"""Jobs: who owns a slot of host memory, and when a job is over."""

import pytest

from kvcustody.tiers.jobs import Job, StoreTally
from tier_doubles import empty_slots, grant

pytestmark = pytest.mark.unit


def _job(count: int) -> Job:
    return Job(1, grant(), tuple(empty_slots(count)), started=0.0, deadline=1.0)


def test_a_job_is_not_over_while_a_block_is_in_use() -> None:
    job = _job(2)
    assert job.claim(0)
    assert job.give_up() == 1
    assert job.outcome(1.0) is None
    job.release(0, succeeded=True)
    outcome = job.outcome(2.0)
    assert outcome is not None
    assert (outcome.succeeded, outcome.failed, outcome.seconds) == (
        (b"block-0",),
        (b"block-1",),
        2.0,
    )


def test_a_block_that_was_given_up_can_not_be_claimed() -> None:
    job = _job(1)
    assert job.is_open(0)
    job.give_up()
    assert not job.is_open(0)
    assert not job.claim(0)


def test_a_block_is_claimed_once() -> None:
    job = _job(1)
    assert job.claim(0)
    assert not job.claim(0)


def test_failing_a_block_later_changes_no_fate() -> None:
    job = _job(2)
    for index in range(2):
        job.claim(index)
    job.release(0, succeeded=True)
    job.fail(0)
    job.fail(1)
    assert job.outcome(1.0) is None
    job.release(1, succeeded=False)
    outcome = job.outcome(1.0)
    assert outcome is not None
    assert (outcome.succeeded, outcome.failed) == ((b"block-0",), (b"block-1",))


def test_a_tally_tells_the_sum_with_its_last_block() -> None:
    tally = StoreTally(3)
    assert tally.count(10) is None
    assert tally.count(0) is None
    assert tally.count(20) == (2, 30)
