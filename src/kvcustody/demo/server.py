"""A real server for the demo: started with `kvcustody serve`, stopped whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from kvcustody.errors import UnavailableError

_START_SECONDS = 300.0
_STOP_SECONDS = 15.0
_CLEAN_UP_SECONDS = 5.0
_POLL_SECONDS = 0.25
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps shared memory
_LOG_LINES = 12

# What makes a small model start quickly and run steadily on a small machine without a GPU.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}
VLLM_FLAGS = (
    "--enforce-eager",
    *("--max-model-len", "4096"),
    *("--served-model-name", "demo"),
    # In half precision, vLLM's own answers differ by rounding with how much of a prompt is cached.
    *("--dtype", "float32"),
)
"""What makes vLLM's answers the same each time, and its start quick."""


@dataclass(frozen=True)
class Server:
    """A running server.

    Args:
        url: where it listens.
        process: the API server; its children are in the same process group.
        log: its output.

    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running_server(
    model: Path, config: Path, log: Path, *, options: Sequence[str] = ()
) -> Iterator[Server]:
    """Serve a model under custody until the block ends.

    Args:
        model: the model's folder.
        config: custody.yaml.
        log: file for the server's output, appended to.
        options: more options of `vllm serve`.

    Raises:
        UnavailableError: the server did not come up; the text holds the end of its log.

    """
    port = free_port()
    command = [
        *(sys.executable, "-m", "kvcustody.cli.app", "serve", str(model), "--config", str(config)),
        *("--", "--host", "127.0.0.1", "--port", str(port), *VLLM_FLAGS, *options),
    ]
    with running(command, port, log) as server:
        yield server


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a command that serves, until the block ends.

    Args:
        command: the program and its arguments.
        port: where it will listen, on loopback.
        log: file for its output, appended to.
        environment: variables in addition to ours.

    Raises:
        UnavailableError: the server did not come up; the text holds the end of its log.

    """
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | _ENVIRONMENT | dict(environment or {}),
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        stop(server)


def stop(server: Server) -> None:
    """Stop a server and all its children; kill what doesn't stop by itself, and clean up for it."""
    members = processes_of(server)
    regions = _regions_of(members)
    if server.process.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(server.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(_STOP_SECONDS)
    members |= processes_of(server)
    regions |= _regions_of(members)
    # Python's resource tracker ends by itself, once it has removed what the others left.
    trackers = {member for member in members if _is_resource_tracker(member)}
    for member in members - trackers:
        with suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(trackers, timeout=_CLEAN_UP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()
    for region in regions:
        region.unlink(missing_ok=True)


def processes_of(server: Server) -> set[psutil.Process]:
    """A server's process and all its children, as far as they still run."""
    try:
        process = psutil.Process(server.process.pid)
        return {process, *process.children(recursive=True)}
    except psutil.Error:
        return set()


def _is_resource_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def _regions_of(processes: Iterable[psutil.Process]) -> set[Path]:
    """Names in shared memory that processes use."""
    return {
        Path(mapping.path)
        for process in processes
        for mapping in _mappings(process)
        if Path(mapping.path).parent == _SHARED_MEMORY
    }


def _mappings(process: psutil.Process) -> list[Any]:
    try:
        return list(process.memory_maps())
    except (psutil.Error, OSError):
        return []  # ended meanwhile


def shared_memory_regions() -> frozenset[Path]:
    """Names in this machine's shared memory, but a database's; vLLM's regions are among them."""
    return frozenset(
        path for path in _SHARED_MEMORY.iterdir() if not path.name.startswith("PostgreSQL.")
    )


def _wait_until_healthy(server: Server) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise UnavailableError(f"the server stopped while starting: {_end_of(server.log)}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(_POLL_SECONDS)
    raise UnavailableError(f"the server did not come up in time: {_end_of(server.log)}")


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([str(log), *lines[-_LOG_LINES:]])


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
