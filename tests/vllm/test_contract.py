"""Contract with the installed vLLM: what our adapter relies on is there, in the form we know."""

import inspect
from importlib.metadata import entry_points
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import OffloadingManager, OffloadingWorker, ReqContext
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.request import Request

from kvcustody.vllm import plugin
from kvcustody.vllm.connector import CustodyConnector
from kvcustody.vllm.host_worker import HostCopyWorker
from kvcustody.vllm.manager import GoverningManager
from kvcustody.vllm.spec import CustodySpec
from kvcustody.vllm.tier import CustodyTier

pytestmark = pytest.mark.engine


def methods(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_governing_manager_lets_no_call_past_it() -> None:
    """A method of vLLM's manager that we don't override would work on unkeyed names."""
    assert methods(OffloadingManager).keys() == methods(GoverningManager).keys() - {"grant"}


@pytest.mark.parametrize(
    ("base", "ours"),
    [
        (OffloadingManager, GoverningManager),
        (SecondaryTierManager, CustodyTier),
        (OffloadingWorker, HostCopyWorker),
        (TieringOffloadingSpec, CustodySpec),
        (OffloadingConnector, CustodyConnector),
    ],
)
def test_our_methods_take_what_vllm_passes(base: type, ours: type) -> None:
    shared = methods(base).keys() & methods(ours).keys()
    assert shared
    for name in shared:
        assert parameters(getattr(ours, name)) == parameters(getattr(base, name)), name


@pytest.mark.parametrize("ours", [GoverningManager, CustodyTier, HostCopyWorker, CustodySpec])
def test_nothing_abstract_is_left(ours: type) -> None:
    assert not getattr(ours, "__abstractmethods__", frozenset())


def test_the_short_names_resolve_and_registering_again_is_harmless() -> None:
    plugin.register()
    plugin.register()
    assert KVConnectorFactory.get_connector_class_by_name("CustodyConnector") is CustodyConnector
    assert plugin.SPEC in OffloadingSpecFactory._registry
    assert plugin.TIER in SecondaryTierFactory._registry


def test_the_entry_point_is_installed() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="kvcustody")
    assert found.load() is plugin.register


def test_a_request_has_what_admission_reads_and_sets() -> None:
    source = inspect.getsource(Request.__init__)
    for name in ("cache_salt", "lora_request", "kv_transfer_params", "skip_reading_prefix_cache"):
        assert f"self.{name}" in source, name


def test_a_request_context_keeps_our_state_and_block_positions() -> None:
    context = ReqContext(req_id="r", kv_transfer_params=None)
    custody = object()
    context.set_state(custody)
    assert context.get_state(object) is custody
    context.set_offload_key_position(b"key", 256)
    assert context.get_offload_key_position(b"key") == 256
