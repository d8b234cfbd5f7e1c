"""Custody inside a real engine in this process, so that a test can go past the gateway."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

from kvcustody.audit import read_events
from kvcustody.config import load_settings
from kvcustody.demo.model import build_model
from kvcustody.deployment import init_deployment
from kvcustody.identity.assertion import AssertionSigner
from kvcustody.identity.principal import Principal
from kvcustody.sealing import ServiceKey
from kvcustody.stores.filesystem import SUFFIX
from kvcustody.wiring import build_gateway, open_keys

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BLOCK = 128
ACME, GLOBEX = Principal("acme", "chat"), Principal("globex", "chat")


@dataclass
class Engine:
    """An engine under custody, and what the gateway would know."""

    llm: LLM
    directory: Path
    document: str

    def __post_init__(self) -> None:
        self.settings = load_settings(self.directory / "custody.yaml")
        keys = open_keys(self.settings)
        self.assertion_key = keys.keyring.service_key(ServiceKey.ASSERTION)
        keys.close()
        gateway = build_gateway(self.settings)
        self.salts = {who: gateway.salts(who) for who in (ACME, GLOBEX)}
        gateway.close()

    def prompt(self, salt_text: str) -> str:
        """A prompt of its own for each test."""
        return f"{salt_text} {self.document[:5_000]}"

    def ask(
        self,
        prompt: str,
        who: Principal,
        *,
        assertion: str | None = None,
        salt: str | None = None,
        parameters: Any = None,
    ) -> tuple[str, int]:
        """The answer, and how many tokens were reused."""
        salt = salt or self.salts[who]
        number = self.llm.request_counter.counter
        if assertion is None:
            signer = AssertionSigner(self.assertion_key, self.settings.deployment, 60.0)
            assertion = signer.sign(who, request_id=str(number), salt=salt)
        if parameters is None:
            parameters = {"kvcustody": assertion}
        (output,) = self.llm.generate(
            [{"prompt": prompt, "cache_salt": salt}],
            SamplingParams(
                temperature=0, max_tokens=16, extra_args={"kv_transfer_params": parameters}
            ),
            use_tqdm=False,
        )
        return output.outputs[0].text, output.num_cached_tokens or 0

    def last_event(self) -> dict[str, Any]:
        events = [
            event
            for event in read_events(self.settings.audit.path)
            if event["event"] in {"request.admitted", "request.ungoverned"}
        ]
        return max(events, key=lambda event: str(event["time"]))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    directory = tmp_path_factory.mktemp("engine")
    config = directory / "custody.yaml"
    init_deployment(config)
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("bytes: 1GiB", "bytes: 8MiB"), encoding="utf-8")
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    patch.setenv("HF_HUB_OFFLINE", "1")
    llm = LLM(
        model=str(build_model("tiny", document)),
        enforce_eager=True,
        max_model_len=4096,
        dtype="float32",  # half precision rounds differently in each batch
        kv_transfer_config=KVTransferConfig(
            kv_connector="CustodyConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"custody": str(config)},
        ),
    )
    yield Engine(llm, directory, document)
    llm.llm_engine.engine_core.shutdown()
    patch.undo()
    assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") is None


def test_a_request_that_goes_past_the_gateway_reuses_nothing_not_even_its_own(
    engine: Engine,
) -> None:
    prompt = engine.prompt("past the gateway")
    text, reused = engine.ask(prompt, ACME)
    assert reused == 0
    assert engine.ask(prompt, ACME) == (text, reused_when_warm(engine, prompt))
    before = len(tier_files(engine))
    for parameters in (
        {},
        {"kvcustody": None},
        {"kvcustody": "a.b.c"},
        {"other": 1},
        {"kvcustody": 7},
    ):
        assert engine.ask(prompt, ACME, parameters=parameters) == (text, 0)
        assert engine.last_event()["event"] == "request.ungoverned"
        assert engine.last_event()["reason"] in {"missing-assertion", "forged"}
    assert len(tier_files(engine)) == before


def reused_when_warm(engine: Engine, prompt: str) -> int:
    tokens = len(engine.llm.get_tokenizer().encode(prompt))
    return (tokens - 1) // BLOCK * BLOCK


def tier_files(engine: Engine) -> list[Path]:
    return sorted(engine.settings.tiers[0].path.rglob(f"*{SUFFIX}"))


def test_a_stolen_salt_or_assertion_opens_no_ones_cache(engine: Engine) -> None:
    prompt = engine.prompt("stolen")
    text, _ = engine.ask(prompt, ACME)
    assert engine.ask(prompt, ACME)[1] == reused_when_warm(engine, prompt)
    signer = AssertionSigner(engine.assertion_key, engine.settings.deployment, 60.0)
    number = str(engine.llm.request_counter.counter)
    own = engine.salts[GLOBEX]
    attempts = [
        # globex with acme's salt, and an assertion of its own that was made for its own salt
        (signer.sign(GLOBEX, request_id=number, salt=own), engine.salts[ACME], "wrong-salt"),
        # acme's assertion for another request
        (signer.sign(ACME, request_id="9999999", salt=engine.salts[ACME]), None, "wrong-request"),
    ]
    for assertion, salt, reason in attempts:
        assert engine.ask(prompt, ACME, assertion=assertion, salt=salt) == (text, 0)
        assert engine.last_event()["reason"] == reason
    # Even the gateway's own signature is not believed where the salt isn't the principal's.
    number = str(engine.llm.request_counter.counter)
    signed = signer.sign(GLOBEX, request_id=number, salt=engine.salts[ACME])
    assert engine.ask(prompt, GLOBEX, assertion=signed, salt=engine.salts[ACME]) == (text, 0)
    assert engine.last_event()["reason"] == "wrong-salt"
    assert engine.ask(prompt, GLOBEX)[1] == 0
    assert engine.ask(prompt, ACME)[1] == reused_when_warm(engine, prompt)


def test_an_expired_assertion_or_an_unknown_tenant_is_served_without_custody(
    engine: Engine,
) -> None:
    prompt = engine.prompt("expired")
    text, _ = engine.ask(prompt, ACME)
    number = str(engine.llm.request_counter.counter)
    old = AssertionSigner(engine.assertion_key, engine.settings.deployment, 60.0, lambda: 1_000.0)
    expired = old.sign(ACME, request_id=number, salt=engine.salts[ACME])
    assert engine.ask(prompt, ACME, assertion=expired) == (text, 0)
    assert engine.last_event()["reason"] == "expired"
    unknown = Principal("umbrella", "chat")
    assert engine.ask(prompt, unknown, salt="some-salt") == (text, 0)
    assert engine.last_event()["reason"] == "unknown-tenant"


def test_what_left_the_gpu_cache_comes_back_from_host_memory_and_tier(engine: Engine) -> None:
    prompt = engine.prompt("left the cache")
    text, _ = engine.ask(prompt, ACME)
    engine.ask("let the stores finish", ACME)
    assert engine.llm.reset_prefix_cache()
    warm = reused_when_warm(engine, prompt)
    assert engine.ask(prompt, ACME) == (text, warm)
    assert engine.ask(prompt, GLOBEX) == (text, 0)
    # Host memory holds a few dozen blocks; after others have filled it, only the tier has ours.
    for number in range(12):
        engine.ask(engine.prompt(f"filler {number}"), GLOBEX)
    assert engine.llm.reset_prefix_cache()
    loaded = len(loads(engine))
    assert engine.ask(prompt, ACME) == (text, warm)
    assert len(loads(engine)) > loaded


def loads(engine: Engine) -> list[dict[str, Any]]:
    found = read_events(engine.settings.audit.path)
    return [event for event in found if event["event"] == "blocks.loaded" and event["blocks"]]


def test_a_tier_that_breaks_costs_a_recompute_and_nothing_else(engine: Engine) -> None:
    prompt = engine.prompt("broken tier")
    text, _ = engine.ask(prompt, ACME)
    engine.ask("let the stores finish", ACME)
    for number in range(12):
        engine.ask(engine.prompt(f"filler, again {number}"), GLOBEX)
    root = engine.settings.tiers[0].path
    hidden = root.with_name("hidden")
    root.rename(hidden)
    root.write_text("a file in the tier's place")
    try:
        assert engine.llm.reset_prefix_cache()
        answer, reused = engine.ask(prompt, ACME)
        assert answer == text
        assert reused < reused_when_warm(engine, prompt)
        assert engine.ask(engine.prompt("new one"), ACME)[0]
    finally:
        root.unlink()
        hidden.rename(root)


def put_policy(engine: Engine, text: str, awaited: str) -> dict[str, Any]:
    """Write a policy, and wait for the event that says what became of it."""

    def events() -> list[dict[str, Any]]:
        found = read_events(engine.settings.audit.path)
        return [event for event in found if event["event"] == awaited]

    before = len(events())
    engine.settings.authorization.policy_file.write_text(text, encoding="utf-8")
    deadline = time.monotonic() + 60
    while len(events()) == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return events()[-1]


def test_who_loses_load_recomputes_at_once_others_do_not_and_a_broken_policy_changes_nothing(
    engine: Engine,
) -> None:
    policy = engine.settings.authorization.policy_file.read_text(encoding="utf-8")
    prompt = engine.prompt("changed policy")
    text, _ = engine.ask(prompt, ACME)
    assert engine.ask(prompt, GLOBEX) == (text, 0)
    engine.ask("let the stores finish", ACME)
    warm = reused_when_warm(engine, prompt)

    def reused() -> list[int]:
        assert engine.llm.reset_prefix_cache()
        answers = [engine.ask(prompt, who) for who in (ACME, GLOBEX)]
        assert {answer for answer, _ in answers} == {text}
        return [count for _, count in answers]

    assert reused() == [warm, warm]
    try:
        loaded = put_policy(engine, f"{policy}\np, acme, local, *, load, deny\n", "policy.loaded")
        assert reused() == [0, warm]
        assert engine.last_event()["policy_version"] == loaded["policy_version"]
        broken = put_policy(engine, "p, acme, local, tape, load, allow\n", "policy.rejected")
        assert (broken["line"], broken["policy_version"]) == (1, loaded["policy_version"])
        assert reused() == [0, warm]
    finally:
        put_policy(engine, policy, "policy.loaded")
    assert reused() == [warm, warm]


def test_two_requests_of_two_tenants_in_one_batch_stay_apart(engine: Engine) -> None:
    prompt = engine.prompt("one batch")
    signer = AssertionSigner(engine.assertion_key, engine.settings.deployment, 60.0)

    def batch() -> list[tuple[str, int]]:
        first = engine.llm.request_counter.counter
        principals = [ACME, GLOBEX, ACME, GLOBEX]
        outputs = engine.llm.generate(
            [{"prompt": prompt, "cache_salt": engine.salts[who]} for who in principals],
            [
                SamplingParams(
                    temperature=0,
                    max_tokens=16,
                    extra_args={
                        "kv_transfer_params": {
                            "kvcustody": signer.sign(
                                who, request_id=str(first + number), salt=engine.salts[who]
                            )
                        }
                    },
                )
                for number, who in enumerate(principals)
            ],
            use_tqdm=False,
        )
        return [(output.outputs[0].text, output.num_cached_tokens or 0) for output in outputs]

    first, second = batch(), batch()
    assert len({text for text, _ in first + second}) == 1
    # Two of one tenant may be computed one after the other; one of them had nothing to reuse.
    acme, globex = ([reused for _, reused in first[start::2]] for start in (0, 1))
    assert min(acme) == min(globex) == 0
    assert {reused for _, reused in second} == {reused_when_warm(engine, prompt)}
