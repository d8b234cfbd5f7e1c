"""The secondary tier: vLLM's job protocol on one side, a governed tier on the other."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_block_hash,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvcustody.stores import Address
from kvcustody.tiers import Count, Presence, Slot
from kvcustody.vllm.manager import RequestCustody

if TYPE_CHECKING:
    from kvcustody.vllm.spec import CustodySpec

_RESULTS = {
    Presence.PRESENT: LookupResult.HIT,
    Presence.ABSENT: LookupResult.MISS,
    Presence.UNKNOWN: LookupResult.RETRY,
}

# What vLLM doesn't know here ends its metrics (offloading/metrics.py, observe), so all that a tier
# counts is described: each metric's text, and its labels beyond the engine's.
_METRICS: Mapping[Count, tuple[str, tuple[str, ...]]] = {
    Count.STORED: ("Blocks sealed and put into a tier", ("tier",)),
    Count.STORED_BYTES: ("Bytes of KV data sealed and put into a tier", ("tier",)),
    Count.LOADED: ("Blocks read from a tier and opened", ("tier",)),
    Count.LOADED_BYTES: ("Bytes of KV data read from a tier and opened", ("tier",)),
    Count.DROPPED: (
        "Blocks not stored or loaded because of an error of the tier or a deadline",
        ("tier", "action"),
    ),
    Count.REJECTED: (
        "Blocks that failed a check when they were opened, and were recomputed",
        ("tier", "reason"),
    ),
}


class CustodyTier(SecondaryTierManager):
    """A tier of custody.yaml as vLLM's tiering sees it.

    Args:
        offloading_spec: our spec, which holds the stages of custody.
        primary_kv_view: host memory, (blocks, block bytes).
        tier_type: vLLM's name for this kind of tier.
        name: the tier's name in custody.yaml.
        backpressure_detector: vLLM's, if configured.

    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: "CustodySpec",
        primary_kv_view: memoryview,
        tier_type: str,
        name: str,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        (self._tier,) = (tier for tier in offloading_spec.custody.tiers if tier.name == name)
        self._host = primary_kv_view.cast("B")

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether the tier has a block; RETRY while that isn't known, for a bounded time."""
        custody = req_context.get_state(RequestCustody)
        if custody is None:
            return LookupResult.MISS
        return _RESULTS[self._tier.lookup(custody.grant, _address(key, custody))]

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Begin to store blocks that are in host memory."""
        custody = _custody_of(job_metadata)
        self._tier.submit_store(
            job_metadata.job_id, custody.grant, self._slots(job_metadata, custody)
        )

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Begin to load blocks into host memory."""
        custody = _custody_of(job_metadata)
        self._tier.submit_load(
            job_metadata.job_id, custody.grant, self._slots(job_metadata, custody)
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Results since the last call; a block that didn't arrive is recomputed."""
        return [
            JobResult(
                outcome.job_id,
                success=not outcome.failed,
                successful_keys=outcome.succeeded,
                transfer_time=outcome.seconds,
                transfer_bytes=outcome.moved_bytes,
            )
            for outcome in self._tier.finished()
        ]

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """The metrics of `get_stats`."""
        return {
            _metric(count): OffloadingCounterMetadata(documentation=text, labelnames=labels)
            for count, (text, labels) in _METRICS.items()
        }

    def get_stats(self) -> OffloadingConnectorStats:
        """What was counted since the last call."""
        stats = OffloadingConnectorStats()
        for (count, label), amount in self._tier.counters.take().items():
            labels = (self._tier.name, label) if label else (self._tier.name,)
            stats.increase_counter(_metric(count), amount, labels)
        return stats

    def has_pending_work(self) -> bool:
        """Whether a job is under way."""
        return self._tier.has_work()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Blocks are offloaded as they are computed."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Drop what was looked up for the request."""
        custody = req_context.get_state(RequestCustody)
        if custody is not None:
            self._tier.forget(custody.granted)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Send this step's lookups off."""
        self._tier.flush_lookups()

    def drain_jobs(self) -> None:
        """End all jobs; none touches host memory afterwards."""
        self._tier.drain()

    def shutdown(self) -> None:
        """End all jobs and let go of host memory."""
        self._tier.close()
        self._tier.finished()
        self._host.release()

    def _slots(self, job: TransferJob, custody: RequestCustody) -> list[Slot]:
        size = self.block_size_bytes
        return [
            Slot(key, _address(key, custody), self._host[chunk * size : (chunk + 1) * size])
            for key, chunk in zip(job.keys, job.chunk_ids.tolist(), strict=True)
        ]


def _metric(count: Count) -> str:
    return f"kvcustody:{count.value}"


def _custody_of(job: TransferJob) -> RequestCustody:
    custody = job.req_context.get_state(RequestCustody)
    assert custody is not None, "only admitted requests reach a tier"
    return custody


def _address(key: OffloadKey, custody: RequestCustody) -> Address:
    # The keyed name covers the KV group as well (see GoverningManager), so it is enough.
    return Address(custody.granted.keys.identifier, get_offload_block_hash(key))
