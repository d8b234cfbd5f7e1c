"""What tests of the command line share: running it, and a deployment to run it on."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcustody.cli import app
from kvcustody.deployment import init_deployment


class Result:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        assert self.code in {0, 1}, self.err
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process, through its entry point."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["kvcustody", *map(str, arguments)])
        capsys.readouterr()
        try:
            app.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment as `kvcustody init` leaves it; its paths are relative, so a copy works, too."""
    site = tmp_path_factory.mktemp("pristine") / "site"
    init_deployment(site / "custody.yaml")
    return site


@pytest.fixture
def config(tmp_path: Path, pristine: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "site") / "custody.yaml"


def one_line(result: Result) -> str:
    """The error of a command that failed as documented."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("kvcustody: ")
    assert result.err.count("\n") == 1
    return result.err


def replaced(old: str, new: str) -> Callable[[Path], None]:
    """A change of a custody.yaml."""

    def replace(config: Path) -> None:
        text = config.read_text(encoding="utf-8")
        assert old in text
        config.write_text(text.replace(old, new), encoding="utf-8")

    return replace
