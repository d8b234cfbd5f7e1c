"""A program that starts engines one after the other and asks them: JSON on stdin, JSON to a file.

Input: `{"result": path, "runs": [run, ...]}`. A run is `{"model", "offloading", "options",
"steps"}`: `offloading` is `null`, `{"stock": folder of the fs tier}` or `{"custody": path of
custody.yaml}`, with `"extra"` for more connector options; `options` are those of `LLM`. A step is
`{"ask": prompt, "lora": [name, number, path, in place]}`, `{"copy": [from, to]}` or `{"reset": 1}`,
which empties the GPU prefix cache. Output: for each run, cached tokens and output tokens of each
question.
"""

import gc
import json
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.lora.request import LoRARequest

from kvcustody.config import load_settings
from kvcustody.identity.assertion import AssertionSigner
from kvcustody.identity.principal import Principal
from kvcustody.sealing import ServiceKey
from kvcustody.wiring import build_gateway, open_keys

WHO = Principal("acme", "chat")
# Stores go on after an answer; a tier needs moments for these few blocks.
STORES_SECONDS = 0.5


def connector(offloading: dict[str, Any] | None) -> KVTransferConfig | None:
    if offloading is None:
        return None
    if "custody" in offloading:
        name, options = "CustodyConnector", {"custody": offloading["custody"]}
    else:
        name = "OffloadingConnector"
        options = {
            "spec_name": "StockSpec",
            "spec_module_path": "stock_spec",
            "cpu_bytes_to_use": 64 << 20,
            "secondary_tiers": [{"type": "fs", "root_dir": offloading["stock"]}],
        }
    extra = options | offloading.get("extra", {})
    return KVTransferConfig(kv_connector=name, kv_role="kv_both", kv_connector_extra_config=extra)


class Client:
    """Asks one engine, with what the gateway would add where the engine is under custody."""

    def __init__(self, llm: LLM, custody: str | None) -> None:
        self._llm = llm
        self._salt, self._signer = None, None
        if custody is not None:
            settings = load_settings(Path(custody))
            with closing(open_keys(settings)) as keys:
                key = keys.keyring.service_key(ServiceKey.ASSERTION)
            gateway = build_gateway(settings)
            self._salt = gateway.salts(WHO)
            gateway.close()
            self._signer = AssertionSigner(key, settings.deployment, 60.0)

    def ask(self, prompt: str, lora: list[Any] | None = None) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": prompt}
        parameters = SamplingParams(temperature=0, max_tokens=16)
        if self._signer is not None and self._salt is not None:
            number = str(self._llm.request_counter.counter)
            signed = self._signer.sign(WHO, request_id=number, salt=self._salt)
            parameters.extra_args = {"kv_transfer_params": {"kvcustody": signed}}
            asked["cache_salt"] = self._salt
        request = None
        if lora is not None:
            name, number, path, in_place = lora
            request = LoRARequest(name, number, path, load_inplace=in_place)
        (output,) = self._llm.generate([asked], parameters, use_tqdm=False, lora_request=request)
        tokens = list(output.outputs[0].token_ids)
        return {"cached": output.num_cached_tokens or 0, "tokens": tokens}


def serve(run: dict[str, Any]) -> list[dict[str, Any]]:
    offloading = run["offloading"]
    # Half precision rounds differently in each batch, unless a run wants it.
    options = {"dtype": "float32"} | run.get("options", {})
    llm = LLM(
        model=run["model"],
        enforce_eager=True,
        max_model_len=4096,
        kv_transfer_config=connector(offloading),
        **options,
    )
    client = Client(llm, (offloading or {}).get("custody"))
    answers = []
    for step in run["steps"]:
        if "ask" in step:
            answers.append(client.ask(step["ask"], step.get("lora")))
        elif "copy" in step:
            shutil.copy2(*step["copy"])
        else:
            assert llm.reset_prefix_cache()
    # Steps of the engine, in which it hands over what is to be stored and hears what was.
    for _ in range(2):
        client.ask("let the stores finish")
        time.sleep(STORES_SECONDS)
    llm.llm_engine.engine_core.shutdown()
    del llm, client
    gc.collect()
    cleanup_dist_env_and_memory()
    return answers


def main() -> None:
    program = json.load(sys.stdin)
    answers = [serve(run) for run in program["runs"]]
    Path(program["result"]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
