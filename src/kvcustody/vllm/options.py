"""From custody.yaml to the connector options of vLLM's tiered offloading, and what they must know.

vLLM reads these options in the engine's and in the server's process
(vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py), so both complete them.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.v1.kv_offload.config import OffloadingConfig

from kvcustody.config import Settings, load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.namespace import fingerprint_model
from kvcustody.vllm import plugin

CUSTODY_OPTION = "custody"
"""Connector option that names custody.yaml."""

_ENGINE_OPTION = "custody_engine"


def read_settings(options: Mapping[str, Any]) -> Settings:
    """The settings that connector options name, else those that `KVCUSTODY_CONFIG` names.

    Raises:
        ConfigurationError: custody.yaml can't be read or is wrong.

    """
    path = options.get(CUSTODY_OPTION)
    return load_settings(Path(path) if path else None)


def complete(config: VllmConfig) -> dict[str, Any]:
    """Fill in the connector options that follow from custody.yaml; doing it again changes nothing.

    Raises:
        ConfigurationError: custody.yaml is wrong, or an option contradicts it.

    """
    plugin.register()
    options: dict[str, Any] = config.kv_transfer_config.kv_connector_extra_config
    settings = read_settings(options)
    derived = {
        "spec_name": plugin.SPEC,
        "cpu_bytes_to_use": settings.host.bytes,
        "secondary_tiers": [{"type": plugin.TIER, "name": tier.name} for tier in settings.tiers],
    }
    for name, value in derived.items():
        if options.setdefault(name, value) != value:
            raise ConfigurationError(
                f"the connector option '{name}' contradicts custody.yaml; leave it out"
            )
    options[_ENGINE_OPTION] = _describe_engine(config)
    return options


def model_revision(settings: Settings, model: str, options: Mapping[str, Any]) -> str:
    """The revision of the model that the engine serves.

    Args:
        settings: custody.yaml, which may name the revision itself.
        model: the engine's model, a folder or a hub name.
        options: completed connector options.

    Raises:
        ConfigurationError: the model's files can't be found.

    """
    if settings.model.revision != "auto":
        return settings.model.revision
    folder = Path(model)
    if not folder.is_dir():
        folder = _hub_folder(model, options[_ENGINE_OPTION]["revision"])
    return fingerprint_model(folder, settings.state / "model-digests.json").revision


def layout_digest(config: OffloadingConfig) -> str:
    """Hex digest of all that decides what the bytes of a block mean, but for the model itself.

    An engine whose bytes would differ in any way gets another namespace instead of a wrong hit.
    """
    facts = {
        "groups": [
            [group.group_id, group.tokens_per_block, *group.layer_names] for group in config.groups
        ],
        "bytes_per_block": config.worker_kv_bytes_per_block,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "dtype": config.model.dtype,
        "parallel": [
            config.parallel.world_size,
            config.parallel.tp_size,
            config.parallel.pp_size,
            config.parallel.pcp_size,
            config.parallel.dcp_size,
        ],
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
        "kv_cache_layout": config.kv_cache_layout,
        "engine": config.extra_config[_ENGINE_OPTION],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _describe_engine(config: VllmConfig) -> dict[str, str]:
    """What of vLLM's configuration changes a block's bytes or its hash, as plain text."""
    model, cache = config.model_config, config.cache_config
    return {
        "vllm": ".".join(vllm.__version__.split(".")[:2]),
        "device": str(config.device_config.device_type),
        "attention_backend": str(getattr(config.attention_config, "backend", None)),
        "model_dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "revision": str(model.revision or "main"),
        # The effective configuration, with rope and other overrides applied.
        "hf_config": hashlib.sha256(model.hf_config.to_json_string().encode()).hexdigest(),
        "hash_algorithm": str(cache.prefix_caching_hash_algo),
    }


def _hub_folder(model: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only hub models need it

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception:  # noqa: BLE001 - the hub client raises many kinds; all mean "not here"
        raise ConfigurationError(
            f"the files of model '{model}' are not in the local hub cache, so 'auto' can't "
            "fingerprint them; set an explicit revision",
            field="model.revision",
        ) from None
