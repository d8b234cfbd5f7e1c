"""The spec: builds the scheduler's manager and the worker, both around vLLM's tiering."""

from collections.abc import Callable, Sequence

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvcustody.vllm import options
from kvcustody.vllm.host_memory import protect
from kvcustody.vllm.host_worker import HostCopyWorker
from kvcustody.vllm.layout import layout_digest
from kvcustody.vllm.manager import GoverningManager
from kvcustody.wiring import EngineCustody, build_engine


class CustodySpec(TieringOffloadingSpec):
    """vLLM's tiered offloading under custody.

    Args:
        config: vLLM's offloading configuration, with completed connector options.

    """

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._custody: EngineCustody | None = None
        self._governing: GoverningManager | None = None
        self._host_worker: HostCopyWorker | None = None

    @property
    def custody(self) -> EngineCustody:
        """The stages of custody, in the scheduler's process."""
        assert self._custody is not None
        return self._custody

    def get_manager(self) -> OffloadingManager:
        """vLLM's tiering manager inside the governing one.

        Raises:
            ConfigurationError: custody.yaml, or a file that it names, is wrong.
            UnavailableError: the registry can't be reached.

        """
        if self._governing is None:
            settings = options.read_settings(self.extra_config)
            self._custody = build_engine(
                settings,
                model=options.model_facts(settings, self.extra_config),
                layout=layout_digest(self.config),
                block_bytes=self.kv_bytes_per_chunk,
            )
            try:
                tiering = super().get_manager()
            except BaseException:
                self._custody.close()
                raise
            assert self._scheduler_mmap is not None
            protect(self._scheduler_mmap)
            self._governing = GoverningManager(
                tiering, self._custody, self.num_chunks, self._scrub_if_needed()
            )
        return self._governing

    def _scrub_if_needed(self) -> Callable[[Sequence[int]], None] | None:
        """How to zero blocks of host memory, where a KV group fills only a part of one.

        A tier seals whole blocks; the rest would be what another tenant left there.
        """
        if len(self.config.groups) == 1 and self.blocks_per_chunk == 1:
            return None
        region = self._scheduler_mmap
        assert region is not None

        def scrub(chunks: Sequence[int]) -> None:
            rows = region.base_tensor.view(self.num_chunks, self.kv_bytes_per_chunk)
            for chunk in chunks:
                rows[chunk].zero_()

        return scrub

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The stock worker on an accelerator; on a host without one, ours that copies in memory."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._host_worker is None:
            self._host_worker = HostCopyWorker.create(self, kv_caches)
        return self._host_worker
