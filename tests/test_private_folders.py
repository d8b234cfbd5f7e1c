import os
from pathlib import Path

import pytest

from kvcustody.private_folders import make_private_folder

pytestmark = pytest.mark.unit


def test_every_folder_that_is_made_is_the_owners_only(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        make_private_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(previous)
    for folder in ("a", "a/b", "a/b/c"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o750)
    make_private_folder(tmp_path / "a")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750


def test_something_else_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
        make_private_folder(Path("/proc/kv/below"))
    for path in ("file", "file/below", "dangling", "dangling/below"):
        with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
            make_private_folder(tmp_path / path)


def test_folders_that_somebody_else_makes_at_the_same_moment_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir
    wanted = tmp_path / "a" / "b"

    def overtaken(path: Path, mode: int = 0o777) -> None:
        try:
            mkdir(path, mode)
        except FileNotFoundError:
            mkdir(path.parent, mode)  # the other one, between our attempt and our look
            raise

    monkeypatch.setattr(Path, "mkdir", overtaken)
    make_private_folder(wanted)
    assert wanted.is_dir()
