"""Hygiene of the shared memory that is the host tier: plaintext KV data of all tenants."""

import os
from contextlib import suppress
from pathlib import Path

from vllm.logger import init_logger
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

_CORE_DUMP_FILTER = Path("/proc/self/coredump_filter")
_SHARED_MAPPINGS = 0b1010  # bit 1: anonymous ones, bit 3: those of files

logger = init_logger(__name__)


def keep_out_of_core_dumps() -> None:
    """Leave shared memory out of this process's core dumps.

    The host tier is mapped by each of the engine's processes, and the kernel dumps a mapping whose
    file has no name any more like ordinary memory (core(5), /proc/PID/coredump_filter).
    """
    try:
        mask = int(_CORE_DUMP_FILTER.read_text(), 16)
        _CORE_DUMP_FILTER.write_text(f"{mask & ~_SHARED_MAPPINGS:#x}")
    except OSError:
        logger.warning("Core dumps of this process may contain the host tier's shared memory")


def protect(region: SharedOffloadRegion) -> None:
    """Drop the region's name.

    vLLM's tiering never drops the name (it passes no barrier to SharedOffloadRegion), so a killed
    engine leaves all KV data in /dev/shm. Workers map the region before the scheduler's side does,
    so from here on nobody needs the name, and the kernel frees the memory with the last process.

    Args:
        region: the scheduler's mapping; it and all workers' mappings stay valid.

    """
    assert region.fd is not None
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
