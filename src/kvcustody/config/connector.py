"""The connector as vLLM's configuration names it."""

from pathlib import Path
from typing import Any


def connector_config(file: Path) -> dict[str, Any]:
    """Value of vLLM's `--kv-transfer-config`, and of `kv_transfer_config` for its class `LLM`.

    Args:
        file: custody.yaml.

    """
    return {
        "kv_connector": "CustodyConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"custody": str(file)},
    }
