"""What a tier counts for metrics."""

import pytest

from kvcustody.errors import StoreError
from kvcustody.tiers import Count
from tier_doubles import (
    BLOCK_BYTES,
    Custody,
    address,
    empty_slots,
    eventually,
    full_slots,
    grant,
    outcome_of,
    store_blocks,
)

pytestmark = pytest.mark.unit


def test_blocks_and_bytes_that_moved_are_counted_once(custody: Custody) -> None:
    tier = custody.tier()
    store_blocks(custody, tier, 3)
    assert tier.counters.take() == {
        (Count.STORED, ""): 3,
        (Count.STORED_BYTES, ""): 3 * BLOCK_BYTES,
    }
    del custody.store.blocks[address(1)]
    tier.submit_load(1, grant(), empty_slots(3))
    outcome_of(tier)
    assert tier.counters.take() == {
        (Count.LOADED, ""): 2,
        (Count.LOADED_BYTES, ""): 2 * BLOCK_BYTES,
    }
    assert tier.counters.take() == {}


@pytest.mark.parametrize("action", ["store", "load"])
def test_a_block_that_an_error_kept_is_dropped(custody: Custody, action: str) -> None:
    tier = custody.tier()
    custody.store.errors = {"put": StoreError("full"), "get": StoreError("gone")}
    if action == "store":
        tier.submit_store(1, grant(), full_slots(2))
    else:
        tier.submit_load(1, grant(), empty_slots(2))
    outcome_of(tier)
    eventually(lambda: len(custody.audit.named("blocks.dropped")) == 2)
    assert tier.counters.take() == {(Count.DROPPED, action): 2}


def test_a_block_that_came_too_late_is_dropped(custody: Custody) -> None:
    tier = custody.tier(deadline=0.05)
    custody.store.hang("get")
    tier.submit_load(1, grant(), empty_slots(2))
    assert len(outcome_of(tier).failed) == 2
    assert tier.counters.take() == {(Count.DROPPED, "load"): 2}
