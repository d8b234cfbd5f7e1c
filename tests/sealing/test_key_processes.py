"""Several engines that begin to use the same tenants at once end up with the same keys."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, select

from kvcustody.registry import open_registry
from kvcustody.registry.schema import data_keys, namespaces
from kvcustody.sealing.providers import create_key_file

PROGRAM = Path(__file__).with_name("key_user.py")
PROCESSES, THREADS, NAMESPACES = 2, 8, 2_000


# Without the mark `unit` that the fixture gives to SQLite: this takes a quarter of a minute.
@pytest.mark.parametrize(
    "registry_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.service)], indirect=True
)
def test_two_engines_with_eight_threads_and_2000_new_namespaces_lose_and_double_no_key(
    tmp_path: Path, registry_url: str
) -> None:
    use_at_once(registry_url, tmp_path)


def use_at_once(url: str, folder: Path) -> None:
    """Run the program in several processes and compare what they saw."""
    key_file = folder / "root.key"
    create_key_file(key_file)
    open_registry(url).close()
    command = [sys.executable, str(PROGRAM), url, str(key_file), str(THREADS), str(NAMESPACES)]
    engines = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
        for _ in range(PROCESSES)
    ]
    for engine in engines:
        assert engine.stdin is not None
        engine.stdin.write("go\n")
        engine.stdin.flush()
    outputs = [json.loads(engine.communicate(timeout=300)[0]) for engine in engines]
    seen = [output["keys"] for output in outputs]
    assert seen[0] == seen[1], "both have the same keys"
    assert {len(keys) for keys in seen[0].values()} == {1}, "all threads of one, too"
    assert len(seen[0]) == NAMESPACES
    assert len({keys[0] for keys in seen[0].values()}) == NAMESPACES, "no two share one"
    registry = open_registry(url)
    with registry.read() as connection:
        for table in (namespaces, data_keys):
            assert connection.scalar(select(func.count()).select_from(table)) == NAMESPACES
    registry.close()
