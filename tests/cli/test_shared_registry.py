"""A deployment whose registry is on a PostgreSQL server, from custody.yaml to the exit code."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcustody.cli import app
from kvcustody.config import load_settings
from kvcustody.deployment import init_deployment
from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.sealing import NamespaceKeys, ServiceKey
from kvcustody.wiring import open_keyring
from postgresql_server import ESCAPED_PASSWORD, PostgreSQLServer

pytestmark = pytest.mark.service


@pytest.fixture
def url(postgresql: PostgreSQLServer) -> Iterator[str]:
    with postgresql.database() as name:
        yield postgresql.url(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "site" / "custody.yaml"
    init_deployment(path)
    return path


def place_registry(config: Path, url: str) -> str:
    """Configure a registry; how an error about it begins."""
    lines = config.read_text(encoding="utf-8").splitlines()
    lines.append(f"registry: {url}")
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"kvcustody: {config}:{len(lines)}: registry: "


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["kvcustody", *map(str, arguments)])
    capsys.readouterr()
    try:
        app.main()
        code: object = 0
    except SystemExit as stop:
        code = stop.code or 0
    assert isinstance(code, int)
    return code, *capsys.readouterr()


def test_a_key_minted_on_one_host_is_known_on_another(
    config: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_registry(config, url)
    mint = ("token", "mint", "--tenant", "acme", "--workload", "chat", "--json", "-c", config)
    code, out, _ = run(monkeypatch, capsys, *mint)
    assert code == 0
    code, listed, _ = run(monkeypatch, capsys, "token", "list", "--json", "-c", config)
    assert [key["id"] for key in json.loads(listed)] == [json.loads(out)["id"]]


def test_engines_that_start_at_once_share_one_key_of_each_kind(config: Path, url: str) -> None:
    place_registry(config, url)
    settings = load_settings(config)
    namespace = Namespace(Scope("local", "acme"), "revision-1", "ab" * 32)

    def start(_engine: int) -> tuple[bytes, bytes, bytes]:
        registry, keyring = open_keyring(settings)
        keys = keyring.namespace_keys(namespace)
        assert isinstance(keys, NamespaceKeys)
        service_key = keyring.service_key(ServiceKey.ASSERTION)
        registry.close()
        return service_key, keys.naming_key, keys.current.secret

    with ThreadPoolExecutor(6) as engines:
        assert len(set(engines.map(start, range(6)))) == 1


def test_what_is_wrong_with_it_is_one_line_that_names_the_place(
    config: Path,
    postgresql: PostgreSQLServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = postgresql.url("postgres").replace(ESCAPED_PASSWORD, "hunter2")
    place = place_registry(config, url)
    code, out, err = run(monkeypatch, capsys, "token", "list", "-c", config)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(place + "PostgreSQL database 'postgres' at 127.0.0.1")
    assert "hunter2" not in err


def test_a_server_that_is_down_is_exit_code_3(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place_registry(config, "postgresql://root:hunter2@127.0.0.1:1/registry")
    code, out, err = run(monkeypatch, capsys, "token", "list", "-c", config)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "can't be reached" in err
    assert "hunter2" not in err
