"""A governed tier: what is stored comes back, what is denied doesn't, and all is told."""

import time
from dataclasses import replace

import pytest

from kvcustody.errors import StoreError
from kvcustody.sealing import (
    Header,
)
from kvcustody.tiers import JobOutcome, Presence
from tier_doubles import (
    BLOCK_BYTES,
    LAYOUT,
    NOW,
    PATIENCE,
    TIER,
    WHO,
    Custody,
    address,
    answered,
    content,
    empty_slots,
    eventually,
    full_slots,
    grant,
    outcome_of,
    store_blocks,
)

pytestmark = pytest.mark.unit


def test_stored_blocks_come_back_into_other_slots(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier, 20)
    slots = empty_slots(20)
    tier.submit_load(7, grant(), slots)
    outcome = outcome_of(tier)
    assert outcome.job_id == 7
    assert outcome.succeeded == tuple(slot.key for slot in slots)
    assert outcome.failed == ()
    assert outcome.moved_bytes == 20 * BLOCK_BYTES
    assert 0 <= outcome.seconds < PATIENCE
    assert [bytes(slot.memory) for slot in slots] == [content(n) for n in range(20)]


def test_a_store_gets_sealed_blocks_only(custody: Custody) -> None:
    store_blocks(custody, custody.tier(), 3)
    assert set(custody.store.blocks) == {address(n) for n in range(3)}
    for where, block in custody.store.blocks.items():
        header = Header.parse(block)
        assert isinstance(header, Header)
        assert (header.namespace, header.name, header.layout) == (
            where.namespace,
            where.name,
            LAYOUT,
        )
        assert not any(content(n)[:17] in block for n in range(3))


@pytest.mark.parametrize(
    ("tier_ttl", "tenant_ttl", "expected"), [(60, None, 60), (60, 30, 30), (60, 90, 60)]
)
def test_the_shorter_life_of_tier_and_tenant_counts(
    custody: Custody, tier_ttl: float, tenant_ttl: float | None, expected: float
) -> None:
    tier = custody.tier(ttl=tier_ttl)
    tier.submit_store(1, grant(ttl=tenant_ttl), full_slots(1))
    outcome_of(tier)
    eventually(lambda: address() in custody.store.blocks)
    header = Header.parse(custody.store.blocks[address()])
    assert isinstance(header, Header)
    assert header.created == NOW * 1000
    assert header.expires == (NOW + expected) * 1000


def test_a_lookup_is_unknown_then_tells_what_the_store_says(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    assert tier.lookup(grant(), address()) is Presence.UNKNOWN
    assert answered(tier, address(), grant()) is Presence.PRESENT
    assert answered(tier, address(1), grant()) is Presence.ABSENT


def test_a_forgotten_request_is_asked_for_again(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    answered(tier, address(), grant())
    tier.forget(grant())
    assert tier.lookup(grant(), address()) is Presence.UNKNOWN


def test_a_lookup_of_a_store_that_hangs_is_absent_after_the_deadline(custody: Custody) -> None:
    tier = custody.tier(deadline=0.05)
    store_blocks(custody, tier)
    custody.store.hang("exists")
    started = time.monotonic()
    assert answered(tier, address(), grant()) is Presence.ABSENT
    assert time.monotonic() - started < 1


def test_a_lookup_of_a_failing_store_is_absent(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    custody.store.errors["exists"] = StoreError("stat failed")
    assert answered(tier, address(), grant()) is Presence.ABSENT


def test_a_denied_principal_sees_no_block_and_the_store_is_not_asked(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    denied = grant(load=False)
    assert tier.lookup(denied, address()) is Presence.ABSENT
    tier.flush_lookups()
    slots = empty_slots(1)
    tier.submit_load(1, denied, slots)
    outcome = outcome_of(tier)
    assert (outcome.succeeded, outcome.failed) == ((), (slots[0].key,))
    assert slots[0].memory == b"\xaa" * BLOCK_BYTES
    assert custody.store.calls == []


def test_a_denied_principal_stores_nothing(custody: Custody) -> None:
    tier = custody.tier()
    tier.submit_store(1, grant(store=False), full_slots(2))
    assert outcome_of(tier).succeeded == ()
    assert custody.store.calls == []


def test_a_tier_that_the_policy_does_not_name_is_denied(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    unnamed = replace(grant(), tiers={"another": grant().tiers[TIER]})
    assert tier.lookup(unnamed, address()) is Presence.ABSENT
    tier.submit_store(1, unnamed, full_slots(1))
    assert outcome_of(tier).succeeded == ()
    assert custody.store.calls == []


def test_nothing_moves_while_nothing_can_be_accounted_for(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    custody.audit.accepting = False
    tier.submit_store(1, grant(), full_slots(1))
    assert outcome_of(tier).succeeded == ()
    tier.submit_load(2, grant(), empty_slots(1))
    assert outcome_of(tier).succeeded == ()
    assert custody.store.calls == []


def test_a_job_without_blocks_ends_at_once(custody: Custody) -> None:
    tier = custody.tier()
    tier.submit_store(1, grant(), [])
    assert replace(outcome_of(tier), seconds=0.0) == JobOutcome(1, (), (), 0, 0.0)


def test_a_tier_has_work_until_its_jobs_were_reported(custody: Custody) -> None:
    tier = custody.tier()
    assert not tier.has_work()
    tier.submit_store(1, grant(), full_slots(1))
    assert tier.has_work()
    outcome_of(tier)
    assert not tier.has_work()
    assert tier.finished() == []


def test_a_missing_block_fails_alone(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier, 3)
    del custody.store.blocks[address(1)]
    tier.submit_load(1, grant(), empty_slots(3))
    outcome = outcome_of(tier)
    assert outcome.succeeded == (b"block-0", b"block-2")
    assert outcome.failed == (b"block-1",)
    assert outcome.moved_bytes == 2 * BLOCK_BYTES


def test_a_store_that_fails_to_load_is_a_failed_outcome_and_an_event(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    custody.store.errors["get"] = StoreError("read failed: broken")
    slots = empty_slots(1)
    tier.submit_load(1, grant(), slots)
    outcome = outcome_of(tier)
    assert (outcome.succeeded, outcome.failed) == ((), (b"block-0",))
    assert slots[0].memory == b"\xaa" * BLOCK_BYTES
    assert custody.audit.named("blocks.dropped") == [
        {
            "event": "blocks.dropped",
            **WHO,
            "action": "load",
            "outcome": "failed",
            "blocks": 1,
            "why": "read failed: broken",
        }
    ]


def test_a_store_that_fails_to_put_is_an_event_and_counted(custody: Custody) -> None:
    tier = custody.tier()
    custody.store.errors["put"] = StoreError("put failed: disk full")
    tier.submit_store(1, grant(), full_slots(2))
    outcome_of(tier)
    eventually(lambda: bool(custody.audit.named("blocks.stored")))
    assert [event["why"] for event in custody.audit.named("blocks.dropped")] == [
        "put failed: disk full"
    ] * 2
    (stored,) = custody.audit.named("blocks.stored")
    assert (stored["outcome"], stored["blocks"], stored["failed"], stored["bytes"]) == (
        "failed",
        0,
        2,
        0,
    )


@pytest.mark.parametrize("method", ["put", "get", "exists", "delete"])
def test_a_store_with_a_bug_costs_a_miss_and_no_worker(custody: Custody, method: str) -> None:
    tier = custody.tier(deadline=0.2)
    store_blocks(custody, tier, 8)
    custody.store.blocks[address(0)] = b"rejected, therefore deleted"
    custody.store.errors[method] = ZeroDivisionError()
    asking = grant()
    for number in range(8):
        tier.submit_store(10 + number, asking, full_slots(1)[:1])
        outcome_of(tier)
        tier.lookup(asking, address(number))
        tier.flush_lookups()
        tier.submit_load(20 + number, asking, empty_slots(8))
        outcome_of(tier)
    custody.store.errors.clear()
    tier.submit_store(30, grant(), full_slots(8))
    outcome_of(tier)
    eventually(lambda: len(custody.store.blocks) == 8)
    tier.submit_load(31, grant(request_id="request-2"), empty_slots(8))
    eventually(lambda: custody.store.blocks[address(0)][:4] == b"KVCB")
    assert outcome_of(tier).job_id == 31


def test_what_was_stored_is_one_event_a_job(custody: Custody) -> None:
    tier = custody.tier()
    tier.submit_store(1, grant(), full_slots(5))
    outcome_of(tier)
    eventually(lambda: bool(custody.audit.events))
    assert custody.audit.events == [
        {
            "event": "blocks.stored",
            **WHO,
            "action": "store",
            "outcome": "ok",
            "blocks": 5,
            "failed": 0,
            "bytes": 5 * BLOCK_BYTES,
        }
    ]


@pytest.mark.parametrize(
    ("missing", "outcome", "blocks"), [([], "ok", 3), ([1], "partial", 2), ([0, 1, 2], "failed", 0)]
)
def test_what_was_loaded_is_one_event_a_job(
    custody: Custody, missing: list[int], outcome: str, blocks: int
) -> None:
    tier = custody.tier()
    store_blocks(custody, tier, 3)
    for number in missing:
        del custody.store.blocks[address(number)]
    tier.submit_load(1, grant(), empty_slots(3))
    outcome_of(tier)
    assert custody.audit.events == [
        {
            "event": "blocks.loaded",
            **WHO,
            "action": "load",
            "outcome": outcome,
            "blocks": blocks,
            "failed": 3 - blocks,
            "bytes": blocks * BLOCK_BYTES,
        }
    ]


def test_blocks_that_failed_to_load_are_absent_for_the_rest_of_the_request(
    custody: Custody,
) -> None:
    tier = custody.tier()
    store_blocks(custody, tier)
    assert answered(tier, address(), grant()) is Presence.PRESENT
    custody.store.errors["get"] = StoreError("read failed")
    tier.submit_load(1, grant(), empty_slots(1))
    outcome_of(tier)
    assert tier.lookup(grant(), address()) is Presence.ABSENT
    assert answered(tier, address(), grant(request_id="request-2")) is Presence.PRESENT
