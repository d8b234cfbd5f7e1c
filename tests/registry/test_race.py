"""Processes that start at once and add the same rows: one registry, each row once, none lost."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from sqlalchemy import select

from kvcustody.registry import open_registry
from kvcustody.registry.schema import service_keys

PROCESSES, THREADS, ROWS = ("one", "two"), 8, 5


def test_rows_added_by_processes_and_threads_at_once_are_there_once(registry_url: str) -> None:
    program = Path(__file__).with_name("racing_process.py")
    racing = [
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, program, registry_url, name, str(THREADS), str(ROWS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in PROCESSES
    ]
    for process in racing:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in racing:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won: Counter[str] = Counter()
    for process in racing:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        won.update(purpose for _, purpose in json.loads(output))
    shared = {f"shared-{row}" for row in range(ROWS)}
    own = {f"{p}-{t}-{row}" for p in PROCESSES for t in range(THREADS) for row in range(ROWS)}
    assert won == Counter(shared | own)
    registry = open_registry(registry_url)
    with registry.read() as connection:
        rows = connection.execute(select(service_keys.c.purpose, service_keys.c.wrapped)).all()
    registry.close()
    assert Counter(row.purpose for row in rows) == won
    for row in rows:
        if row.purpose in own:
            assert row.purpose.startswith(bytes(row.wrapped).decode())
