"""Entry point of `vllm.general_plugins`: makes `"kv_connector": "CustodyConnector"` work.

vLLM loads it in each of its processes, more than once in some.
"""

CONNECTOR = "CustodyConnector"
SPEC = "CustodySpec"
TIER = "custody"


def register() -> None:
    """Tell vLLM's factories where our classes are; nothing of ours is imported yet."""
    # vLLM imports this module while it is still importing itself, so its own imports come late.
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: PLC0415
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory  # noqa: PLC0415
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: PLC0415

    # vLLM refuses a second registration of one name.
    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, "kvcustody.vllm.connector", CONNECTOR)
    if SPEC not in OffloadingSpecFactory._registry:
        OffloadingSpecFactory.register_spec(SPEC, "kvcustody.vllm.spec", SPEC)
    if TIER not in SecondaryTierFactory._registry:
        SecondaryTierFactory.register_tier(TIER, "kvcustody.vllm.tier", "CustodyTier")
