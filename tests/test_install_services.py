"""scripts/install_services.sh installs what is missing only, and says in one line what it can't."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# Beside a missing softhsm2-util, PostgreSQL is there.
pytestmark = pytest.mark.service

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "install_services.sh"
TOOLS = ("sh", "cat", "chmod", "env", "grep", "id", "ls", "mktemp", "rm", "tail")

Run = Callable[[], subprocess.CompletedProcess[str]]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with what every Debian has, a sudo that asks nothing, and no SoftHSM2."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(Path(shutil.which(tool) or tool))
    program(folder, "sudo", 'shift; exec "$@"')
    return folder


@pytest.fixture
def run(programs: Path) -> Run:
    return lambda: subprocess.run(  # noqa: S603 - our own script
        [SCRIPT], env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True,
        check=False, timeout=30,
    )  # fmt: skip


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def apt_get(programs: Path, installing: str) -> Path:
    """An apt-get that writes down how it was called."""
    calls = programs.parent / "calls"
    program(
        programs,
        "apt-get",
        f'echo "$*" >>{calls}\ncase "$*" in *install*) {installing};; esac',
    )
    return calls


def test_nothing_is_done_if_all_is_there(programs: Path, run: Run) -> None:
    program(programs, "softhsm2-util", "")
    calls = apt_get(programs, "exit 1")
    finished = run()
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    assert not calls.exists()


def test_only_what_is_missing_is_installed(programs: Path, run: Run) -> None:
    found = programs / "softhsm2-util"
    calls = apt_get(programs, f"echo '#!/bin/sh' >{found}; chmod +x {found}")
    finished = run()
    assert (finished.returncode, finished.stderr) == (0, "")
    update, install = calls.read_text(encoding="utf-8").splitlines()
    assert update.endswith("update")
    assert install.endswith("install --no-install-recommends softhsm2")
    assert run().stdout == ""


@pytest.mark.parametrize(
    ("installing", "said"),
    [
        ("echo 'E: Unable to locate package' >&2; exit 100", "E: Unable to locate package"),
        ("exit 0", "softhsm2-util is not in PATH"),
    ],
)
def test_an_installation_that_fails_is_one_line(
    programs: Path, run: Run, installing: str, said: str
) -> None:
    apt_get(programs, installing)
    finished = run()
    assert finished.returncode == 3
    assert len(finished.stderr.splitlines()) == 1
    assert said in finished.stderr


def test_without_apt_get_it_says_what_to_install(run: Run) -> None:
    finished = run()
    assert finished.returncode == 3
    assert finished.stderr == (
        "install_services: install softhsm2 by hand: there is no apt-get here\n"
    )
