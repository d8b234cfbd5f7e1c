"""The governing manager around a manager that is a test double: names in, names out."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    PrepareStoreOutput,
    ReqContext,
    get_offload_group_idx,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from kvcustody.admission import Grant
from kvcustody.policy import HOST_TIER, UNKNOWN_MODEL, Decision, TierDecision
from kvcustody.vllm.manager import GoverningManager
from kvcustody.wiring import EngineCustody
from tier_doubles import RecordingAudit, grant

pytestmark = pytest.mark.engine

KEYS = [make_offload_key(bytes([number]) * 32, number % 2) for number in range(4)]


class RecordingManager:
    """A test double for vLLM's manager: host memory for two blocks, which evicts the oldest."""

    def __init__(self) -> None:
        self.names: list[Any] = []
        self.removed: list[Any] = []

    def on_new_request(self, context: ReqContext) -> str:
        return f"tiering knows {context.req_id}"

    def lookup(self, name: Any, _context: ReqContext) -> LookupResult:
        return LookupResult.HIT if name in self.names else LookupResult.MISS

    def prepare_load(self, names: Collection[Any], _context: ReqContext) -> LoadStoreSpec:
        return CPULoadStoreSpec([self.names.index(name) for name in names])

    def prepare_store(self, names: Collection[Any], _context: ReqContext) -> PrepareStoreOutput:
        new = [name for name in names if name not in self.names]
        self.names += new
        evicted, self.names = self.names[:-2], self.names[-2:]
        self.removed += evicted
        return PrepareStoreOutput(
            keys_to_store=new,
            store_spec=CPULoadStoreSpec(list(range(len(new)))),
            evicted_keys=evicted,
        )

    def take_events(self) -> Iterable[OffloadingEvent]:
        removed, self.removed = self.removed, []
        if removed:
            yield OffloadingEvent(keys=removed, medium="CPU", removed=True)


def host_grant(request_id: str, *, store: bool = True, load: bool = True) -> Grant:
    decision = TierDecision(store=Decision(store, "r"), load=Decision(load, "r"))
    admitted = grant(request_id=request_id)
    return Grant(
        admitted.principal,
        request_id,
        request_id,
        admitted.cache_salt,
        admitted.keys,
        {HOST_TIER: decision},
        "policy-1",
        None,
        UNKNOWN_MODEL,
        None,
    )


class Setup:
    def __init__(self, scrub: Callable[[Sequence[int]], None] | None = None) -> None:
        self.tiering = RecordingManager()
        self.audit = RecordingAudit()
        self.renewed: dict[str, Grant] = {}
        custody = EngineCustody(
            admission=self,  # type: ignore[arg-type]  # of it, the manager only renews grants
            policy=None,  # type: ignore[arg-type]  # admission's
            client_parameters=frozenset(),
            adapters=None,  # type: ignore[arg-type]  # likewise
            tiers=(),
            audit=self.audit,
            close=lambda: None,
        )
        self.manager = GoverningManager(self.tiering, custody, 2, scrub)

    def renew(self, held: Grant) -> Grant:
        return self.renewed.get(held.request_id, held)

    def request(self, admitted: Grant | None, request_id: str = "r") -> ReqContext:
        if admitted is not None:
            self.manager.grant(request_id, admitted)
        context = ReqContext(req_id=request_id, kv_transfer_params=None)
        self.manager.on_new_request(context)
        return context


def test_vllms_names_stay_outside_and_keyed_names_inside() -> None:
    setup = Setup()
    context = setup.request(host_grant("r"))
    output = setup.manager.prepare_store(KEYS[:2], context)
    assert output is not None
    assert list(output.keys_to_store) == KEYS[:2]
    assert not set(setup.tiering.names) & set(KEYS)
    assert [get_offload_group_idx(name) for name in setup.tiering.names] == [0, 1]
    assert setup.manager.lookup(KEYS[0], context) is LookupResult.HIT
    assert setup.manager.lookup(KEYS[2], context) is LookupResult.MISS


def test_a_request_without_a_grant_stores_and_finds_nothing() -> None:
    setup = Setup()
    owner = setup.request(host_grant("r"))
    setup.manager.prepare_store(KEYS[:2], owner)
    stranger = setup.request(None, "stranger")
    assert setup.manager.lookup(KEYS[0], stranger) is LookupResult.MISS
    output = setup.manager.prepare_store(KEYS[2:], stranger)
    assert output is not None
    assert list(output.keys_to_store) == []
    assert len(setup.tiering.names) == 2


def test_who_loses_load_finds_nothing_from_then_on_and_others_still_do() -> None:
    setup = Setup()
    loser, other = setup.request(host_grant("r"), "r"), setup.request(host_grant("o"), "o")
    setup.manager.prepare_store(KEYS[:1], loser)
    assert setup.manager.lookup(KEYS[0], loser) is LookupResult.HIT
    setup.renewed["r"] = host_grant("r", load=False)
    assert setup.manager.lookup(KEYS[0], loser) is LookupResult.MISS
    assert setup.manager.lookup(KEYS[0], other) is LookupResult.HIT
    # What it looked up before goes on.
    assert setup.manager.prepare_load(KEYS[:1], loser) is not None


@pytest.mark.parametrize(("store", "load"), [(False, True), (True, False)])
def test_store_and_load_are_allowed_one_by_one(store: bool, load: bool) -> None:
    setup = Setup()
    setup.manager.prepare_store(KEYS[:1], setup.request(host_grant("other"), "other"))
    context = setup.request(host_grant("r", store=store, load=load))
    found = setup.manager.lookup(KEYS[0], context)
    assert found is (LookupResult.HIT if load else LookupResult.MISS)
    output = setup.manager.prepare_store(KEYS[1:2], context)
    assert output is not None
    assert bool(output.keys_to_store) is store


def test_nothing_moves_while_it_can_not_be_accounted_for() -> None:
    setup = Setup()
    context = setup.request(host_grant("r"))
    setup.manager.prepare_store(KEYS[:1], context)
    setup.audit.accepting = False
    assert setup.manager.lookup(KEYS[0], context) is LookupResult.MISS
    setup.audit.accepting = True
    assert setup.manager.lookup(KEYS[0], context) is LookupResult.HIT


def test_evictions_are_told_under_the_names_that_vllm_knows() -> None:
    setup = Setup()
    context = setup.request(host_grant("r"))
    setup.manager.prepare_store(KEYS[:2], context)
    output = setup.manager.prepare_store(KEYS[2:], context)
    assert output is not None
    assert list(output.evicted_keys) == KEYS[:2]
    (event,) = setup.manager.take_events()
    assert list(event.keys) == KEYS[:2]
    assert list(setup.manager.take_events()) == []


def test_blocks_are_scrubbed_before_a_new_owners_data_comes() -> None:
    scrubbed: list[int] = []
    setup = Setup(scrubbed.extend)
    context = setup.request(host_grant("r"))
    setup.manager.prepare_store(KEYS[:2], context)
    assert scrubbed == [0, 1]
