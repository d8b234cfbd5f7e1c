"""The connector: where vLLM hands over each request, and custody of its cache begins.

`on_new_request` is the only place that sees a whole request (its cache salt, its LoRA, its transfer
parameters), so admission stands here; all other calls go on to vLLM's own offloading connector.
"""

from collections.abc import Container
from copy import copy
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from kvcustody.admission import Refusal
from kvcustody.namespace import Adapter, AdapterFailure, AdapterRevisions
from kvcustody.vllm import options
from kvcustody.vllm.host_memory import keep_out_of_core_dumps
from kvcustody.vllm.layout import ENGINE_OPTION, describe_engine
from kvcustody.vllm.manager import GoverningManager

# What a request's free-form arguments may name peers in.
_TRANSFERS = frozenset({"kv_transfer_params", "ec_transfer_params"})


class CustodyConnector(OffloadingConnector):
    """vLLM's offloading connector under custody.

    Args:
        vllm_config: vLLM's configuration; its connector option `custody` names custody.yaml.
        role: scheduler or worker side.
        kv_cache_config: vLLM's KV cache layout.

    Raises:
        ConfigurationError: custody.yaml, or a file that it names, is wrong.
        UnavailableError: the registry can't be reached.

    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        completed = options.complete(vllm_config)
        if role is KVConnectorRole.SCHEDULER:
            completed[ENGINE_OPTION] = describe_engine(vllm_config, kv_cache_config)
            completed[options.MODELS_OPTION] = options.models_of(vllm_config)
            completed[options.NAME_OPTION] = options.served_name(vllm_config)
        adapters = vllm_config.lora_config
        self._adapts_media = adapters is not None and adapters.enable_tower_connector_lora
        keep_out_of_core_dumps()
        super().__init__(vllm_config, role, kv_cache_config)

    def on_new_request(self, request: Request) -> None:
        """Admit a request before vLLM's scheduler looks anything up for it."""
        manager = self.scheduler.manager
        assert isinstance(manager, GoverningManager)
        adapter = _adapter_revision(
            request, manager.custody.adapters, adapts_media=self._adapts_media
        )
        outcome = manager.custody.admission.admit(
            request.kv_transfer_params,
            engine_request_id=request.request_id,
            cache_salt=request.cache_salt,
            adapter=adapter,
            adapter_name=request.lora_request.lora_name if request.lora_request else None,
        )
        _salt_blocks(request, outcome.cache_salt, adapter if isinstance(adapter, str) else None)
        _forget_parameters(request, manager.custody.client_parameters)
        if isinstance(outcome, Refusal):
            if not outcome.isolated:
                request.skip_reading_prefix_cache = True
        else:
            manager.grant(request.request_id, outcome)
        super().on_new_request(request)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any
    ) -> KVConnectorPromMetrics:
        """Metrics, in the server's process, which builds no connector."""
        options.complete(vllm_config)
        return super().build_prom_metrics(vllm_config, *args, **kwargs)


def _adapter_revision(
    request: Request, revisions: AdapterRevisions, *, adapts_media: bool
) -> str | AdapterFailure | None:
    lora = request.lora_request
    if lora is None:
        return None
    # vLLM's encoder cache would give another content's pictures (v1/engine/input_processor.py).
    if adapts_media and request.mm_features:
        return AdapterFailure.MEDIA
    # Older versions of vLLM lack the last two; there is nothing then that they would say.
    adapter = Adapter(
        lora.lora_int_id,
        lora.lora_name,
        lora.lora_path,
        fused=getattr(lora, "is_3d_lora_weight", False),
    )
    return revisions.find(adapter, in_place=getattr(lora, "load_inplace", False))


def _salt_blocks(request: Request, salt: str, adapter: str | None) -> None:
    """Make the GPU prefix cache tell scopes, and an adapter's contents, apart.

    The salt is part of the first block's hash, and through it of all. vLLM hashes an adapter's
    name and path into each block, so after a reload with other weights under the same name it
    would read the old ones' blocks.
    """
    if adapter is not None:
        salt = f"{salt}.{adapter}"
    if request.cache_salt == salt:
        return
    request.cache_salt = salt
    request.block_hashes.clear()
    request.update_block_hashes()


def _forget_parameters(request: Request, allowed: Container[str]) -> None:
    """Drop the assertion, which has served: tiers, peers and crash dumps must not see it."""
    request.ec_transfer_params = None  # where an encoder cache would fetch pictures from
    parameters = request.kv_transfer_params
    kept = parameters if isinstance(parameters, dict) else {}
    request.kv_transfer_params = {
        name: value for name, value in kept.items() if name in allowed
    } or None
    if request.sampling_params is not None and request.sampling_params.extra_args:
        # A copy, because the requests of one prompt may share theirs.
        request.sampling_params = copy(request.sampling_params)
        request.sampling_params.extra_args = {
            name: value
            for name, value in request.sampling_params.extra_args.items()
            if name not in _TRANSFERS
        }
