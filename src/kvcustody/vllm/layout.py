"""The layout digest: all that decides what the bytes of a block mean, but for the weights.

An engine whose bytes would differ in any way gets another namespace instead of a wrong hit. Where
vLLM keeps many settings together, all of them count but the few known to change nothing, so a
setting that a newer vLLM adds costs a cold cache and never a wrong answer.

The seed of vLLM's block hashes (PYTHONHASHSEED) is not part of it: with another seed, all blocks
have other names already.
"""

import dataclasses
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.selector import get_attn_backend
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
)
from vllm.v1.kv_offload.config import OffloadingConfig

ENGINE_OPTION = "custody_engine"
"""Connector option in which the engine's facts travel from the connector to the spec."""

_CAPACITY_OF_THE_CACHE = frozenset(
    {
        "gpu_memory_utilization",
        "kv_cache_max_concurrency",
        "kv_cache_memory_bytes",
        "kv_cache_size_tokens",
        "kv_offloading_backend",
        "kv_offloading_size",
        "num_cpu_blocks",
        "num_gpu_blocks",
        "num_gpu_blocks_override",
    }
)
_CAPACITY_FOR_ADAPTERS = frozenset({"max_cpu_loras", "max_loras", "specialize_active_lora"})
_PLUMBING_OF_MEDIA = frozenset(
    {
        "mm_encoder_fp8_scale_save_margin",
        "mm_encoder_fp8_scale_save_path",
        "mm_ipc_gpu_memory_gb",
        "mm_processor_cache_gb",
        "mm_processor_cache_type",
        "mm_shm_cache_max_object_size_mb",
        "mm_tensor_ipc",
        "skip_mm_profiling",
    }
)
_MODEL_SETTINGS = (
    "dtype",
    "quantization",
    "quantization_config",
    "revision",
    "code_revision",
    "model_impl",
    "model_class_overrides",
    "runner_type",
    "convert_type",
    "use_mla",
    "disable_sliding_window",
    # Some rotary embeddings (longrope) choose their factors by it.
    "max_model_len",
)
_DRAFT_SETTINGS = ("method", "model", "revision", "quantization", "kv_cache_dtype")
_RELEVANT_VARIABLE = re.compile(
    r"VLLM_.*(KV_CACHE|ATTN|ATTENTION|MLA|FP8|QUANT|ROPE|LAYOUT|V2_MODEL_RUNNER|BATCH_INVARIANT)"
)


def describe_engine(config: VllmConfig, kv_cache: KVCacheConfig) -> dict[str, Any]:
    """What an engine's blocks depend on, as plain data.

    Args:
        config: vLLM's configuration, with all choices made.
        kv_cache: vLLM's KV cache, as the scheduler sees it.

    """
    model, attention = config.model_config, config.attention_config
    facts = {
        "vllm": vllm.__version__,
        "device": _device(config),
        "environment": {
            name: value for name, value in os.environ.items() if _RELEVANT_VARIABLE.match(name)
        },
        "model": _select(model, _MODEL_SETTINGS),
        # The effective configuration, with rope and other overrides applied.
        "hf_config": _hf_config(model),
        # The two runners arrange the layers of one block differently.
        "model_runner": 2 if config.use_v2_model_runner else 1,
        "load_format": config.load_config.load_format,
        "cache": _all_but(config.cache_config, _CAPACITY_OF_THE_CACHE),
        "attention": attention,
        "attention_backends": _attention_backends(config, kv_cache),
        "groups": [_group(group) for group in kv_cache.kv_cache_groups],
        "layers": [tensor.layers for tensor in kv_cache.kv_cache_tensors],
        "kv_cache_layout": kv_cache.kv_cache_layout,
        "interleaved": _select(
            config.parallel_config, ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size")
        ),
        "speculation": _speculation(config.speculative_config),
        "adapters": _all_but(config.lora_config, _CAPACITY_FOR_ADAPTERS),
        "media": _all_but(model.multimodal_config, _PLUMBING_OF_MEDIA),
    }
    plain = _plain(facts)
    assert isinstance(plain, dict)
    return plain


def layout_digest(config: OffloadingConfig) -> str:
    """Hex digest of an engine's facts and of how it cuts its KV cache into blocks."""
    parallel = dataclasses.asdict(config.parallel)
    for name in ("rank", "data_parallel_index", "data_parallel_size", "data_parallel_rank_local"):
        del parallel[name]  # replicas share their blocks
    facts = {
        "groups": config.groups,
        "bytes_per_block": config.worker_kv_bytes_per_block,
        "cache": config.cache,
        "dtype": config.model.dtype,
        "parallel": parallel,
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
        "kv_cache_layout": config.kv_cache_layout,
        "engine": config.extra_config[ENGINE_OPTION],
    }
    return hashlib.sha256(json.dumps(_plain(facts), sort_keys=True).encode()).hexdigest()


def _device(config: VllmConfig) -> list[Any]:
    # The CPU's attention kernels pack keys as the processor's instructions like them
    # (vllm/v1/attention/backends/cpu_attn.py, _get_attn_isa).
    instructions = (
        [platform.machine(), torch.backends.cpu.get_cpu_capability(), _has_amx()]
        if current_platform.is_cpu()
        else []
    )
    return [
        config.device_config.device_type,
        current_platform.get_device_name(),
        str(current_platform.get_device_capability()),
        *instructions,
    ]


def _has_amx() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


def _hf_config(model: Any) -> str:
    return hashlib.sha256(model.hf_config.to_json_string().encode()).hexdigest()


def _group(group: KVCacheGroupSpec) -> dict[str, Any]:
    return {
        "kind": type(group.kv_cache_spec).__name__,
        "spec": group.kv_cache_spec,
        "layers": group.layer_names,
        "eagle": group.is_eagle_group,
        "role": group.role,
    }


def _attention_backends(config: VllmConfig, kv_cache: KVCacheConfig) -> list[list[str]]:
    """The backends that each group's layers have, whether or not anybody asked for them.

    The layers themselves know (vllm/model_executor/layers/attention/attention.py). Where they live
    in other processes, as with tensor parallelism, vLLM's selector is asked again.
    """
    layers = config.compilation_config.static_forward_context
    return [
        sorted(
            {_qualified(layers[name].get_attn_backend()) for name in group.layer_names}
            if all(name in layers for name in group.layer_names)
            else _predicted_backends(config, group)
        )
        for group in kv_cache.kv_cache_groups
    ]


def _predicted_backends(config: VllmConfig, group: KVCacheGroupSpec) -> Iterable[str]:
    spec = group.kv_cache_spec
    if not isinstance(spec, AttentionSpec):
        return ["not attention"]  # the group's spec says which kind of state it is
    try:
        with set_current_vllm_config(config):
            backend = get_attn_backend(
                spec.head_size,
                config.model_config.dtype,
                config.cache_config.cache_dtype,
                use_mla=isinstance(spec, MLAAttentionSpec),
                has_sliding_window=getattr(spec, "sliding_window", None) is not None,
            )
    except (ValueError, NotImplementedError):
        # A layer with needs of its own; what led to its backend is in the other facts.
        return ["chosen by the layer"]
    return [_qualified(backend)]


def _speculation(config: Any) -> dict[str, Any] | None:
    if config is None:
        return None
    draft = getattr(config, "draft_model_config", None)
    return {
        **_select(config, _DRAFT_SETTINGS),
        "hf_config": None if draft is None else _hf_config(draft),
    }


def _select(config: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(config, name, None) for name in names}


def _all_but(config: Any, irrelevant: frozenset[str]) -> dict[str, Any] | None:
    if config is None:
        return None
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in irrelevant
    }


def _plain(value: Any) -> Any:
    """A value as JSON knows it; never with an address, which would differ in each process."""
    match value:
        case Enum():  # first, because some are numbers, too
            return value.name
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case torch.dtype() | Fraction():
            return str(value)
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case set() | frozenset():
            return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                "": type(value).__name__,
                **{
                    field.name: _plain(getattr(value, field.name))
                    for field in dataclasses.fields(value)
                },
            }
        case _:
            return _qualified(value if isinstance(value, type) else type(value))


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
