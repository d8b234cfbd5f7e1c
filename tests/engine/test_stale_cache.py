"""A stale cache: what vLLM's own tier hands out after a change, and that ours never does.

The faults are public: vLLM #49261 (weights at the same path), #30931 (an adapter reloaded under
its name), #56311 (rope), #55904 (KV layout; the CPU has only one, so that one isn't run here).
`stock` is vLLM's tiered offloading with its `fs` tier, plus a worker for the CPU (`stock_spec.py`).
Each engine is a new one over the same tier folder.

Measured with vLLM 0.32 on the CPU, prompt of 1,152 reusable tokens:

| change                                   | stock                     | ours                     |
|------------------------------------------|---------------------------|--------------------------|
| weights, same path, size and mtime       | 1,152 stale, wrong answer | 0 reused, right answer   |
| adapter reloaded in an engine, new id    | 1,152 stale, wrong answer | 0 reused, right answer   |
| adapter reloaded in place                | 1,152 stale, wrong answer | no custody, right answer |
| adapter changed over a restart           | 1,152 stale, wrong answer | 0 reused, right answer   |
| rope changed by `hf_overrides`           | 1,152 stale, wrong answer | 0 reused, right answer   |
| dtype, KV dtype, chunk, block, KV groups | 0: stock keys by these    | 0                        |
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvcustody.audit import read_events
from kvcustody.config import load_settings
from kvcustody.demo.model import build_model
from kvcustody.deployment import init_deployment

pytestmark = [pytest.mark.engine, pytest.mark.slow]

REUSABLE = 1152
PROGRAM = Path(__file__).with_name("serve_once.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"
WEIGHTS = "adapter_model.safetensors"
TARGETS = {"q_proj": 128, "k_proj": 64, "v_proj": 64, "o_proj": 128}
ADAPTERS = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 2}

Run = dict[str, Any]
Answer = dict[str, Any]

ROPE = {"rope_theta": 5000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
HYBRID = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 256}
# The CPU keeps fp8 only with these instructions. Both kinds have equal sizes.
FP8 = ["fp8_e4m3", "fp8_e5m2"] if torch.cpu._is_avx512_supported() else []
CHANGES: dict[str, Run] = {
    "dtype": {"options": {"dtype": "bfloat16"}},
    "chunk": {"extra": {"blocks_per_chunk": 2}},
    "block": {"options": {"block_size": 64}},
    "hybrid groups": {"options": {"hf_overrides": HYBRID}},
    "rope": {"options": {"hf_overrides": ROPE}},
    **{name: {"options": {"dtype": "bfloat16", "kv_cache_dtype": name}} for name in FP8},
}


@dataclass
class Story:
    """What each engine answered."""

    directory: Path
    prompt: str
    other_prompt: str
    answers: dict[str, list[Answer]] = field(default_factory=dict)

    @property
    def custody(self) -> Path:
        return self.directory / "custody" / "custody.yaml"

    def serve(self, prefix: str, **runs: Run) -> None:
        """Start an engine for each run, in one new process; runs are named after the offloading."""
        result = self.directory / "result.json"
        program = {"result": str(result), "runs": list(runs.values())}
        finished = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, str(PROGRAM)],
            input=json.dumps(program),
            check=False,
            text=True,
            capture_output=True,
            env=os.environ
            | {
                "PYTHONPATH": f"{SOURCE}{os.pathsep}{PROGRAM.parent}",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
            },
        )
        assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
        for name, answers in zip(runs, json.loads(result.read_text()), strict=True):
            self.answers[f"{prefix}, {name}"] = answers

    def run(self, kind: str, *steps: dict[str, Any], **settings: Any) -> Run:
        """A run with no offloading (`fresh`), vLLM's (`stock`) or ours (`ours`)."""
        offloading: dict[str, Any] | None = {
            "fresh": None,
            "stock": {"stock": str(self.directory / "stock")},
            "ours": {"custody": str(self.custody)},
        }[kind]
        if offloading is not None:
            offloading["extra"] = settings.get("extra", {})
        return {
            "model": str(self.directory / "model"),
            "offloading": offloading,
            "steps": steps,
            "options": settings.get("options", {}),
        }

    def ask(self, number: int | None = None, *, other: bool = False, in_place: bool = False) -> Run:
        """Ask with adapter `number`, or without one."""
        lora = None if number is None else ["style", number, str(self.directory / "lora"), in_place]
        return {"ask": self.other_prompt if other else self.prompt, "lora": lora}

    def load(self, adapter: str) -> Run:
        """Put an adapter's weights in the place of those served."""
        return {
            "copy": [
                str(self.directory / adapter / WEIGHTS),
                str(self.directory / "lora" / WEIGHTS),
            ]
        }


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("stale")
    document = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
    shutil.copytree(build_model("tiny", document), directory / "model")
    init_deployment(directory / "custody" / "custody.yaml")
    for seed, name in enumerate(("old", "new")):
        _make_adapter(directory / name, seed)
    shutil.copytree(directory / "old", directory / "lora")
    story = Story(directory, document[:5_000], document[5_000:10_000])
    _change_weights(story)
    _reload_adapters(story)
    _change_layouts(story)
    return story


def _change_weights(story: Story) -> None:
    runs = {kind: story.run(kind, story.ask()) for kind in ("fresh", "stock", "ours")}
    story.serve("old weights", stock=runs["stock"], ours=runs["ours"])
    _retrain(story.directory / "model" / "model.safetensors")
    story.serve("new weights", **runs)


def _reload_adapters(story: Story) -> None:
    old_and_new = (
        story.load("old"),
        *(story.ask(1), story.ask(1, other=True), story.ask(1)),
        story.load("new"),
        *(story.ask(2), story.ask(1), story.ask(2), story.ask(2, in_place=True)),
    )
    story.serve(
        "reload",
        **{kind: story.run(kind, *old_and_new, options=ADAPTERS) for kind in ("stock", "ours")},
    )
    both = (story.ask(1, other=True), story.ask(1))
    story.serve(
        "restart",
        **{kind: story.run(kind, *both, options=ADAPTERS) for kind in ("fresh", "stock", "ours")},
    )


def _change_layouts(story: Story) -> None:
    story.serve(
        "layout",
        **{name: story.run("ours", story.ask(), **change) for name, change in CHANGES.items()},
        unchanged=story.run("ours", story.ask()),
        **{"stock, rope": story.run("stock", story.ask(), **CHANGES["rope"])},
    )


def _retrain(file: Path) -> None:
    """Other weights under the same name, size and time of change."""
    before = file.stat()
    weights = load_file(file)
    for name, tensor in weights.items():
        if any(part in name for part in ("k_proj", "v_proj", "embed")):
            weights[name] = tensor.flip(0).contiguous()
    save_file(weights, file, metadata={"format": "pt"})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _make_adapter(folder: Path, seed: int) -> None:
    folder.mkdir()
    chance = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(2):
        for name, width in TARGETS.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(8, 128, generator=chance) * 0.2
            weights[f"{prefix}.lora_B.weight"] = torch.randn(width, 8, generator=chance) * 0.2
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none"}
    (folder / "adapter_config.json").write_text(
        json.dumps(config | {"target_modules": list(TARGETS)})
    )


def test_stock_serves_the_old_weights_cache_for_new_weights(story: Story) -> None:
    (fresh,), (stock,) = story.answers["new weights, fresh"], story.answers["new weights, stock"]
    assert fresh["cached"] == 0
    assert stock["cached"] == REUSABLE
    assert stock["tokens"] != fresh["tokens"]


def test_ours_recomputes_for_new_weights_and_reuses_for_unchanged_ones(story: Story) -> None:
    (fresh,), (ours,) = story.answers["new weights, fresh"], story.answers["new weights, ours"]
    assert ours == {"cached": 0, "tokens": fresh["tokens"]}
    (unchanged,) = story.answers["layout, unchanged"]
    assert unchanged == {"cached": REUSABLE, "tokens": fresh["tokens"]}


def test_stock_serves_a_reloaded_adapter_the_old_ones_cache(story: Story) -> None:
    _, right = story.answers["restart, fresh"]
    *_, reloaded, _, _, in_place = story.answers["reload, stock"]
    for answer in (reloaded, in_place, story.answers["restart, stock"][1]):
        assert answer["cached"] == REUSABLE
        assert answer["tokens"] != right["tokens"]


def test_ours_tells_a_reloaded_adapters_contents_apart_within_one_engine(story: Story) -> None:
    _, right = story.answers["restart, fresh"]
    old, _, repeated, reloaded, old_number, again, in_place = story.answers["reload, ours"]
    assert repeated == {"cached": REUSABLE, "tokens": old["tokens"]}
    assert reloaded == {"cached": 0, "tokens": right["tokens"]}
    # The old number's files are gone: what it stands for is what the engine still holds.
    assert old_number == {"cached": 0, "tokens": old["tokens"]}
    assert again == {"cached": REUSABLE, "tokens": right["tokens"]}
    assert in_place == {"cached": 0, "tokens": right["tokens"]}


def test_ours_tells_an_adapters_contents_apart_over_a_restart(story: Story) -> None:
    other_right, right = story.answers["restart, fresh"]
    other, known = story.answers["restart, ours"]
    # Only the old content has answered the other prompt before, and both have answered this one.
    assert other == {"cached": 0, "tokens": other_right["tokens"]}
    assert known == {"cached": REUSABLE, "tokens": right["tokens"]}
    assert story.answers["restart, stock"][0]["tokens"] != other_right["tokens"]


def test_the_trail_says_which_content_was_admitted_and_which_was_not(story: Story) -> None:
    events = list(read_events(load_settings(story.custody).audit.path))
    refused = {e["reason"] for e in events if e["event"] == "request.ungoverned"}
    assert refused == {"lora-changed", "lora-in-place"}
    admitted = {e["adapter"] for e in events if e["event"] == "request.admitted"}
    assert len(admitted) == 3, "none, the old content and the new one"


@pytest.mark.parametrize("change", CHANGES)
def test_ours_never_hits_across_a_change_of_the_layout(story: Story, change: str) -> None:
    (answer,) = story.answers[f"layout, {change}"]
    assert answer["cached"] == 0


def test_stock_serves_another_ropes_cache(story: Story) -> None:
    (stock,), (ours,) = story.answers["layout, stock, rope"], story.answers["layout, rope"]
    assert stock["cached"] == REUSABLE
    assert stock["tokens"] != ours["tokens"]
