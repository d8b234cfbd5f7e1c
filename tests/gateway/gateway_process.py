"""A real `kvcustody gateway`, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Only so that a broken gateway fails its test instead of hanging it.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class GatewayProcess:
    """A running gateway.

    Args:
        url: where it listens.
        ready: what it said when it was ready.
        process: the process.
        errors: file with its standard error.

    """

    url: str
    ready: Mapping[str, object]
    process: subprocess.Popen[str]
    errors: Path

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def gateway_process(
    config: Path, upstream: str, errors: Path, environment: Mapping[str, str] | None = None
) -> Iterator[GatewayProcess]:
    command = [
        *(sys.executable, "-m", "kvcustody.cli.app", "gateway", "--config", str(config)),
        *("--upstream", upstream, "--port", "0", "--json"),
    ]
    with errors.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdout=subprocess.PIPE,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=os.environ | dict(environment or {}),
            text=True,
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, errors.read_text(encoding="utf-8")
            ready = json.loads(line)
            url = f"http://{ready['host']}:{ready['port']}"
            yield GatewayProcess(url, ready, process, errors)
        finally:
            if process.poll() is None:
                process.kill()
