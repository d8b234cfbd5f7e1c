"""The host-copy worker: every block arrives where it belongs, bit for bit."""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvcustody.vllm.host_memory import WorkerRegion, protect
from kvcustody.vllm.host_worker import HostCopyWorker
from kvcustody.vllm.spec import CustodySpec

pytestmark = pytest.mark.engine

PAGE = 4096
BLOCKS = 12


def region_for(engine_id: str, rank: int | None, blocks_per_chunk: int) -> SharedOffloadRegion:
    kind = SharedOffloadRegion if rank is None else WorkerRegion
    size = 2 * PAGE * blocks_per_chunk
    return kind(
        engine_id=engine_id,
        num_chunks=8,
        rank=rank,
        kv_bytes_per_chunk=size,
        cpu_page_size=size,
    )


@pytest.fixture(params=[1, 2, 3])
def setup(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[HostCopyWorker, list[torch.Tensor], int]]:
    """A worker over two tensors, where the second layer leaves a part of its page unused."""
    blocks_per_chunk: int = request.param
    tensors = [torch.randint(-128, 127, (BLOCKS, PAGE), dtype=torch.int8) for _ in range(2)]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, PAGE) for tensor in tensors],
        [[CanonicalKVCacheRef(0, PAGE)], [CanonicalKVCacheRef(1, PAGE - 96)]],
    )
    region = region_for(f"test-{secrets.token_hex(4)}", 0, blocks_per_chunk)
    worker = HostCopyWorker(caches, blocks_per_chunk, region)
    yield worker, tensors, blocks_per_chunk
    worker.shutdown()
    assert not Path(region.mmap_path).exists()


def test_blocks_come_back_as_they_went(
    setup: tuple[HostCopyWorker, list[torch.Tensor], int],
) -> None:
    worker, tensors, blocks_per_chunk = setup
    original = [tensor.clone() for tensor in tensors]
    blocks = [3, 0, 5, 7, 2, 9]  # three blocks of each group, in no order
    index = blocks_per_chunk - 1  # the first may lie in the middle of a chunk
    chunks_per_group = -(-(index % blocks_per_chunk + 3) // blocks_per_chunk)
    chunks = list(range(7, 7 - 2 * chunks_per_group, -1))
    cache_spec = GPULoadStoreSpec(blocks, [3, 3], [index, index])
    assert worker.submit_store(1, cache_spec, CPULoadStoreSpec(chunks))
    for tensor in tensors:
        tensor.zero_()
    targets = [1, 4, 6, 8, 10, 11]
    assert worker.submit_load(
        2, CPULoadStoreSpec(chunks), GPULoadStoreSpec(targets, [3, 3], [index, index])
    )
    results = worker.get_finished()
    assert [(result.job_id, result.success) for result in results] == [(1, True), (2, True)]
    assert {result.transfer_size for result in results} == {3 * PAGE + 3 * (PAGE - 96)}
    assert worker.get_finished() == []
    for source, target in zip(blocks[:3], targets[:3], strict=True):
        assert torch.equal(tensors[0][target], original[0][source])
    for source, target in zip(blocks[3:], targets[3:], strict=True):
        assert torch.equal(tensors[1][target, :-96], original[1][source, :-96])
        assert not tensors[1][target, -96:].any()
    untouched = [block for block in range(BLOCKS) if block not in targets[:3]]
    assert not tensors[0][untouched].any()


def test_an_empty_group_moves_nothing(
    setup: tuple[HostCopyWorker, list[torch.Tensor], int],
) -> None:
    worker, tensors, _ = setup
    before = [tensor.clone() for tensor in tensors]
    spec = GPULoadStoreSpec([4], [0, 1], [0, 0])
    worker.submit_store(1, spec, CPULoadStoreSpec([2]))
    worker.submit_load(2, CPULoadStoreSpec([2]), spec)
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))


def test_a_protected_region_has_no_name_and_both_sides_still_share_it() -> None:
    engine_id = f"test-{secrets.token_hex(4)}"
    worker_side = region_for(engine_id, 0, 1)
    scheduler_side = region_for(engine_id, None, 1)
    view = worker_side.create_next_worker_view(PAGE)
    protect(scheduler_side)
    assert not Path(worker_side.mmap_path).exists()
    view[3, :5] = torch.tensor([1, 2, 3, 4, 5], dtype=torch.int8)
    start = 3 * 2 * PAGE
    assert bytes(scheduler_side.create_kv_memoryview().cast("B")[start : start + 5]) == bytes(
        [1, 2, 3, 4, 5]
    )
    del view
    worker_side.cleanup()
    scheduler_side.cleanup()


def test_a_new_owner_of_host_memory_finds_nothing_of_the_old_one() -> None:
    """A KV group that fills only a part of a block would have the rest sealed as its own."""
    region = region_for(f"test-{secrets.token_hex(4)}", None, 1)
    spec = CustodySpec.__new__(CustodySpec)
    spec.config = SimpleNamespace(groups=["full attention", "sliding window"])
    spec.blocks_per_chunk = 1
    spec.num_chunks = 8
    spec.kv_bytes_per_chunk = 2 * PAGE
    spec._scheduler_mmap = region
    rows = region.base_tensor.view(8, 2 * PAGE)
    rows.fill_(7)
    scrub = spec._scrub_if_needed()
    assert scrub is not None
    scrub([2, 5])
    filled = [bool((rows[chunk] == 7).all()) for chunk in range(8)]
    assert filled == [True, True, False, True, True, False, True, True]
    assert not rows[[2, 5]].any()
    spec.config = SimpleNamespace(groups=["full attention"])
    assert spec._scrub_if_needed() is None
    Path(region.mmap_path).unlink()
    del rows
    region.cleanup()


def test_core_dumps_leave_shared_memory_out_and_nothing_else() -> None:
    """In a process of its own, whose filter a test may change."""
    program = (
        "from kvcustody.vllm.host_memory import keep_out_of_core_dumps as keep\n"
        "from pathlib import Path\n"
        "path = Path('/proc/self/coredump_filter')\n"
        "path.write_text('0x3f')\n"
        "keep()\n"
        "print(path.read_text())"
    )
    finished = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert int(finished.stdout.split()[-1], 16) == 0x35


def test_protecting_leaves_another_engines_region_alone() -> None:
    engine_id = f"test-{secrets.token_hex(4)}"
    ours = region_for(engine_id, None, 1)
    Path(ours.mmap_path).unlink()
    theirs = region_for(engine_id, None, 1)
    protect(ours)
    assert Path(theirs.mmap_path).exists()
    Path(theirs.mmap_path).unlink()
    ours.cleanup()
    theirs.cleanup()
