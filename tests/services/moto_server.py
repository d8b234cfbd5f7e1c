"""moto's server, which answers as AWS does, in a process of its own; or run as that process."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret-access-key-of-nobody",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
"""An environment in which boto3 finds these credentials and nothing else."""


class MotoServer:
    """A running server; it keeps what it was told until it ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, Path(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **CREDENTIALS},
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url.startswith("http://"):
            _, errors = self._process.communicate(timeout=10)
            raise RuntimeError(f"moto's server didn't start; install the extra `test`: {errors}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def freeze(self) -> None:
        """Make it accept connections and never answer."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Make it answer again."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)

    def client(self, service: str, **arguments: Any) -> Any:
        """A boto3 client of it, to do what an administrator does."""
        import boto3  # noqa: PLC0415 - the process that runs the server needs none

        return boto3.session.Session(
            CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        ).client(service, endpoint_url=self.url, region_name=REGION, **arguments)

    def create_key(self, **arguments: Any) -> str:
        """Create a KMS key; its ARN."""
        return str(self.client("kms").create_key(**arguments)["KeyMetadata"]["Arn"])

    def check_permissions_after(self, requests: str) -> None:
        """Check IAM permissions after so many requests; `inf` for never."""
        request = Request(  # noqa: S310 - our own server
            f"{self.url}/moto-api/reset-auth",
            requests.encode(),
            {"Content-Type": "text/plain"},
        )
        with urlopen(request, timeout=5):  # noqa: S310 - our own server
            pass


def _serve() -> None:
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - takes long; only the server needs

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
