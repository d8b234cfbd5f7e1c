"""The main job end to end: a real server, real requests, a restart, a hostile neighbour.

Two server runs tell one story, which is recorded once; each test asserts one promise about it.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from kvcustody.audit import VerificationReport, read_events, verify_directory
from kvcustody.config import Settings, load_settings
from kvcustody.demo.client import Answer, ask
from kvcustody.demo.model import build_model
from kvcustody.demo.search import SearchResult, read_host_memory, search_plaintext
from kvcustody.demo.server import Server, processes_of, running_server, shared_memory_regions
from kvcustody.deployment import init_deployment
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.stores.filesystem import SUFFIX
from kvcustody.wiring import audit_signing_key, open_keys

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BLOCK = 128  # tokens; what vLLM's CPU platform uses
QUESTION = "\n\nIn one short sentence: what is the document above?"


@dataclass
class Story:
    """What happened."""

    directory: Path
    settings: Settings
    keys: dict[str, str]
    answers: dict[str, Answer] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, list[Path]] = field(default_factory=dict)
    modes: set[tuple[str, str]] = field(default_factory=set)
    regions: dict[str, frozenset[Path]] = field(default_factory=dict)
    search: SearchResult | None = None
    changed_block: Path = Path()
    metrics: str = ""

    def tier_files(self) -> list[Path]:
        return sorted(self.settings.tiers[0].path.rglob(f"*{SUFFIX}"))

    def events(self, name: str, **fields: str) -> list[dict[str, Any]]:
        return [
            event
            for event in read_events(self.settings.audit.path)
            if event["event"] == name
            and all(event[field] == value for field, value in fields.items())
        ]

    def verify(self, directory: Path | None = None) -> VerificationReport:
        with closing(open_keys(self.settings)) as keys:
            key = audit_signing_key(keys.keyring).public_key()
        return verify_directory(directory or self.settings.audit.path, key)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("main-job")
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    model = build_model("tiny", document)
    story = _deployment(directory)
    # Two prompts with no common beginning, so that each has blocks of its own.
    first, second = document[:6_000] + QUESTION, document[6_000:] + QUESTION
    log = directory / "server.log"
    config = directory / "custody.yaml"
    story.regions["before"] = shared_memory_regions()

    with running_server(model, config, log) as server:
        _first_run(story, server, first, second)
        _kill(server)
    story.regions["after a kill"] = shared_memory_regions()

    story.changed_block = story.blocks["second"][1]
    _flip_a_byte(story.changed_block)

    with running_server(model, config, log) as server:
        story.answers["warm"] = ask(server.url, story.keys["acme"], first)
        story.answers["globex, not restarted"] = ask(server.url, story.keys["globex"], first)
        story.answers["damaged"] = ask(server.url, story.keys["acme"], second)
        story.metrics = httpx.get(f"{server.url}/metrics", timeout=30).text
        story.search = _search(story, server, document, model.name)
    story.regions["after a stop"] = shared_memory_regions()
    return story


def _deployment(directory: Path) -> Story:
    config = directory / "custody.yaml"
    keys = {key.record.principal.tenant: key.key for key in init_deployment(config)}
    text = config.read_text(encoding="utf-8")
    text = text.replace("tenants:\n", "tenants:\n  initech: {scope: tenant}\n")
    config.write_text(text.replace("bytes: 1GiB", "bytes: 64MiB"), encoding="utf-8")
    settings = load_settings(config)
    with closing(open_keys(settings)) as opened:
        initech = KeyStore(opened.registry).mint(Principal("initech", "batch"), expires=None)
    keys["initech"] = initech.key
    return Story(directory, settings, keys)


def _first_run(story: Story, server: Server, first: str, second: str) -> None:
    def remember(name: str, tenant: str, prompt: str) -> None:
        before = set(story.tier_files())
        story.answers[name] = ask(server.url, story.keys[tenant], prompt)
        # What a request stores is written while later requests run; one of them is enough.
        ask(server.url, story.keys["initech"], "hello")
        story.blocks[name] = sorted(set(story.tier_files()) - before)

    remember("cold", "acme", first)
    remember("second", "acme", second)
    remember("globex, first", "globex", first)
    remember("globex, repeated", "globex", first)
    remember("denied", "initech", first)
    remember("denied, repeated", "initech", first)
    _try_hostile_requests(story, server, first)
    for path in story.settings.tiers[0].path.rglob("*"):
        kind = "folder" if path.is_dir() else "file"
        story.modes.add((kind, f"{path.stat().st_mode & 0o777:04o}"))


def _try_hostile_requests(story: Story, server: Server, prompt: str) -> None:
    def post(name: str, path: str, headers: dict[str, str], **fields: Any) -> httpx.Response:
        answer = httpx.post(server.url + path, json=fields, headers=headers, timeout=120)
        story.statuses[name] = answer.status_code
        return answer

    globex = {"Authorization": f"Bearer {story.keys['globex']}"}
    chat = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 24,
        "temperature": 0,
    }
    post("no key", "/v1/chat/completions", {}, **chat)
    post("wrong key", "/v1/chat/completions", {"Authorization": "Bearer x"}, **chat)
    post("admin route", "/reset_prefix_cache", globex)
    post("response", "/v1/responses", globex, model="demo", input="x", max_output_tokens=4)
    post("completion", "/v1/completions", globex, model="demo", prompt="x", max_tokens=4)
    post(
        "message",
        "/v1/messages",
        {"x-api-key": story.keys["globex"]},
        model="demo",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=4,
    )
    forged = post(
        "forged parameters",
        "/v1/chat/completions",
        {"Authorization": f"Bearer {story.keys['initech']}"},
        **chat,
        cache_salt="x",
        kv_transfer_params={"kvcustody": "x.y.z", "max_load_tokens": 1},
        vllm_xargs={"kv_transfer_params": "x"},
    ).json()
    story.answers["forged parameters"] = Answer(
        forged["choices"][0]["message"]["content"],
        0.0,
        forged["usage"]["prompt_tokens"],
        (forged["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
    )


def _kill(server: Server) -> None:
    """SIGKILL to the server and all its children, at once: nobody cleans up."""
    processes = processes_of(server)
    os.killpg(server.process.pid, signal.SIGKILL)
    for process in processes:
        if process.is_running():
            process.kill()
    psutil.wait_procs(processes, timeout=20)
    server.process.wait()


def _flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _search(story: Story, server: Server, document: str, model_name: str) -> SearchResult:
    words = [*story.keys, "default", "batch", model_name, " ".join(document.split()[:4])]
    memory = read_host_memory(process.pid for process in processes_of(server))
    assert any(memory), "the host tier's memory was found"
    # The search itself must be able to find: what it is given, it finds.
    decoy = story.directory / "decoy"
    decoy.mkdir()
    start = next(place for place in range(0, len(memory), 4096) if any(memory[place : place + 64]))
    (decoy / "acme").write_bytes(b"x" + memory[start : start + 64])
    assert len(search_plaintext(decoy, memory, words).findings) == 2
    return search_plaintext(story.settings.tiers[0].path, memory, words)


def full_blocks(answer: Answer) -> int:
    """Tokens in whole blocks before the last token, which is always computed."""
    return (answer.prompt_tokens - 1) // BLOCK * BLOCK


def test_a_cold_request_reuses_nothing_and_its_blocks_reach_the_tier(story: Story) -> None:
    cold = story.answers["cold"]
    assert cold.cached_tokens == 0
    assert len(story.blocks["cold"]) == full_blocks(cold) // BLOCK > 4


def test_after_a_kill_and_restart_the_kv_cache_comes_from_the_sealed_tier(story: Story) -> None:
    warm = story.answers["warm"]
    assert warm.cached_tokens == full_blocks(warm)
    assert warm.text == story.answers["cold"].text
    loaded = story.events("blocks.loaded", tenant="acme", outcome="ok", tier="disk")
    assert sum(event["blocks"] for event in loaded) >= full_blocks(warm) // BLOCK


def test_another_tenants_first_request_reuses_nothing_and_its_second_does(story: Story) -> None:
    first, repeated = story.answers["globex, first"], story.answers["globex, repeated"]
    assert first.cached_tokens == 0
    assert repeated.cached_tokens == full_blocks(repeated)
    assert first.text == repeated.text == story.answers["cold"].text


def test_two_tenants_with_one_prompt_share_no_block_name(story: Story) -> None:
    acme = {path.name for path in story.blocks["cold"]}
    globex = {path.name for path in story.blocks["globex, first"]}
    assert len(acme) == len(globex) > 0
    assert not acme & globex


def test_another_tenant_loads_its_own_blocks_after_the_restart(story: Story) -> None:
    answer = story.answers["globex, not restarted"]
    assert answer.cached_tokens == full_blocks(answer)
    assert answer.text == story.answers["cold"].text


def test_a_denied_tenant_is_served_without_offloading_and_the_audit_says_why(
    story: Story,
) -> None:
    for name in ("denied", "denied, repeated"):
        assert story.answers[name].text == story.answers["cold"].text
        assert story.blocks[name] == []
    assert story.answers["denied"].cached_tokens == 0
    reasons = {event["reason"] for event in story.events("request.ungoverned", tenant="initech")}
    assert reasons == {"policy-denied"}
    assert not story.events("blocks.stored", tenant="initech")


def test_a_changed_byte_is_recomputed_and_the_audit_names_block_and_check(story: Story) -> None:
    damaged, second = story.answers["damaged"], story.answers["second"]
    assert damaged.text == second.text
    assert damaged.cached_tokens < full_blocks(damaged)
    (rejected,) = story.events("block.rejected")
    assert f"{rejected['block']}{SUFFIX}" == story.changed_block.name
    assert rejected["check"] == "tag"
    assert rejected["tenant"] == "acme"


def test_the_servers_metrics_say_what_was_loaded_and_what_was_rejected_and_why(
    story: Story,
) -> None:
    def value(name: str, *labels: str) -> float:
        (line,) = (
            line
            for line in story.metrics.splitlines()
            if line.startswith(f"kvcustody:{name}_total{{") and all(each in line for each in labels)
        )
        return float(line.rsplit(" ", 1)[1])

    assert value("blocks_rejected", 'tier="disk"', 'reason="tag"') == 1
    assert value("blocks_loaded", 'tier="disk"') > 1
    assert value("bytes_loaded", 'tier="disk"') > value("blocks_loaded", 'tier="disk"')


def test_no_plaintext_is_on_the_tier(story: Story) -> None:
    assert story.search is not None
    assert story.search.findings == ()
    assert story.search.files > 10


def test_files_are_the_owners_only(story: Story) -> None:
    assert story.modes == {("file", "0600"), ("folder", "0700")}


def test_no_shared_memory_stays_after_a_kill_or_a_stop(story: Story) -> None:
    """After a kill, vLLM's message queues stay; they hold no KV data, and nobody removes them."""
    left = story.regions["after a kill"] - story.regions["before"]
    assert [path.name for path in left if path.name.startswith("vllm_offload_")] == []
    assert story.regions["after a stop"] <= story.regions["after a kill"]
    for path in left:
        path.unlink(missing_ok=True)


def test_hostile_requests_are_refused_and_honest_ones_served(story: Story) -> None:
    assert story.statuses == {
        "no key": 401,
        "wrong key": 401,
        "admin route": 403,
        "response": 200,
        "completion": 200,
        "message": 200,
        "forged parameters": 200,
    }


def test_every_governed_endpoint_is_admitted_by_the_engine(story: Story) -> None:
    accepted = {event["request_id"]: event["path"] for event in story.events("request.accepted")}
    admitted = {event["request_id"] for event in story.events("request.admitted")}
    refused = {event["request_id"] for event in story.events("request.ungoverned")}
    assert accepted.keys() == admitted | refused
    assert {accepted[request_id] for request_id in admitted} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    }


def test_forged_parameters_give_no_ones_cache(story: Story) -> None:
    forged = story.answers["forged parameters"]
    # Its own tenant's GPU prefix cache is all that a denied tenant may read.
    assert forged.cached_tokens == story.answers["denied, repeated"].cached_tokens
    assert forged.text == story.answers["cold"].text
    names = [event["names"] for event in story.events("parameters.removed", tenant="initech")]
    assert names == [["kv_transfer_params", "cache_salt", "vllm_xargs.kv_transfer_params"]]


def test_a_stopped_engine_ends_its_trail_and_a_killed_one_does_not(story: Story) -> None:
    assert len(story.events("engine.started")) == 2
    assert len(story.events("engine.stopped")) == 1
    unfinished = {note.split(":")[0] for note in story.verify().notes}
    (stopped,) = story.events("engine.stopped")
    assert f"{stopped['stream']}.jsonl" not in unfinished


def test_the_trail_verifies_and_a_changed_record_is_found(story: Story, tmp_path: Path) -> None:
    assert story.verify().ok
    for segment in story.settings.audit.path.glob("*.jsonl"):
        (tmp_path / segment.name).write_bytes(segment.read_bytes())
    with _changed_record(tmp_path) as (file, line):
        findings = story.verify(tmp_path).findings
        assert [(found.kind, found.file, found.line) for found in findings] == [
            ("edited", file, line)
        ]
    assert story.verify(tmp_path).ok


@contextmanager
def _changed_record(directory: Path) -> Iterator[tuple[Path, int]]:
    for file in directory.glob("engine-*.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            if json.loads(line)["event"] == "request.admitted":
                changed = line.replace('"acme"', '"globex"')
                file.write_text("".join([*lines[: number - 1], changed, *lines[number:]]))
                yield file, number
                file.write_text("".join(lines))
                return
    pytest.fail("no admitted request in the trail")


def test_neither_trail_nor_log_holds_a_key_or_the_document(story: Story) -> None:
    secrets = [key.split("_", 2)[2].encode() for key in story.keys.values()]
    written = [*story.settings.audit.path.iterdir(), story.directory / "server.log"]
    for path in written:
        content = path.read_bytes()
        for secret in [*secrets, b"In one short sentence", b"eyJ"]:
            assert secret not in content, path.name
