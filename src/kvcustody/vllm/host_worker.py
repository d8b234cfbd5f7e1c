"""The worker for hosts without an accelerator: KV cache and host tier are both plain memory.

vLLM's own worker refuses the CPU platform (vllm/v1/kv_offload/cpu/spec.py, get_worker). This one
does the same copies, at once and in order, so that the whole path runs on a laptop and in tests.
"""

import time
from collections.abc import Iterator

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvcustody.errors import ConfigurationError
from kvcustody.vllm.host_memory import WorkerRegion


class HostCopyWorker(OffloadingWorker):
    """Copies blocks between the KV cache and the host tier.

    Args:
        kv_caches: the KV cache, tensors of (blocks, page bytes) int8.
        blocks_per_chunk: KV cache blocks in one block of the host tier.
        region: the host tier's shared memory, which this worker releases.

    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: WorkerRegion
    ) -> None:
        self._refs_per_group: list[list[CanonicalKVCacheRef]] = kv_caches.group_data_refs
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._cache = [cache.tensor for cache in kv_caches.tensors]
        self._pages = [cache.page_size_bytes for cache in kv_caches.tensors]
        self._host = [
            region.create_next_worker_view(page * blocks_per_chunk) for page in self._pages
        ]
        self._finished: list[TransferResult] = []

    @classmethod
    def create(cls, spec: TieringOffloadingSpec, kv_caches: CanonicalKVCaches) -> "HostCopyWorker":
        """A worker for the spec's layout.

        Raises:
            ConfigurationError: the layout is one that only the stock worker copies.

        """
        if spec.config.canonical_layout:
            raise ConfigurationError("canonical_layout needs an accelerator; leave it out on a CPU")
        region = WorkerRegion(
            engine_id=spec.config.engine_id,
            num_chunks=spec.num_chunks,
            rank=spec.config.parallel.rank,
            kv_bytes_per_chunk=spec.kv_bytes_per_chunk,
            cpu_page_size=spec.cpu_page_size_per_worker,
        )
        return cls(kv_caches, spec.blocks_per_chunk, region)

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Copy from the KV cache to the host tier."""
        return self._transfer(job_id, src_spec, dst_spec, to_host=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Copy from the host tier to the KV cache."""
        return self._transfer(job_id, dst_spec, src_spec, to_host=False)

    def get_finished(self) -> list[TransferResult]:
        """Results since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for: a copy is done when its submission returns."""

    def shutdown(self) -> None:
        """Release the host tier's memory."""
        self._host.clear()
        self._cache.clear()
        self._region.cleanup()

    def _transfer(
        self, job_id: int, cache_spec: GPULoadStoreSpec, host_spec: LoadStoreSpec, *, to_host: bool
    ) -> bool:
        assert isinstance(host_spec, BlockIDsLoadStoreSpec)
        started = time.perf_counter()
        moved = 0
        for ref, block, chunk, part in self._pairs(cache_spec, host_spec):
            size = ref.page_size_bytes
            start = part * self._pages[ref.tensor_idx]
            in_cache = self._cache[ref.tensor_idx][block, :size]
            in_host = self._host[ref.tensor_idx][chunk, start : start + size]
            _copy(in_cache, in_host) if to_host else _copy(in_host, in_cache)
            moved += size
        self._finished.append(TransferResult(job_id, True, moved, time.perf_counter() - started))
        return True

    def _pairs(
        self, cache_spec: GPULoadStoreSpec, host_spec: BlockIDsLoadStoreSpec
    ) -> Iterator[tuple[CanonicalKVCacheRef, int, int, int]]:
        """Each layer's data of each block: its KV cache block, host block and part of that.

        A group's first block may lie in the middle of a host block; `block_indices` tells where
        (vllm/v1/kv_offload/cpu/gpu_worker.py, transfer_async).
        """
        blocks = iter(cache_spec.block_ids.tolist())
        chunks = host_spec.block_ids.tolist()
        first_chunk = 0
        for refs, size, index in zip(
            self._refs_per_group, cache_spec.group_sizes, cache_spec.block_indices, strict=True
        ):
            skipped = index % self._blocks_per_chunk if size else 0
            for position in range(skipped, skipped + size):
                block = next(blocks)
                chunk = chunks[first_chunk + position // self._blocks_per_chunk]
                for ref in refs:
                    yield ref, block, chunk, position % self._blocks_per_chunk
            first_chunk += -(-(skipped + size) // self._blocks_per_chunk)


def _copy(source: torch.Tensor, destination: torch.Tensor) -> None:
    destination.copy_(source)
