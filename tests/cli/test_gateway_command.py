"""`kvcustody gateway`: what it says, how it fails, and how it ends."""

import signal
import socket
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from answering_server import closed_port
from command_line import Run, one_line
from gateway_process import gateway_process
from kvcustody.audit import VerificationReport, read_events, verify_directory
from kvcustody.config import load_settings
from kvcustody.wiring import audit_signing_key, open_keys

pytestmark = pytest.mark.unit


def report(config: Path) -> VerificationReport:
    settings = load_settings(config)
    with closing(open_keys(settings)) as keys:
        public_key = audit_signing_key(keys.keyring).public_key()
    return verify_directory(settings.audit.path, public_key)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)]
)
def test_a_signal_ends_the_audit_stream_with_a_checkpoint(
    config: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with gateway_process(config, closed_port(), tmp_path / "errors") as gateway:
        assert httpx.get(f"{gateway.url}/health", timeout=60).status_code == 502
        assert httpx.get(f"{gateway.url}/v1/models", timeout=60).status_code == 401
        assert gateway.stop(number) == status
    events = list(read_events(load_settings(config).audit.path))
    assert [event["reason"] for event in events if event["event"] == "auth.failed"] == ["no-key"]
    verified = report(config)
    assert verified.ok
    assert verified.notes == ()


def test_a_killed_gateway_shows_in_the_trail(config: Path, tmp_path: Path) -> None:
    """So that the test above can tell one end from the other."""
    with gateway_process(config, closed_port(), tmp_path / "errors") as gateway:
        httpx.get(f"{gateway.url}/v1/models", timeout=60)
        gateway.stop(signal.SIGKILL)
    assert report(config).notes != ()


def test_it_says_where_it_listens_and_what_it_doubts(config: Path, tmp_path: Path) -> None:
    upstream = closed_port()
    with gateway_process(config, upstream, tmp_path / "errors") as gateway:
        assert gateway.ready["host"] == "127.0.0.1"
        assert gateway.ready["port"] != 0
        assert gateway.ready["upstream"] == upstream
    assert "not reachable yet" in (tmp_path / "errors").read_text(encoding="utf-8")


def test_a_port_in_use_is_a_configuration_error(run: Run, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("gateway", "-c", config, "--upstream", "http://127.0.0.1:9", "--port", port)
    assert "--host, --port: can't listen there: address already in use" in one_line(result)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--upstream", "vllm"], "--upstream: give it as http://HOST:PORT"),
        (["--upstream", "http://h", "--upstream-ca", "x"], "--upstream-ca: the upstream's URL"),
        (["--upstream", "https://h", "--upstream-ca", "absent"], "no certificates"),
        (["--upstream", "http://h", "--host", "no.such.host.invalid"], "--host, --port: can't"),
    ],
)
def test_wrong_options_are_one_line(run: Run, config: Path, options: list[str], words: str) -> None:
    assert words in one_line(run("gateway", "-c", config, *options))


def test_a_wrong_configuration_is_one_line(run: Run, config: Path) -> None:
    config.write_text("version: 2\n")
    assert "custody.yaml" in one_line(run("gateway", "-c", config, "--upstream", "http://h"))


def test_a_key_that_no_header_carries_is_one_line_without_it(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCUSTODY_UPSTREAM_API_KEY", "secret\nkey")
    line = one_line(run("gateway", "-c", config, "--upstream", "http://h"))
    assert "KVCUSTODY_UPSTREAM_API_KEY" in line
    assert "secret" not in line


@pytest.mark.parametrize("package", ["httpx", "uvicorn", "websockets"])
def test_without_the_extra_it_says_what_to_install(
    run: Run, config: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in list(sys.modules):
        if name.startswith(("kvcustody.gateway.proxy", "kvcustody.gateway.upstream")):
            monkeypatch.delitem(sys.modules, name)
        if name == package or name.startswith(f"{package}."):
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    line = one_line(run("gateway", "-c", config, "--upstream", "http://h"))
    assert f"the gateway needs {package}" in line
    assert "kvcustody[gateway]" in line
