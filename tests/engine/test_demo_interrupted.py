"""The demo when somebody stops it half-way: nothing of it stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kvcustody.demo.server import shared_memory_regions

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_shared_memory(
    tmp_path: Path, how: signal.Signals
) -> None:
    before = shared_memory_regions()
    demo = subprocess.Popen(  # noqa: S603 - our own command
        [
            *(sys.executable, "-m", "kvcustody.cli.app"),
            *("demo", "--fast", "--directory", str(tmp_path / "demo")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    log = tmp_path / "demo" / "server.log"
    _wait_until(lambda: log.exists() and b"vllm_offload_" in log.read_bytes())
    started = psutil.Process(demo.pid).children(recursive=True)
    assert started
    os.kill(demo.pid, how)
    assert demo.wait(60) != 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert shared_memory_regions() <= before


def _wait_until(condition: Callable[[], bool], seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)
