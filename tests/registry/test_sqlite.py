"""What a SQLite file adds: it is its owner's alone, and may be locked, damaged or misplaced."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from kvcustody.errors import UnavailableError
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import namespaces
from registries import add, add_namespace, failure, purposes, refusal

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "registry.sqlite"


@pytest.fixture
def registry(path: Path) -> Iterator[Registry]:
    registry = open_registry(f"sqlite:///{path}")
    yield registry
    registry.close()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcustody.registry.sqlite._LOCK_WAIT_SECONDS", 0.05)
    monkeypatch.setattr("kvcustody.registry.upgrading._START_WAIT_SECONDS", 0.05)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
def test_files_and_folder_are_private_whatever_the_umask(registry: Registry, path: Path) -> None:
    add(registry, "assertion")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_destroyed_key_does_not_survive_in_the_file(registry: Registry, path: Path) -> None:
    """Its wrapped form would be enough for whoever gets the root key later."""
    marker = b"wrapped key that must go" * 4
    add_namespace(registry, wrapped=marker)
    registry.close()
    assert marker in path.read_bytes()
    again = open_registry(f"sqlite:///{path}")
    with again.write() as connection:
        connection.execute(update(namespaces).values(wrapped_naming_key=None, destroyed=1.0))
    again.close()
    for file in path.parent.iterdir():
        assert marker not in file.read_bytes(), file.name


@pytest.mark.usefixtures("_impatient")
def test_a_locked_registry_is_unavailable_and_not_waited_for_long(path: Path) -> None:
    registry = open_registry(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="locked by another process"), registry.write():
            pass
        assert purposes(registry) == []
        other.execute("ROLLBACK")
    add(registry, "assertion")
    registry.close()


@pytest.mark.usefixtures("_impatient")
def test_a_registry_that_is_up_to_date_opens_while_another_writes(
    registry: Registry, path: Path
) -> None:
    add(registry, "assertion")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opened = open_registry(f"sqlite:///{path}")
        assert purposes(opened) == ["assertion"]
        opened.close()
        other.execute("ROLLBACK")


@pytest.mark.usefixtures("_impatient")
def test_a_new_registry_that_stays_locked_is_unavailable(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        path.chmod(0o600)
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN IMMEDIATE")
        error = failure(f"sqlite:///{path}")
        assert error == f"{path}: the registry is locked by another process"
        other.execute("ROLLBACK")
    open_registry(f"sqlite:///{path}").close()


@pytest.mark.parametrize("content", [b"not a database, but long enough" * 40, b"\0" * 4096])
def test_a_damaged_registry_says_to_restore_it_and_is_left_alone(
    path: Path, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    error = refusal(f"sqlite:///{path}")
    assert error.file == path
    assert "restore it from a backup" in error.message
    assert path.read_bytes() == content


def test_a_registry_cut_short_says_to_restore_it_and_is_left_alone(
    registry: Registry, path: Path
) -> None:
    registry.close()
    content = path.read_bytes()[:5000]
    path.write_bytes(content)
    assert "restore it from a backup" in refusal(f"sqlite:///{path}").message
    assert path.read_bytes() == content


def test_an_empty_file_is_a_new_registry(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.touch(0o600)
    registry = open_registry(f"sqlite:///{path}")
    assert purposes(registry) == []
    registry.close()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o666])
def test_a_registry_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    open_registry(f"sqlite:///{path}").close()
    path.chmod(mode)
    error = refusal(f"sqlite:///{path}")
    assert (error.file, error.message) == (
        path,
        f"others may read it (mode {mode:04o}); run chmod 600 on it",
    )
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert "others may write to it" in refusal(f"sqlite:///{path}").message
    path.parent.chmod(0o755)
    open_registry(f"sqlite:///{path}").close()


def test_a_folder_in_place_of_the_registry_is_a_clear_error(path: Path) -> None:
    path.mkdir(parents=True)
    error = refusal(f"sqlite:///{path}")
    assert error.file == path
    assert "check `state` and its permissions" in error.message


def test_a_file_in_place_of_the_folder_is_a_clear_error(path: Path) -> None:
    path.parent.write_bytes(b"")
    assert "check `state` and its permissions" in refusal(f"sqlite:///{path}").message
