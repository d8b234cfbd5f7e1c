import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kvcustody.admission import Grant
from kvcustody.audit.events import COMMON_FIELDS, EVENTS
from kvcustody.errors import StoreError
from kvcustody.identity.principal import Principal
from kvcustody.policy import Decision, TierDecision
from kvcustody.sealing import (
    BlockIdentity,
    DataKey,
    Header,
    NamespaceKeys,
    OpenFailure,
    seal_into,
    sealed_size,
)
from kvcustody.stores import Address
from kvcustody.tiers import GovernedTier, JobOutcome, Presence, Slot, governed
from kvcustody.tiers.jobs import Job, StoreTally

pytestmark = pytest.mark.unit

TIER = "disk"
LAYOUT = b"l" * 32
BLOCK_BYTES = 64
NOW = 1_700_000_000.0
KEY = DataKey(b"k" * 16, b"\x01" * 32)
NAMESPACE = b"n" * 16
# Longer than any test waits: what takes this long hangs.
PATIENCE = 5.0


class RecordingAudit:
    """An audit log that keeps what it is told."""

    def __init__(self) -> None:
        self.accepting = True
        self.events: list[dict[str, Any]] = []

    def record(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of a name."""
        return [recorded for recorded in self.events if recorded["event"] == event]


class MemoryStore:
    """A store in a dictionary, each method of which can be made to hang or to fail."""

    def __init__(self) -> None:
        self.blocks: dict[Address, bytes] = {}
        self.calls: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.hung: dict[str, threading.Event] = {}

    def hang(self, method: str) -> None:
        """Make a method hang until `release`."""
        self.hung[method] = threading.Event()

    def release(self) -> None:
        """Let everything that hangs go on."""
        for event in self.hung.values():
            event.set()

    def put(self, address: Address, sealed: memoryview) -> None:
        self._enter("put")
        self.blocks[address] = bytes(sealed)

    def get(self, address: Address, buffer: memoryview) -> int | None:
        self._enter("get")
        block = self.blocks.get(address)
        if block is None:
            return None
        count = min(len(block), len(buffer))
        buffer[:count] = block[:count]
        return count

    def exists(self, address: Address) -> bool:
        self._enter("exists")
        return address in self.blocks

    def delete(self, address: Address) -> bool:
        self._enter("delete")
        return self.blocks.pop(address, None) is not None

    def addresses(self) -> Iterator[Address]:
        return iter(list(self.blocks))

    def _enter(self, method: str) -> None:
        self.calls.append(method)
        if method in self.hung:
            assert self.hung[method].wait(2 * PATIENCE)
        if method in self.errors:
            raise self.errors[method]


class Custody:
    """A tier with a store, an audit log and a clock that the test holds in its hand."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.audit = RecordingAudit()
        self.now = NOW
        self._tiers: list[GovernedTier] = []

    def tier(self, *, ttl: float = 3600.0, deadline: float = PATIENCE) -> GovernedTier:
        """A tier on the store; closed at the end of the test."""
        tier = GovernedTier(
            TIER,
            self.store,
            self.audit,
            layout=LAYOUT,
            block_bytes=BLOCK_BYTES,
            ttl=ttl,
            lookup_deadline=deadline,
            load_deadline=deadline,
            clock=lambda: self.now,
        )
        self._tiers.append(tier)
        return tier

    def close(self) -> None:
        """Let go what hangs, and close all tiers."""
        self.store.release()
        for tier in self._tiers:
            assert tier.close()


@pytest.fixture
def custody() -> Iterator[Custody]:
    custody = Custody()
    yield custody
    custody.close()
    for event in custody.audit.events:
        known = {"event", *COMMON_FIELDS, *EVENTS[event["event"]]}
        assert event.keys() <= known, "an event carries what the catalogue does not know"


def grant(
    *,
    store: bool = True,
    load: bool = True,
    request_id: str = "request-1",
    ttl: float | None = None,
    find: Callable[[bytes], DataKey | OpenFailure] | None = None,
) -> Grant:
    def find_key(key_id: bytes) -> DataKey | OpenFailure:
        return KEY if key_id == KEY.key_id else OpenFailure.KEY_DESTROYED

    return Grant(
        Principal("acme", "support"),
        request_id,
        NamespaceKeys(NAMESPACE, b"\x02" * 32, KEY, find or find_key),
        {TIER: TierDecision(store=Decision(store, "p.csv:1"), load=Decision(load, "p.csv:1"))},
        "policy-1",
        ttl,
    )


WHO = {
    "tenant": "acme",
    "workload": "support",
    "request_id": "request-1",
    "policy_version": "policy-1",
    "tier": TIER,
}


def address(number: int = 0) -> Address:
    return Address(NAMESPACE, bytes([number]) * 32)


def content(number: int = 0) -> bytes:
    return f"secret prompt {number:02} ".encode().ljust(BLOCK_BYTES, b".")


def slot(number: int = 0, memory: bytes | bytearray | None = None) -> Slot:
    """A block and its place in host memory, which holds another request's data by default."""
    place = bytearray(b"\xaa" * BLOCK_BYTES) if memory is None else bytearray(memory)
    return Slot(f"block-{number}".encode(), address(number), memoryview(place))


def full_slots(count: int) -> list[Slot]:
    return [slot(number, content(number)) for number in range(count)]


def empty_slots(count: int) -> list[Slot]:
    return [slot(number) for number in range(count)]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def outcome_of(tier: GovernedTier) -> JobOutcome:
    """The outcome of the one job that the tier has."""
    outcomes: list[JobOutcome] = []

    def ended() -> bool:
        outcomes.extend(tier.finished())
        return bool(outcomes)

    eventually(ended)
    assert len(outcomes) == 1
    return outcomes[0]


def store_blocks(custody: Custody, tier: GovernedTier, count: int = 1) -> None:
    """Store blocks 0, 1, ... and wait until they lie in the store."""
    tier.submit_store(99, grant(), full_slots(count))
    assert outcome_of(tier).failed == ()
    eventually(lambda: bool(custody.audit.named("blocks.stored")))
    custody.audit.events.clear()
    custody.store.calls.clear()


def answered(tier: GovernedTier, asked: Address, by: Grant) -> Presence:
    """What a lookup says once it says something."""
    found: list[Presence] = []

    def known() -> bool:
        found.append(tier.lookup(by, asked))
        tier.flush_lookups()
        return found[-1] is not Presence.UNKNOWN

    eventually(known)
    return found[-1]


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Whether something ends in time; it goes on in its thread if not."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


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
    assert 0 < len(outcome.succeeded) <= governed._TRANSFER_THREADS
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
    tier.submit_store(2, grant(), full_slots(10))
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


def _reseal(plaintext: bytes, *, expires: float = NOW + 60, **changes: bytes) -> bytes:
    identity = replace(BlockIdentity(NAMESPACE, address().name, LAYOUT), **changes)
    sealed = bytearray(sealed_size(len(plaintext)))
    seal_into(
        memoryview(sealed),
        plaintext,
        identity,
        KEY,
        created=int(NOW * 1000),
        expires=int(expires * 1000),
    )
    return bytes(sealed)


def _with(block: bytes, offset: int) -> bytes:
    return block[:offset] + bytes([block[offset] ^ 1]) + block[offset + 1 :]


GOOD = _reseal(content())
REJECTED = {
    "not-sealed": b"something else altogether",
    "unknown-version": _with(GOOD, 5),
    "wrong-namespace": _reseal(content(), namespace=b"m" * 16),
    "wrong-name": _reseal(content(), name=b"another block of this namespace."),
    "expired": _reseal(content(), expires=NOW),
    "layout-mismatch": _reseal(content(), layout=b"L" * 32),
    "key-destroyed": _with(GOOD, 8),
    "commitment": _with(GOOD, 160),
    "truncated": GOOD[:-1],
    "trailing-bytes": GOOD + b"\0",
    "tag": _with(GOOD, 200),
}


@pytest.mark.parametrize("check", REJECTED)
def test_a_rejected_block_is_audited_and_removed(custody: Custody, check: str) -> None:
    tier = custody.tier()
    custody.store.blocks[address()] = REJECTED[check]
    assert answered(tier, address(), grant()) is Presence.PRESENT
    slots = empty_slots(1)
    tier.submit_load(1, grant(), slots)
    outcome = outcome_of(tier)
    assert (outcome.succeeded, outcome.failed) == ((), (b"block-0",))
    assert slots[0].memory == bytes(BLOCK_BYTES)
    eventually(lambda: bool(custody.audit.named("block.rejected")))
    assert custody.audit.named("block.rejected") == [
        {
            "event": "block.rejected",
            **WHO,
            "action": "load",
            "outcome": "failed",
            "block": address().name.hex(),
            "check": check,
        }
    ]
    assert custody.store.blocks == {}
    assert tier.lookup(grant(), address()) is Presence.ABSENT


def test_a_much_longer_file_is_rejected(custody: Custody) -> None:
    tier = custody.tier()
    custody.store.blocks[address()] = GOOD + bytes(10_000)
    tier.submit_load(1, grant(), empty_slots(1))
    assert outcome_of(tier).failed == (b"block-0",)
    eventually(lambda: bool(custody.audit.named("block.rejected")))
    assert custody.audit.named("block.rejected")[0]["check"] == "trailing-bytes"


def test_a_block_whose_key_is_unavailable_is_audited_and_kept(custody: Custody) -> None:
    tier = custody.tier()
    custody.store.blocks[address()] = GOOD
    unavailable = grant(find=lambda _: OpenFailure.KEY_UNAVAILABLE)
    tier.submit_load(1, unavailable, empty_slots(1))
    assert outcome_of(tier).failed == (b"block-0",)
    eventually(lambda: bool(custody.audit.named("block.rejected")))
    assert custody.audit.named("block.rejected")[0]["check"] == "key-unavailable"
    assert custody.store.blocks == {address(): GOOD}


def test_a_rejected_block_that_can_not_be_removed_is_audited_all_the_same(
    custody: Custody,
) -> None:
    tier = custody.tier()
    custody.store.blocks[address()] = REJECTED["tag"]
    custody.store.errors["delete"] = StoreError("delete failed")
    tier.submit_load(1, grant(), empty_slots(1))
    assert outcome_of(tier).failed == (b"block-0",)
    eventually(lambda: bool(custody.audit.named("block.rejected")))


def test_one_rejected_block_leaves_the_others_of_its_job(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier, 3)
    custody.store.blocks[address(1)] = b"rejected"
    slots = empty_slots(3)
    tier.submit_load(1, grant(), slots)
    outcome = outcome_of(tier)
    assert outcome.succeeded == (b"block-0", b"block-2")
    assert [bytes(slot.memory) for slot in slots] == [
        content(0),
        bytes(BLOCK_BYTES),
        content(2),
    ]


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
