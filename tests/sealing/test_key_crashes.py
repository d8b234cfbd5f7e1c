"""A command that is killed leaves a registry that works, and finishes when it is run again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("key_crasher.py")


@pytest.mark.parametrize("operation", ["rotate", "destroy", "rewrap"])
def test_killed_at_any_statement_the_registry_is_whole_and_the_operation_resumes(
    tmp_path: Path, operation: str
) -> None:
    finished = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(PROGRAM), str(tmp_path), operation],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    # At least before and after each of a handful of statements, and before each commit.
    assert json.loads(finished.stdout)["points"] >= 10
