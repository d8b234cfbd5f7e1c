"""What our tiers count, as vLLM's metrics take it."""

from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadPromMetrics

from kvcustody.sealing import OpenFailure
from kvcustody.tiers import Count
from kvcustody.tiers.counters import TierCounters
from kvcustody.vllm import plugin
from kvcustody.vllm.tier import CustodyTier

pytestmark = pytest.mark.engine


@pytest.fixture
def tier() -> CustodyTier:
    tier = CustodyTier.__new__(CustodyTier)
    governed: Any = SimpleNamespace(name="disk", counters=TierCounters())
    tier._tier = governed
    return tier


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


def prometheus(registry: prometheus_client.CollectorRegistry) -> Any:
    """The metrics of a server of ours, in a registry of their own."""
    plugin.register()
    config = VllmConfig(
        kv_transfer_config=KVTransferConfig(
            kv_connector=plugin.CONNECTOR,
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": plugin.SPEC,
                "secondary_tiers": [{"type": plugin.TIER, "name": "disk"}],
            },
        )
    )

    def metric(kind: type) -> Any:
        return lambda **arguments: kind(**arguments, registry=registry)

    kinds = (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram)
    return OffloadPromMetrics(
        config, {kind: metric(kind) for kind in kinds}, ["engine"], {0: ["0"]}
    )


def test_every_count_with_every_label_reaches_prometheus(
    tier: CustodyTier, registry: prometheus_client.CollectorRegistry
) -> None:
    metrics = prometheus(registry)
    for count in Count:
        labels = {Count.DROPPED: ("store", "load"), Count.REJECTED: tuple(OpenFailure)}
        for label in labels.get(count, ("",)):
            tier._tier.counters.add(count, 2, label)
    metrics.observe(tier.get_stats().data)
    assert tier.get_stats().is_empty()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"engine": "0", "tier": "disk", **labels})

    for name in ("blocks_stored", "blocks_loaded", "bytes_stored", "bytes_loaded"):
        assert value(f"kvcustody:{name}_total") == 2
    for reason in OpenFailure:
        assert value("kvcustody:blocks_rejected_total", reason=reason.value) == 2
    for action in ("store", "load"):
        assert value("kvcustody:blocks_dropped_total", action=action) == 2


def test_every_count_is_described(tier: CustodyTier) -> None:
    """One that isn't would end the engine's metrics."""
    described = CustodyTier.build_metric_definitions({})
    for count in Count:
        tier._tier.counters.add(
            count, label="x" if count in {Count.DROPPED, Count.REJECTED} else ""
        )
    for name, values in tier.get_stats()._values.items():
        assert {len(labels) for labels in values} == {len(described[name].labelnames)}
