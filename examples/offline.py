"""Offline use of vLLM under custody: whose prompt reuses whose cache.

    kvcustody init site
    python examples/offline.py --config site/custody.yaml [--model FOLDER]

Without a model it builds a tiny one, whose answers make no sense.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from vllm import LLM, SamplingParams

from kvcustody.demo.model import build_model
from kvcustody.offline import OfflineCustody

_DOCUMENT = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
_PROMPT_CHARACTERS = 5_000


@dataclass(frozen=True)
class Row:
    """One request, and how much of its prompt came out of a cache."""

    who: str
    prompt_tokens: int
    reused_tokens: int


def main() -> None:
    """Ask one question for several tenants, and once for nobody."""
    parser = argparse.ArgumentParser(description="vLLM's LLM class under custody")
    parser.add_argument("--config", type=Path, required=True, help="custody.yaml")
    parser.add_argument("--model", help="a model's folder or hub name")
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    arguments = parser.parse_args()
    model = arguments.model or str(build_model("tiny", _DOCUMENT))
    # A small KV cache does for this; vLLM would take a share of all memory.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

    with OfflineCustody.from_config(arguments.config) as custody:
        llm = LLM(
            model,
            enforce_eager=True,
            max_model_len=4096,
            kv_transfer_config=custody.kv_transfer_config,
        )
        acme = custody.on_behalf_of("acme", "nightly-report")
        globex = custody.on_behalf_of("globex", "nightly-report")
        sampling = SamplingParams(temperature=0, max_tokens=16)
        prompt = f"{_DOCUMENT[:_PROMPT_CHARACTERS]} Sum that up."

        rows = []
        for name, who in (("acme", acme), ("acme", acme), ("globex", globex), ("globex", globex)):
            (output,) = llm.generate([prompt], custody.sampling_params(llm, sampling, [who]))
            rows.append(_row(name, output))
        # Without custody's parameters a prompt is served, and neither leaves nor finds anything.
        for _ in range(2):
            (output,) = llm.generate([prompt], sampling)
            rows.append(_row("nobody", output))
        # One batch for two tenants: one `on_behalf` for each prompt.
        for name, output in zip(
            ("acme", "globex"),
            llm.generate([prompt, prompt], custody.sampling_params(llm, sampling, [acme, globex])),
            strict=True,
        ):
            rows.append(_row(f"{name}, in a batch", output))

    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    for row in rows:
        print(f"{row.who:20} {row.reused_tokens:6} of {row.prompt_tokens} prompt tokens reused")


def _row(who: str, output: object) -> Row:
    tokens = getattr(output, "prompt_token_ids", None) or []
    return Row(who, len(tokens), getattr(output, "num_cached_tokens", None) or 0)


# vLLM starts its engine in a process that imports this file again.
if __name__ == "__main__":
    main()
