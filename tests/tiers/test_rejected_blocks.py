"""A block that fails a check is a miss, is told, and is removed."""

from dataclasses import replace

import pytest

from kvcustody.errors import StoreError
from kvcustody.sealing import (
    BlockIdentity,
    DataKey,
    OpenFailure,
    seal_into,
    sealed_size,
)
from kvcustody.tiers import Count, Presence
from tier_doubles import (
    BLOCK_BYTES,
    DESTROYED_KEY,
    KEY,
    LAYOUT,
    NAMESPACE,
    NOW,
    WHO,
    Custody,
    address,
    answered,
    content,
    empty_slots,
    eventually,
    grant,
    outcome_of,
    store_blocks,
)

pytestmark = pytest.mark.unit


def _reseal(
    plaintext: bytes, *, expires: float = NOW + 60, key: DataKey = KEY, **changes: bytes
) -> bytes:
    identity = replace(BlockIdentity(NAMESPACE, address().name, LAYOUT), **changes)
    sealed = bytearray(sealed_size(len(plaintext)))
    seal_into(
        memoryview(sealed),
        plaintext,
        identity,
        key,
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
    "key-destroyed": _reseal(content(), key=DESTROYED_KEY),
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
    eventually(lambda: custody.store.blocks == {})
    assert tier.lookup(grant(), address()) is Presence.ABSENT
    assert tier.counters.take() == {(Count.REJECTED, check): 1}
    assert tier.counters.take() == {}


def test_every_check_has_its_test() -> None:
    assert REJECTED.keys() | {"key-unavailable"} == set(OpenFailure)


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
    unavailable = grant(data_keys={})
    tier.submit_load(1, unavailable, empty_slots(1))
    assert outcome_of(tier).failed == (b"block-0",)
    eventually(lambda: bool(custody.audit.named("block.rejected")))
    assert custody.audit.named("block.rejected")[0]["check"] == "key-unavailable"
    assert tier.counters.take() == {(Count.REJECTED, "key-unavailable"): 1}
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
