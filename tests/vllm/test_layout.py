"""The layout digest: any single change gives another namespace, and no change gives the same."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import CacheConfig, KVTransferConfig, LoRAConfig, MultiModalConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from kvcustody.vllm import layout, options

pytestmark = pytest.mark.engine

LAYERS = [f"model.layers.{number}.self_attn.attn" for number in range(2)]
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "vocab_size": 64,
}


class Engine:
    """What one engine's connector sees."""

    def __init__(self, config: VllmConfig) -> None:
        self.config = config
        spec = FullAttentionSpec(block_size=128, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
        self.kv_cache = KVCacheConfig(
            num_blocks=8,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(list(LAYERS), spec)],
            kv_cache_layout="LBHNC",
        )

    def spec(self, **changes: Any) -> None:
        (group,) = self.kv_cache.kv_cache_groups
        group.kv_cache_spec = replace(group.kv_cache_spec, **changes)

    def offloading(self) -> OffloadingConfig:
        extra = self.config.kv_transfer_config.kv_connector_extra_config
        extra[layout.ENGINE_OPTION] = layout.describe_engine(self.config, self.kv_cache)
        return build_offloading_config(self.config, self.kv_cache)

    def digest(self) -> str:
        return layout.layout_digest(self.offloading())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def make_config(model: Path, **arguments: Any) -> VllmConfig:
    return EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=2048,
        enable_lora=True,
        kv_transfer_config=KVTransferConfig(kv_connector="CustodyConnector", kv_role="kv_both"),
        **arguments,
    ).create_engine_config()


@pytest.fixture(scope="module")
def config(model: Path) -> VllmConfig:
    return make_config(model)


@pytest.fixture
def engine(config: VllmConfig) -> Engine:
    return Engine(copy.deepcopy(config))


def use_group(kind: type, **settings: Any) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        (group,) = engine.kv_cache.kv_cache_groups
        group.kv_cache_spec = kind(
            block_size=128, num_kv_heads=2, head_size=32, dtype=torch.bfloat16, **settings
        )

    return change


def split_groups(engine: Engine) -> None:
    full = copy.copy(engine.kv_cache.kv_cache_groups[0])
    use_group(SlidingWindowSpec, sliding_window=256)(engine)
    (window,) = engine.kv_cache.kv_cache_groups
    engine.kv_cache.kv_cache_groups = [
        KVCacheGroupSpec(LAYERS[:1], window.kv_cache_spec),
        KVCacheGroupSpec(LAYERS[1:], full.kv_cache_spec),
    ]


def setting(part: str, name: str, value: Any) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        target = getattr(engine.config, part)
        assert hasattr(target, name), f"vLLM no longer has {part}.{name}"
        object.__setattr__(target, name, value)

    return change


def extra(name: str, value: Any) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        engine.config.kv_transfer_config.kv_connector_extra_config[name] = value

    return change


def hf(name: str, value: Any) -> Callable[[Engine], None]:
    return lambda engine: setattr(engine.config.model_config.hf_config, name, value)


class OtherBackend:
    """A layer whose backend is not the one that the selector would choose."""

    def get_attn_backend(self) -> type:
        return OtherBackend


def choose_other_backend(engine: Engine) -> None:
    context = engine.config.compilation_config.static_forward_context
    context.update(dict.fromkeys(LAYERS, OtherBackend()))


class Speculation:
    """A speculative configuration; what a test doesn't set is off."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update({"method": "eagle", "model": "draft"} | settings)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def speculate(**settings: Any) -> Callable[[Engine], None]:
    return lambda engine: setattr(engine.config, "speculative_config", Speculation(**settings))


CHANGES: dict[str, Callable[[Engine], None]] = {
    "kv dtype, configured": setting("cache_config", "cache_dtype", "fp8_e4m3"),
    "kv dtype, of the same size": setting("cache_config", "cache_dtype", "fp8_e5m2"),
    "kv dtype, resolved": lambda engine: engine.spec(dtype=torch.float16),
    "kv scales": lambda engine: engine.spec(kv_quant_mode=KVQuantMode.FP8_PER_TENSOR),
    "layers with another kv dtype": setting("cache_config", "kv_cache_dtype_skip_layers", ["0"]),
    "model dtype": setting("model_config", "dtype", torch.float16),
    "quantization": setting("model_config", "quantization", "fp8"),
    "block size": lambda engine: engine.spec(block_size=256),
    "chunk size": extra("blocks_per_chunk", 2),
    "canonical layout": extra("canonical_layout", True),
    "kv heads": lambda engine: engine.spec(num_kv_heads=4),
    "head size": lambda engine: engine.spec(head_size=64, head_size_v=64),
    "sliding window in a full group": lambda engine: engine.spec(sliding_window=256),
    "attention chunks in a full group": lambda engine: engine.spec(attention_chunk_size=256),
    "sliding window": use_group(SlidingWindowSpec, sliding_window=256),
    "another sliding window": use_group(SlidingWindowSpec, sliding_window=512),
    "chunked attention": use_group(ChunkedLocalAttentionSpec, attention_chunk_size=256),
    "hybrid groups": split_groups,
    "order of the layers": lambda engine: engine.kv_cache.kv_cache_groups[0].layer_names.reverse(),
    "kv layout": lambda engine: setattr(engine.kv_cache, "kv_cache_layout", "LBNHC"),
    "tensor parallelism": setting("parallel_config", "tensor_parallel_size", 2),
    "pipeline parallelism": setting("parallel_config", "pipeline_parallel_size", 2),
    "context parallelism": setting("parallel_config", "cp_kv_cache_interleave_size", 2),
    "attention backend, configured": setting(
        "attention_config", "backend", AttentionBackendEnum.FLASH_ATTN
    ),
    "attention backend, of one kind": setting(
        "attention_config", "backend_per_kind", {"sliding_window": AttentionBackendEnum.CPU_ATTN}
    ),
    "attention backend, chosen": choose_other_backend,
    "rope": hf("rope_theta", 5000.0),
    "hf overrides": hf("rms_norm_eps", 1e-3),
    "longest prompt": setting("model_config", "max_model_len", 1024),
    "hub revision": setting("model_config", "revision", "v2"),
    "implementation": setting("model_config", "model_impl", "transformers"),
    "dummy weights": setting("load_config", "load_format", "dummy"),
    "hash algorithm": setting("cache_config", "prefix_caching_hash_algo", "sha256_cbor"),
    "hash granularity": setting("cache_config", "hash_block_size", 64),
    "speculation": speculate(),
    "another draft": speculate(model="another"),
    "a draft's kv dtype": speculate(kv_cache_dtype="fp8"),
    "adapters' dtype": lambda engine: setattr(engine.config.lora_config, "lora_dtype", "float16"),
    "adapters' modules": lambda engine: setattr(
        engine.config.lora_config, "target_modules", ["q_proj"]
    ),
    "no adapters": lambda engine: setattr(engine.config, "lora_config", None),
    "media": setting("model_config", "multimodal_config", MultiModalConfig()),
    "media processing": setting(
        "model_config", "multimodal_config", MultiModalConfig(mm_processor_kwargs={"min": 1})
    ),
    "video pruning": setting(
        "model_config", "multimodal_config", MultiModalConfig(video_pruning_rate=0.5)
    ),
}


def test_every_single_change_gives_another_digest_and_no_two_the_same(config: VllmConfig) -> None:
    digests = {"no change": Engine(copy.deepcopy(config)).digest()}
    for name, change in CHANGES.items():
        engine = Engine(copy.deepcopy(config))
        change(engine)
        digests[name] = engine.digest()
    assert len(set(digests.values())) == len(CHANGES) + 1, _repeated(digests)


def _repeated(digests: dict[str, str]) -> list[str]:
    found = list(digests.values())
    return [name for name, digest in digests.items() if found.count(digest) > 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_KV_CACHE_LAYOUT", "HND"),
        ("VLLM_MLA_DISABLE", "1"),
        ("VLLM_BATCH_INVARIANT", "1"),
        ("VLLM_USE_V2_MODEL_RUNNER", "0"),
        ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN"),
        ("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1"),
    ],
)
def test_an_environment_variable_that_changes_the_layout_changes_the_digest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    before = engine.digest()
    monkeypatch.setenv(name, value)
    assert engine.digest() != before


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("VllmConfig", "use_v2_model_runner", True),
        ("vllm", "__version__", "0.32.1"),
        ("current_platform", "get_device_name", lambda: "another device"),
        ("torch.backends.cpu", "get_cpu_capability", lambda: "AVX2"),
        ("torch.cpu", "_is_amx_tile_supported", lambda: "yes"),
    ],
)
def test_another_vllm_or_device_changes_the_digest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, where: str, name: str, value: Any
) -> None:
    before = engine.digest()
    target: Any = layout
    for part in where.split("."):
        target = getattr(target, part)
    monkeypatch.setattr(target, name, value)
    assert engine.digest() != before


@pytest.mark.parametrize(
    "change",
    [
        setting("cache_config", "gpu_memory_utilization", 0.5),
        setting("cache_config", "num_gpu_blocks", 7),
        lambda engine: setattr(engine.config.lora_config, "max_loras", 4),
        lambda engine: setattr(engine.kv_cache, "num_blocks", 16),
        setting("parallel_config", "data_parallel_index", 1),
        setting("scheduler_config", "max_num_seqs", 3),
    ],
    ids=["memory", "blocks", "adapters", "blocks of the cache", "replica", "batch"],
)
def test_what_changes_no_bytes_changes_no_digest(
    engine: Engine, change: Callable[[Engine], None]
) -> None:
    before = engine.digest()
    change(engine)
    assert engine.digest() == before


def test_two_engines_with_the_same_settings_agree_also_in_another_process(
    config: VllmConfig, model: Path
) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]; from test_layout import *; "
        "print(Engine(make_config(Path(sys.argv[1]))).digest())"
    )
    finished = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program, str(model), str(Path(__file__).parent)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert finished.stdout.split()[-1] == Engine(copy.deepcopy(config)).digest()


def test_a_prediction_names_the_backend_that_the_layers_have(engine: Engine) -> None:
    """With tensor parallelism, the layers are in other processes."""
    (predicted,) = layout.describe_engine(engine.config, engine.kv_cache)["attention_backends"]
    assert predicted == ["vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"]


def test_a_draft_models_weights_are_part_of_the_revision(engine: Engine) -> None:
    class Draft:
        model, revision = "draft", "v1"

    assert [name for name, _ in options.models_of(engine.config)] == [
        engine.config.model_config.model
    ]
    engine.config.speculative_config = Speculation(draft_model_config=Draft)
    assert options.models_of(engine.config)[1] == ("draft", "v1")


def test_the_fields_that_we_leave_out_are_fields_of_vllm() -> None:
    """A renamed one would count, and cost a cold cache."""
    for kind, names in (
        (CacheConfig, layout._CAPACITY_OF_THE_CACHE),
        (LoRAConfig, layout._CAPACITY_FOR_ADAPTERS),
        (MultiModalConfig, layout._PLUMBING_OF_MEDIA),
    ):
        assert names <= kind.__dataclass_fields__.keys()
