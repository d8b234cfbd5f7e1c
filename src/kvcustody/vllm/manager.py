"""The governing manager: renames each block into its request's namespace before vLLM's tiering.

vLLM names a block by a hash that anyone can compute from the tokens. Inside, it has a keyed name
that only its namespace gives; outside, the scheduler sees the names that it knows. A request
without a grant stores nothing and finds nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_group_idx,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvcustody.admission import Grant
from kvcustody.policy import HOST_TIER
from kvcustody.wiring import EngineCustody


@dataclass(slots=True)
class RequestCustody:
    """What is known of an admitted request; lies in its `ReqContext`, where tiers find it.

    Args:
        granted: what the request might do when it was last asked.
        renew: gives a grant under the policy in force.
        names: keyed names by vLLM's keys, kept because each is asked for several times.

    """

    granted: Grant
    renew: Callable[[Grant], Grant]
    names: dict[OffloadKey, OffloadKey] = field(default_factory=dict)

    @property
    def grant(self) -> Grant:
        """What the request may do now."""
        self.granted = self.renew(self.granted)
        return self.granted


class GoverningManager(OffloadingManager):
    """vLLM's tiering manager under custody.

    Args:
        tiering: vLLM's manager, which sees only keyed names.
        custody: the stages of custody.
        host_blocks: how many blocks host memory holds.
        scrub: zeroes blocks of host memory before a new owner's data comes; `None` where that data
            fills them.

    """

    def __init__(
        self,
        tiering: OffloadingManager,
        custody: EngineCustody,
        host_blocks: int,
        scrub: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self._scrub = scrub
        self.custody = custody
        self._tiering = tiering
        self._grants: dict[str, Grant] = {}
        # vLLM's key of each keyed name that host memory may hold, for events and evictions. Blocks
        # leave host memory without a word when a promotion needs room, so age bounds this, too.
        self._originals: OrderedDict[OffloadKey, OffloadKey] = OrderedDict()
        self._most_originals = 2 * host_blocks

    def grant(self, request_id: str, grant: Grant) -> None:
        """Announce an admitted request, before vLLM's `on_new_request` for it."""
        self._grants[request_id] = grant

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Begin custody of a request that was granted it."""
        grant = self._grants.pop(req_context.req_id, None)
        if grant is None:
            return RequestOffloadingContext()
        req_context.set_state(RequestCustody(grant, self.custody.admission.renew))
        return self._tiering.on_new_request(req_context)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether the request's namespace has a block."""
        custody = req_context.get_state(RequestCustody)
        if custody is None or not self._may(custody.grant.may_load(HOST_TIER)):
            return LookupResult.MISS
        name = self._name(key, req_context, custody)
        if name is None:
            return LookupResult.MISS
        result = self._tiering.lookup(name, req_context)
        if result in {LookupResult.HIT, LookupResult.HIT_PENDING}:
            self._remember(name, key)
        return result

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """The tier that a block came from."""
        return self._tiering.get_load_source(*self._names([key], req_context), req_context)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin blocks that `lookup` found."""
        return self._tiering.prepare_load(self._names(keys, req_context), req_context)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Mark blocks as used."""
        if req_context.get_state(RequestCustody) is not None:
            self._tiering.touch(self._names(keys, req_context), req_context)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin blocks."""
        self._tiering.complete_load(self._names(keys, req_context), req_context)

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Make room for blocks of a request that may store; for others, nothing is to be stored."""
        custody = req_context.get_state(RequestCustody)
        if custody is None or not self._may(custody.grant.may_store(HOST_TIER)):
            return PrepareStoreOutput(
                keys_to_store=[], store_spec=CPULoadStoreSpec([]), evicted_keys=[]
            )
        named = ((self._name(key, req_context, custody), key) for key in keys)
        originals = {name: key for name, key in named if name is not None}
        output = self._tiering.prepare_store(originals.keys(), req_context)
        if output is None:
            return None
        for name in output.keys_to_store:
            self._remember(name, originals[name])
        if self._scrub is not None:
            self._scrub(output.store_spec.block_ids.tolist())
        return replace(
            output,
            keys_to_store=[originals[name] for name in output.keys_to_store],
            # Not forgotten yet: the event of the eviction comes later.
            evicted_keys=self._originals_of(output.evicted_keys, forget=False),
        )

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """Make stored blocks loadable, and send them on to the tiers."""
        self._tiering.complete_store(self._names(keys, req_context), req_context, success)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """End custody of a request."""
        self._grants.pop(req_context.req_id, None)
        if req_context.get_state(RequestCustody) is not None:
            self._tiering.on_request_finished(req_context)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Events since the last call, under the names that vLLM knows."""
        for event in self._tiering.take_events():
            keys = self._originals_of(event.keys, forget=event.removed)
            if keys:
                yield replace(event, keys=keys)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """End of a scheduler step."""
        self._tiering.on_schedule_end(context)

    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping."""
        return bool(self._tiering.has_pending_work())

    def reset_cache(self) -> None:
        """Empty host memory."""
        self._tiering.reset_cache()
        self._originals.clear()

    def get_stats(self) -> Any:
        """Metrics since the last call."""
        return self._tiering.get_stats()

    def shutdown(self) -> None:
        """Stop vLLM's tiering, then our threads; the audit stream is closed last."""
        try:
            self._tiering.shutdown()
        finally:
            self.custody.close()

    def _may(self, allowed: bool) -> bool:
        """An allowed action happens only while it can be accounted for."""
        return allowed and self.custody.audit.accepting

    def _names(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Sequence[OffloadKey]:
        """Names of blocks that vLLM looked up or stored before, so that they have been named."""
        custody = req_context.get_state(RequestCustody)
        assert custody is not None, "vLLM moves blocks only of requests that were granted it"
        names = (self._name(key, req_context, custody) for key in keys)
        return [name for name in names if name is not None]

    def _name(
        self, key: OffloadKey, req_context: ReqContext, custody: RequestCustody
    ) -> OffloadKey | None:
        """A block's keyed name; `None` once the namespace's keys are gone."""
        name = custody.names.get(key)
        if name is None:
            keyed = custody.granted.keys.name(key)
            if keyed is None:
                return None
            name = make_offload_key(keyed, get_offload_group_idx(key))
            custody.names[key] = name
            # Host memory's eviction policy orders a request's blocks by these positions.
            position = req_context.get_offload_key_position(key)
            if position is not None:
                req_context.set_offload_key_position(name, position)
        return name

    def _remember(self, name: OffloadKey, key: OffloadKey) -> None:
        self._originals[name] = key
        self._originals.move_to_end(name)
        if len(self._originals) > self._most_originals:
            self._originals.popitem(last=False)

    def _originals_of(self, names: Iterable[OffloadKey], *, forget: bool) -> list[OffloadKey]:
        find = self._originals.pop if forget else self._originals.get
        found = (find(name, None) for name in names)
        return [key for key in found if key is not None]
