"""Hygiene of the shared memory that is the host tier: plaintext KV data of all tenants."""

import mmap
import os
from contextlib import suppress
from pathlib import Path

from vllm.logger import init_logger
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

logger = init_logger(__name__)


def protect(region: SharedOffloadRegion) -> None:
    """Drop the region's name and keep it out of core dumps.

    vLLM's tiering never drops the name (it passes no barrier to SharedOffloadRegion), so a killed
    engine leaves all KV data in /dev/shm. Workers map the region before the scheduler's side does,
    so from here on nobody needs the name, and the kernel frees the memory with the last process.

    Args:
        region: the scheduler's mapping; it and all workers' mappings stay valid.

    """
    assert region.mmap_obj is not None
    assert region.fd is not None
    region.mmap_obj.madvise(mmap.MADV_DONTDUMP)
    with suppress(FileNotFoundError):
        named, mapped = Path(region.mmap_path).stat(), os.fstat(region.fd)
        if (named.st_dev, named.st_ino) == (mapped.st_dev, mapped.st_ino):
            Path(region.mmap_path).unlink()
            logger.info("Dropped the name of the host tier's shared memory")


class WorkerRegion(SharedOffloadRegion):
    """A worker's mapping, which doesn't mind that the scheduler's side has dropped the name."""

    _creator: bool

    def cleanup(self) -> None:
        """Release the mapping, and remove the name if the engine never came up."""
        if self._creator and not Path(self.mmap_path).exists():
            self._creator = False
        super().cleanup()
