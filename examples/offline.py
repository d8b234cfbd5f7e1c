"""Offline use of vLLM under custody: whose prompt reuses whose cache.

    kvcustody init site
    python examples/offline.py --config site/custody.yaml [--model FOLDER]

Without a model it builds a tiny one, whose answers make no sense.
"""

import argparse
import os
from importlib.resources import files
from pathlib import Path

from vllm import LLM, RequestOutput, SamplingParams

from kvcustody.demo.model import build_model
from kvcustody.offline import OfflineCustody

_DOCUMENT = (files("kvcustody.demo") / "data" / "document.txt").read_text(encoding="utf-8")
_PROMPT_CHARACTERS = 5_000


def main() -> None:
    """Ask one question for several tenants, and once for nobody."""
    parser = argparse.ArgumentParser(description="vLLM's LLM class under custody")
    parser.add_argument("--config", type=Path, required=True, help="custody.yaml")
    parser.add_argument("--model", help="a model's folder or hub name")
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

        for name, who in (("acme", acme), ("acme", acme), ("globex", globex), ("globex", globex)):
            (output,) = llm.generate([prompt], custody.sampling_params(llm, sampling, [who]))
            _show(name, output)
        # Without custody's parameters a prompt is served, and neither leaves nor finds anything.
        for _ in range(2):
            (output,) = llm.generate([prompt], sampling)
            _show("nobody", output)
        # One batch for two tenants: one `on_behalf_of` for each prompt.
        params = custody.sampling_params(llm, sampling, [acme, globex])
        for name, output in zip(
            ("acme", "globex"), llm.generate([prompt, prompt], params), strict=True
        ):
            _show(f"{name}, in a batch", output)


def _show(who: str, output: RequestOutput) -> None:
    tokens, reused = len(output.prompt_token_ids), output.num_cached_tokens or 0
    print(f"{who}: {reused} of {tokens} prompt tokens reused", flush=True)


# vLLM starts its engine in a process that imports this file again.
if __name__ == "__main__":
    main()
