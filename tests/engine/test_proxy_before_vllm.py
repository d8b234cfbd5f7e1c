"""`kvcustody gateway` before a real vLLM that has the connector, an API key, and no middleware.

One run tells the story, each test asserts one promise about it.
"""

import json
import signal
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway_process import GatewayProcess, gateway_process
from kvcustody.audit import VerificationReport, read_events, verify_directory
from kvcustody.config import connector_config, load_settings
from kvcustody.demo.client import Answer, ask
from kvcustody.demo.model import build_model
from kvcustody.demo.server import VLLM_FLAGS, Server, free_port, running
from kvcustody.deployment import init_deployment
from kvcustody.wiring import audit_signing_key, open_keys

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BLOCK = 128  # tokens; what vLLM's CPU platform uses
UPSTREAM_KEY = "of-the-server-behind"
LONG_ANSWER = 3_500  # tokens; takes vLLM seconds


@dataclass
class Story:
    """What happened."""

    directory: Path
    keys: dict[str, str]
    answers: dict[str, Answer] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    generated: float = 0.0
    warnings: str = ""
    exit_status: int = 0
    report: VerificationReport | None = None

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("proxy")
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    model = build_model("tiny", document)
    config = directory / "custody.yaml"
    keys = {key.record.principal.tenant: key.key for key in init_deployment(config)}
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("bytes: 1GiB", "bytes: 64MiB"), encoding="utf-8")
    story = Story(directory, keys)
    port = free_port()
    command = [
        *(sys.executable, "-m", "kvcustody.vllm.command", "serve", str(model)),
        *("--kv-transfer-config", json.dumps(connector_config(config))),
        *("--enable-prompt-tokens-details", "--shutdown-timeout", "5"),
        *("--host", "127.0.0.1", "--port", str(port), *VLLM_FLAGS),
    ]
    environment = {"VLLM_API_KEY": UPSTREAM_KEY, "KVCUSTODY_UPSTREAM_API_KEY": UPSTREAM_KEY}
    errors = directory / "gateway.err"
    with (
        running(command, port, directory / "server.log", environment) as server,
        gateway_process(config, server.url, errors, environment) as gateway,
    ):
        _ask(story, server, gateway, document[:6_000])
        story.generated = _leave_amid_an_answer(story, server, gateway)
        story.exit_status = gateway.stop(signal.SIGTERM)
    story.warnings = errors.read_text(encoding="utf-8")
    settings = load_settings(config)
    story.events = list(read_events(settings.audit.path))
    with closing(open_keys(settings)) as opened:
        public_key = audit_signing_key(opened.keyring).public_key()
    story.report = verify_directory(settings.audit.path, public_key)
    return story


def _ask(story: Story, server: Server, gateway: GatewayProcess, prompt: str) -> None:
    for name in ("first", "repeated"):
        for tenant in ("acme", "globex"):
            story.answers[f"{tenant}, {name}"] = ask(gateway.url, story.keys[tenant], prompt)
    # Past the gateway, which a network must not allow.
    for name in ("first", "repeated"):
        story.answers[f"direct, {name}"] = ask(server.url, UPSTREAM_KEY, prompt)

    def post(name: str, url: str, path: str, key: str, **fields: Any) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(url + path, json=fields, headers=headers, timeout=120)
        story.statuses[name] = answer.status_code

    acme = story.keys["acme"]
    completion: dict[str, Any] = {"model": "demo", "prompt": "x", "max_tokens": 4}
    post("completion", gateway.url, "/v1/completions", acme, **completion)
    post("embeddings", gateway.url, "/v1/embeddings", acme, model="demo", input="x")
    post("admin route", gateway.url, "/reset_prefix_cache", acme)
    post("server's key", gateway.url, "/v1/completions", UPSTREAM_KEY, **completion)
    post("client's key, direct", server.url, "/v1/completions", acme, **completion)
    models = httpx.get(f"{gateway.url}/v1/models", headers={"x-api-key": acme}, timeout=60)
    story.statuses["models"] = models.status_code
    story.statuses["health"] = httpx.get(f"{gateway.url}/health", timeout=60).status_code


def _leave_amid_an_answer(story: Story, server: Server, gateway: GatewayProcess) -> float:
    """How many tokens vLLM generated for a client that left after the first."""
    before = _generated(server)
    body = {"model": "demo", "prompt": "x", "max_tokens": LONG_ANSWER, "stream": True}
    body |= {"ignore_eos": True}
    headers = {"Authorization": f"Bearer {story.keys['acme']}"}
    url = f"{gateway.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=120) as response:
        assert next(response.iter_lines()).startswith("data: ")
    still, last = 0, 0.0
    while still < 10:
        time.sleep(0.2)
        now = _generated(server) - before
        still, last = (still + 1, now) if now == last else (0, now)
    return last


def _generated(server: Server) -> float:
    (line,) = (
        line
        for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
        if line.startswith("vllm:generation_tokens_total{")
    )
    return float(line.rsplit(" ", 1)[1])


def full_blocks(answer: Answer) -> int:
    """Tokens in whole blocks before the last token, which is always computed."""
    return (answer.prompt_tokens - 1) // BLOCK * BLOCK


def test_a_tenant_reuses_its_own_cache_and_nobody_elses(story: Story) -> None:
    for tenant in ("acme", "globex"):
        first, repeated = story.answers[f"{tenant}, first"], story.answers[f"{tenant}, repeated"]
        assert first.cached_tokens == 0
        assert repeated.cached_tokens == full_blocks(repeated) > 4 * BLOCK
        assert first.text == repeated.text == story.answers["acme, first"].text


def test_whoever_gets_past_the_gateway_reuses_nothing_and_stores_nothing(story: Story) -> None:
    for name in ("direct, first", "direct, repeated"):
        assert story.answers[name].cached_tokens == 0
        assert story.answers[name].text == story.answers["acme, first"].text
    assert {event["tenant"] for event in story.named("blocks.stored")} == {"acme", "globex"}
    assert len(story.named("request.ungoverned")) == 2


def test_vllm_honours_the_gateways_request_id(story: Story) -> None:
    """Else no assertion would fit its request."""
    accepted = {
        event["request_id"]
        for event in story.named("request.accepted")
        if event["path"] in {"/v1/chat/completions", "/v1/completions"}
    }
    admitted = {event["request_id"] for event in story.named("request.admitted")}
    assert accepted == admitted
    assert len(admitted) == 6


def test_each_key_is_good_on_its_own_side_alone(story: Story) -> None:
    assert story.statuses == {
        "completion": 200,
        "embeddings": 404,  # vLLM's own answer: this model has none
        "admin route": 403,
        "server's key": 401,
        "client's key, direct": 401,
        "models": 200,
        "health": 200,
    }


def test_a_client_that_leaves_ends_its_generation(story: Story) -> None:
    assert 0 < story.generated < LONG_ANSWER


def test_a_well_configured_server_raises_no_doubts(story: Story) -> None:
    assert story.warnings == ""


def test_a_stopped_gateway_ends_its_trail(story: Story) -> None:
    assert story.exit_status == -signal.SIGTERM
    assert story.report is not None
    assert story.report.ok
    assert [note for note in story.report.notes if note.startswith("gateway")] == []


def test_no_key_is_in_what_the_processes_wrote(story: Story) -> None:
    secrets = [key.split("_", 2)[2] for key in story.keys.values()]
    for name in ("gateway.err", "server.log"):
        content = (story.directory / name).read_text(encoding="utf-8")
        assert not any(secret in content for secret in [*secrets, UPSTREAM_KEY])
