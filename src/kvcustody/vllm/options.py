"""From custody.yaml to the connector options of vLLM's tiered offloading, and what they must know.

vLLM reads these options in the engine's and in the server's process
(vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py), so both complete them.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger

from kvcustody.config import Settings, load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.namespace import fingerprint_model
from kvcustody.namespace.revision import Progress
from kvcustody.policy import ModelFacts
from kvcustody.vllm import plugin

CUSTODY_OPTION = "custody"
"""Connector option that names custody.yaml."""

MODELS_OPTION = "custody_models"
"""Connector option in which the models travel from the connector to the spec."""

NAME_OPTION = "custody_model_name"
"""Connector option in which the name that the model is served under travels there."""

logger = init_logger(__name__)


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
    return options


def model_facts(settings: Settings, options: Mapping[str, Any]) -> ModelFacts:
    """The model that the engine serves.

    Args:
        settings: custody.yaml, which may name the revision.
        options: connector options of an engine.

    Raises:
        ConfigurationError: the model's files can't be found.

    """
    return ModelFacts(options[NAME_OPTION], _model_revision(settings, options))


def served_name(config: VllmConfig) -> str:
    """The name that clients know the model by; the first, if it has several."""
    name: str | list[str] = config.model_config.served_model_name
    return name if isinstance(name, str) else name[0]


def _model_revision(settings: Settings, options: Mapping[str, Any]) -> str:
    """The revision of the model that the engine serves, and of its draft model if it has one."""
    if settings.model.revision != "auto":
        return settings.model.revision
    revisions = [
        fingerprint_model(
            _folder(model, revision), settings.state / "model-digests.json", _log_progress()
        ).revision
        for model, revision in options[MODELS_OPTION]
    ]
    if len(revisions) == 1:
        return revisions[0]
    return hashlib.sha256(" ".join(revisions).encode()).hexdigest()


def _log_progress() -> Progress:
    """A large model takes minutes at its first start; say so, each tenth of the way."""
    said = 0

    def log(done: int, total: int) -> None:
        nonlocal said
        tenths = 10 * done // total if total else 10
        if tenths > said:
            said = tenths
            logger.info("Fingerprinting the model: %d %% of %.1f GB", 10 * tenths, total / 1e9)

    return log


def models_of(config: VllmConfig) -> list[tuple[str, str]]:
    """Where the weights behind the KV cache are, and their hub revision: the model's and a draft's.

    The draft's own layers have blocks, too.
    """
    model, speculation = config.model_config, config.speculative_config
    draft = getattr(speculation, "draft_model_config", None)
    found = [model] if draft is None or draft.model == model.model else [model, draft]
    return [
        # Weights that vLLM streams from elsewhere leave only the configuration in the folder.
        (str(getattr(each, "model_weights", "") or each.model), str(each.revision or "main"))
        for each in found
    ]


def _folder(model: str, revision: str) -> Path:
    path = Path(model)
    return path if path.exists() else _hub_folder(model, revision)


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
