"""Make `.venv`: torch, the packages of requirements/cpu.lock, and this project, editable.

Needs Python 3.11 or later and nothing else. Does nothing if `.venv` is up to date.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
LOCK = ROOT / "requirements" / "cpu.lock"
STAMP = ENVIRONMENT / "setup.stamp"

TORCH = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A closed network may swallow packets; then asking the index must not take minutes.
PROBE = ("--timeout", "5", "--retries", "0")
NOT_FOUND = "No matching distribution found"

MINIMUM_PYTHON = (3, 11)
ERROR_LINES = 5
USAGE_ERROR = 2
UNAVAILABLE = 3


class SetupError(Exception):
    """The environment can't be made; the text is for a person."""


@dataclass(frozen=True)
class Result:
    """What pip said.

    Args:
        ok: whether it succeeded.
        output: standard output.
        errors: standard error, without warnings.

    """

    ok: bool
    output: str
    errors: str


def main() -> int:
    """Bring the environment up to date; the exit code."""
    if sys.version_info < MINIMUM_PYTHON:
        _complain(f"Python {sys.version.split()[0]} is too old; use 3.11 or later")
        return USAGE_ERROR
    with Path(__file__).open("rb") as script:
        # Two at once must not make the same environment; this file is there to be locked.
        fcntl.flock(script, fcntl.LOCK_EX)
        return _update()


def _update() -> int:
    started = time.monotonic()
    # Another Python or other packages need a new environment, another pyproject.toml does not.
    packages = _digest(sys.version, sys.base_prefix, str(ENVIRONMENT), LOCK.read_text("utf-8"))
    everything = _digest(packages, *(path.read_text("utf-8") for path in _other_inputs()))
    stamp = STAMP.read_text("utf-8").split() if STAMP.is_file() else []
    if stamp == [packages, everything]:
        return 0
    try:
        if stamp[:1] != [packages]:
            _create_environment()
            _install_torch()
        _install_packages()
        _install_project()
        STAMP.write_text(f"{packages}\n{everything}\n", "utf-8")
    except (SetupError, OSError) as error:
        _complain(str(error))
        return UNAVAILABLE
    _say(f"{time.monotonic() - started:6.1f} s  .venv is ready")
    return 0


def _other_inputs() -> tuple[Path, ...]:
    return (ROOT / "pyproject.toml", Path(__file__))


def _create_environment() -> None:
    if ENVIRONMENT.exists() and not STAMP.is_file():
        raise SetupError(f"{ENVIRONMENT} was not made by this script; move it away, then try again")
    with _step(f"making .venv with Python {sys.version.split()[0]}"):
        if ENVIRONMENT.exists():
            shutil.rmtree(ENVIRONMENT)
        ENVIRONMENT.mkdir()
        # Empty until all is installed: this is ours, and unfinished.
        STAMP.touch()
        try:
            venv.create(ENVIRONMENT, with_pip=True, symlinks=True)
        except subprocess.CalledProcessError:
            raise SetupError(
                "this Python has no ensurepip; install it (on Debian: apt install python3-venv)"
            ) from None


def _install_torch() -> None:
    """Take a CPU build wherever there is one: the build on PyPI is CUDA's, of several GB."""
    cpu_build = f"torch=={TORCH}+cpu"
    with _step(f"torch {TORCH}+cpu, from where pip is configured to look"):
        result = _pip("install", "--no-deps", cpu_build)
        found = result.ok
        if not found and NOT_FOUND not in result.errors:
            raise SetupError(_explain(f"installing {cpu_build}", result))
    if found:
        return
    with _step("torch is not there; asking PyTorch's CPU index"):
        result = _pip("index", "versions", "torch", "--index-url", CPU_INDEX, *PROBE)
        found = result.ok and f"{TORCH}+cpu" in result.output
    if found:
        with _step(f"torch {TORCH}+cpu, from PyTorch's CPU index"):
            _must("install", "--no-deps", "--index-url", CPU_INDEX, cpu_build)
        return
    with _step(f"not there either; torch {TORCH} with CUDA, from PyPI: several GB"):
        # This build doesn't start without the CUDA packages that it depends on.
        _must("install", "--constraint", str(LOCK), f"torch=={TORCH}")


def _install_packages() -> None:
    with _step(f"packages of {LOCK.relative_to(ROOT)}"):
        # Wheels alone: building from source would fetch build tools that are not pinned.
        _must("install", "--no-deps", "--only-binary", ":all:", "--requirement", str(LOCK))


def _install_project() -> None:
    with _step("kvcustody, editable"):
        # Built with the pinned hatchling and editables, from here alone.
        offline = ("--no-deps", "--no-build-isolation", "--no-index")
        _must("install", *offline, "--editable", str(ROOT))


def _must(*arguments: str) -> None:
    result = _pip(*arguments)
    if not result.ok:
        raise SetupError(_explain(f"pip {' '.join(arguments)}", result))


def _pip(*arguments: str) -> Result:
    result = subprocess.run(  # noqa: S603 - our own command
        [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        cwd=ROOT,
    )
    # pip warns of harmless things, such as a configured folder that lacks a package.
    lines = [line for line in result.stderr.splitlines() if not line.startswith("WARNING:")]
    return Result(result.returncode == 0, result.stdout, "\n".join(lines).strip())


def _explain(what: str, result: Result) -> str:
    said = (result.errors or result.output).strip().splitlines()[-ERROR_LINES:]
    return "\n".join([f"{what} failed:", *(f"  {line}" for line in said)])


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextmanager
def _step(text: str) -> Iterator[None]:
    started = time.monotonic()
    _say(f"          {text} …")
    yield
    _say(f"{time.monotonic() - started:6.1f} s  done")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a script talks


def _complain(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr)  # noqa: T201 - a script talks


if __name__ == "__main__":
    sys.exit(main())
