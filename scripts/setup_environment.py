"""Make .venv with pinned dependencies, for `make demo` and `make test`; needs only Python itself.

A second run finds that nothing has changed and does nothing. Exit codes: 0 ready; 2 this Python is
too old; 3 a package could not be installed.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
LOCK = ROOT / "requirements" / "cpu.lock"
STAMP = ENVIRONMENT / "kvcustody-environment"
TORCH = "2.13.0"
# Where PyTorch itself publishes builds without CUDA; PyPI has none for Linux.
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
OLDEST_PYTHON = (3, 11)
LAST_LINES = 8


class SetupError(Exception):
    """A step failed; the text says which, and how it ended."""


def main() -> int:
    """Make the environment unless it is there."""
    if sys.version_info < OLDEST_PYTHON:
        _say(f"Python {sys.version.split()[0]} is too old; 3.11 or newer is needed")
        return 2
    with _one_at_a_time():
        wanted = _fingerprint()
        if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == wanted:
            return 0
        STAMP.unlink(missing_ok=True)
        try:
            _step("Making .venv", _make_environment)
            _step(f"Installing PyTorch {TORCH}", _install_torch)
            _step("Installing pinned packages", _install_lock)
            _step("Installing kvcustody", _install_project)
        except SetupError as error:
            _say(str(error))
            return 3
        STAMP.write_text(wanted, encoding="utf-8")
    return 0


def _fingerprint() -> str:
    """What the environment was made from; another text means that it must be made again."""
    digest = hashlib.sha256()
    for file in (LOCK, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    return f"{digest.hexdigest()} {sys.version} {ROOT}\n"


def _make_environment() -> str:
    # An environment of another Python or folder can't be repaired.
    venv.EnvBuilder(with_pip=True, clear=True).create(ENVIRONMENT)
    return ""


def _install_torch() -> str:
    """Take a build without CUDA where there is one; the CUDA build also runs, but is several GB."""
    cpu_build = f"torch=={TORCH}+cpu"
    attempts = (
        ("the CPU build that pip is configured to find", ["--no-deps", cpu_build]),
        (
            "the CPU build of PyTorch's own index",
            [
                "--no-deps",
                "--index-url",
                CPU_WHEELS,
                "--timeout",
                "20",
                "--retries",
                "1",
                cpu_build,
            ],
        ),
        ("PyPI's build, which brings CUDA along", [f"torch=={TORCH}"]),
    )
    for name, arguments in attempts[:-1]:
        with contextlib.suppress(SetupError):
            _pip(*arguments)
            return name
    _pip(*attempts[-1][1])
    return attempts[-1][0]


def _install_lock() -> str:
    _pip("--no-deps", "--requirement", str(LOCK))
    return ""


def _install_project() -> str:
    _pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    return ""


def _pip(*arguments: str) -> None:
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    finished = subprocess.run(  # noqa: S603 - pip, with our own arguments
        [*command, "install", "--quiet", "--no-input", *arguments],
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PIP_REQUIRE_VIRTUALENV": "1"},
    )
    if finished.returncode != 0:
        lines = finished.stdout.strip().splitlines()[-LAST_LINES:]
        raise SetupError("\n".join([f"pip install {' '.join(arguments)} failed:", *lines]))


def _step(name: str, work: Callable[[], str]) -> None:
    started = time.monotonic()
    _say(f"{name} …")
    detail = work()
    _say(f"{name}: {time.monotonic() - started:.0f} s{f' ({detail})' if detail else ''}")


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two `make` at once must not build the same environment."""
    with (ROOT / ".setup.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is a program


if __name__ == "__main__":
    sys.exit(main())
