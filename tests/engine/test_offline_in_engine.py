"""Offline use with real engines: the example, and each of vLLM's calls in one process."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

from kvcustody.audit import read_events
from kvcustody.config import load_settings
from kvcustody.demo.model import build_model
from kvcustody.deployment import init_deployment
from kvcustody.offline import OfflineCustody

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BLOCK = 128
EXAMPLE = Path(__file__).parents[2] / "examples" / "offline.py"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def document() -> str:
    return (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tmp_path_factory.mktemp("offline") / "custody.yaml"
    init_deployment(config)
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("bytes: 1GiB", "bytes: 8MiB"), encoding="utf-8")
    return config


def test_the_example_reuses_within_a_tenant_never_across_and_never_without_custody(
    tmp_path: Path,
) -> None:
    config = tmp_path / "custody.yaml"
    init_deployment(config)
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("bytes: 1GiB", "bytes: 64MiB"), encoding="utf-8")
    finished = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(EXAMPLE), "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = re.findall(
        r"^(.+): (\d+) of (\d+) prompt tokens reused$", finished.stdout, re.MULTILINE
    )
    (tokens,) = {int(each) for _, _, each in found}
    warm = (tokens - 1) // BLOCK * BLOCK
    assert warm > 0
    assert [(who, int(reused)) for who, reused, _ in found] == [
        ("acme", 0),
        ("acme", warm),
        ("globex", 0),
        ("globex", warm),
        ("nobody", 0),
        ("nobody", 0),
        ("acme, in a batch", warm),
        ("globex, in a batch", warm),
    ]
    events = list(read_events(load_settings(config).audit.path))
    signed, admitted = (
        sorted((str(e["request_id"]), str(e["tenant"])) for e in events if e["event"] == name)
        for name in ("request.accepted", "request.admitted")
    )
    assert signed == admitted
    assert len(signed) == 6


@contextmanager
def engine(config: Path, **options: Any) -> Iterator[tuple[LLM, OfflineCustody]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        with OfflineCustody.from_config(config) as custody:
            llm = LLM(
                model=str(build_model("tiny", document())),
                enforce_eager=True,
                max_model_len=4096,
                dtype="float32",  # half precision rounds differently in each batch
                kv_transfer_config=custody.kv_transfer_config,
                **options,
            )
            yield llm, custody
            llm.llm_engine.engine_core.shutdown()
            cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def generating(config: Path) -> Iterator[tuple[LLM, OfflineCustody]]:
    with engine(config) as started:
        yield started


def test_a_chat_reuses_its_own_tenants_and_no_other(
    generating: tuple[LLM, OfflineCustody],
) -> None:
    llm, custody = generating

    def ask(tenant: str) -> int:
        who = [custody.on_behalf_of(tenant)]
        (output,) = llm.chat(
            [{"role": "user", "content": f"chat {document()[:3000]}"}],
            custody.sampling_params(llm, GREEDY, who),
            chat_template=TEMPLATE,
            use_tqdm=False,
        )
        return output.num_cached_tokens or 0

    assert [ask("acme"), ask("globex")] == [0, 0]
    assert ask("acme") == ask("globex") > 0


def test_all_answers_of_one_prompt_are_its_tenants(
    config: Path, generating: tuple[LLM, OfflineCustody]
) -> None:
    llm, custody = generating
    three = SamplingParams(n=3, max_tokens=8, seed=7)

    def ask(tenant: str) -> int:
        params = custody.sampling_params(llm, three, [custody.on_behalf_of(tenant)])
        (output,) = llm.generate([f"three {document()[:3000]}"], params, use_tqdm=False)
        assert len(output.outputs) == 3
        return output.num_cached_tokens or 0

    before = len(refusals(config))
    ask("acme")
    # Each answer is an engine request of its own; one that wasn't admitted would be in the trail.
    assert ask("acme") > 0
    assert len(refusals(config)) == before


def refusals(config: Path) -> list[dict[str, Any]]:
    found = read_events(load_settings(config).audit.path)
    return [event for event in found if event["event"] == "request.ungoverned"]


def test_prompts_that_wait_in_vllm_are_each_signed_when_they_start(
    config: Path, generating: tuple[LLM, OfflineCustody]
) -> None:
    llm, custody = generating
    tenants = ["acme", "globex"] * 6
    who = [custody.on_behalf_of(tenant) for tenant in tenants]
    before = len(refusals(config))
    batch = custody.sampling_params(llm, GREEDY, who)
    prompts = [f"queue {number} {document()[:2000]}" for number in range(len(tenants))]
    first = llm.enqueue(prompts[:6], batch[:6], use_tqdm=False)
    second = llm.enqueue(prompts[6:], batch[6:], use_tqdm=False)
    assert len({*first, *second}) == len(llm.wait_for_completion(use_tqdm=False)) == len(tenants)
    assert len(refusals(config)) == before
    again = llm.generate(prompts, batch, use_tqdm=False)
    assert min(output.num_cached_tokens or 0 for output in again) > 0


@pytest.fixture(scope="module")
def embedding(config: Path) -> Iterator[tuple[LLM, OfflineCustody]]:
    with engine(config, runner="pooling", convert="embed") as started:
        yield started


def test_an_embedding_reads_its_own_tenants_prefix_cache_and_no_other(
    config: Path, embedding: tuple[LLM, OfflineCustody]
) -> None:
    llm, custody = embedding
    prompt = f"embed {document()[:3000]}"

    def embed(*tenants: str) -> list[tuple[list[float], int]]:
        who = [custody.on_behalf_of(tenant) for tenant in tenants]
        prompts = custody.salted_prompts(llm, [prompt] * len(tenants), who)
        outputs = llm.embed(prompts, use_tqdm=False)
        return [(list(each.outputs.embedding), each.num_cached_tokens) for each in outputs]

    ((vector, cold),) = embed("acme")
    (other,) = embed("globex")
    assert cold == other[1] == 0
    warm = embed("acme", "globex")
    assert warm[0][1] == warm[1][1] > 0
    assert [each for each, _ in warm] == [pytest.approx(vector, abs=1e-4)] * 2
    for _ in range(2):
        (unsalted,) = llm.embed([prompt], use_tqdm=False)
        assert unsalted.num_cached_tokens == 0
    reasons = {str(event["reason"]) for event in refusals(config)}
    assert reasons == {"prefix-cache-only", "missing-assertion"}
