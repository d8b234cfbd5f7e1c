"""After a command has finished, a core dump of it would hold nothing of the root key."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from process_memory import writable_memory

PROGRAM = Path(__file__).with_name("command_then_wait.py")
PIECE = 8


@pytest.mark.parametrize(
    "command",
    [
        ("keys", "list"),
        ("keys", "rotate", "--all"),
        ("keys", "rewrap"),
        ("token", "mint", "--tenant", "acme"),
        ("audit", "verify"),
        # One that fails after the root key was read.
        ("keys", "rotate", "--namespace", "0" * 32),
    ],
    ids=" ".join,
)
def test_a_command_leaves_nothing_of_the_root_key_in_memory(
    config: Path, command: tuple[str, ...]
) -> None:
    text = (config.parent / "keys" / "root.key").read_text().splitlines()[1]
    forms = (base64.b64decode(text), text.encode())
    wanted = {form[start : start + PIECE] for form in forms for start in range(0, 32, PIECE)}
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, str(PROGRAM), *command, "-c", str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdout is not None
        while not (line := running.stdout.readline()).startswith("exit "):
            assert line, "it ended early"
        memory = list(writable_memory(running.pid))
        running.kill()
    # The search finds what is there: the configuration's path.
    assert any(str(config).encode() in region for region in memory)
    assert [piece for piece in wanted for region in memory if piece in region] == []
