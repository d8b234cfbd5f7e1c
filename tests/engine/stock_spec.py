"""vLLM's own tiered offloading, made to run on the CPU, so that tests can show what it does."""

from typing import Any

from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvcustody.vllm.host_worker import HostCopyWorker


class StockSpec(TieringOffloadingSpec):  # type: ignore[misc]  # vLLM's classes are Any to mypy
    """vLLM's `TieringOffloadingSpec`, unchanged but for one thing that the CPU platform lacks.

    vLLM has no offloading worker for hosts without an accelerator; this one copies with ours. The
    manager, its names, and the tiers are vLLM's.
    """

    def get_worker(self, kv_caches: Any) -> HostCopyWorker:
        return HostCopyWorker.create(self, kv_caches)
