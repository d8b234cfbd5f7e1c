"""A deployment whose registry is on a PostgreSQL server, from custody.yaml to the exit code."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Run
from key_deployment import secrets_of
from kvcustody.config import load_settings
from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.sealing import ServiceKey
from kvcustody.wiring import open_keys
from postgresql_server import ESCAPED_PASSWORD, PostgreSQLServer

pytestmark = pytest.mark.service


@pytest.fixture
def url(postgresql: PostgreSQLServer) -> Iterator[str]:
    with postgresql.database() as name:
        yield postgresql.url(name)


def place_registry(config: Path, url: str) -> str:
    """Configure a registry; how an error about it begins."""
    lines = config.read_text(encoding="utf-8").splitlines()
    lines.append(f"registry: {url}")
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"kvcustody: {config}:{len(lines)}: registry: "


def test_a_key_minted_on_one_host_is_known_on_another(config: Path, url: str, run: Run) -> None:
    place_registry(config, url)
    mint = ("token", "mint", "--tenant", "acme", "--workload", "chat", "--json", "-c", config)
    minted = run(*mint).json()
    listed = run("token", "list", "--json", "-c", config).json()
    assert [key["id"] for key in listed] == [minted["id"]]


def test_engines_that_start_at_once_share_one_key_of_each_kind(config: Path, url: str) -> None:
    place_registry(config, url)
    settings = load_settings(config)
    namespace = Namespace(Scope("local", "acme"), "revision-1", "ab" * 32)

    def start(_engine: int) -> tuple[bytes, bytes, bytes]:
        with closing(open_keys(settings)) as opened:
            keys = opened.keyring.namespace_keys(namespace)
            naming_key, data_key = secrets_of(keys)
            return opened.keyring.service_key(ServiceKey.ASSERTION), naming_key, data_key

    with ThreadPoolExecutor(6) as engines:
        assert len(set(engines.map(start, range(6)))) == 1


def test_what_is_wrong_with_it_is_one_line_that_names_the_place(
    config: Path, postgresql: PostgreSQLServer, run: Run
) -> None:
    url = postgresql.url("postgres").replace(ESCAPED_PASSWORD, "hunter2")
    place = place_registry(config, url)
    result = run("token", "list", "-c", config)
    code, out, err = result.code, result.out, result.err
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(place + "PostgreSQL database 'postgres' at 127.0.0.1")
    assert "hunter2" not in err


def test_a_server_that_is_down_is_exit_code_3(config: Path, run: Run) -> None:
    place_registry(config, "postgresql://root:hunter2@127.0.0.1:1/registry")
    result = run("token", "list", "-c", config)
    code, out, err = result.code, result.out, result.err
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "can't be reached" in err
    assert "hunter2" not in err
