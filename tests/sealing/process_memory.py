"""What another process's memory holds, as a core dump of it would."""

from collections.abc import Iterator
from pathlib import Path


def writable_memory(pid: int) -> Iterator[bytes]:
    """The contents of a process's writable mappings, one by one.

    Args:
        pid: a process of this user's that doesn't run meanwhile.

    """
    folder = Path("/proc") / str(pid)
    with (folder / "mem").open("rb", buffering=0) as memory:
        for line in (folder / "maps").read_text().splitlines():
            extent, mode, *_ = line.split()
            if "w" not in mode:
                continue
            start, end = (int(address, 16) for address in extent.split("-"))
            memory.seek(start)
            yield memory.read(end - start)
