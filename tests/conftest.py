from pathlib import Path

import pytest

_NEED_VLLM = ("engine", "vllm")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For `-m unit`, don't even import what needs vLLM: that takes longer than all unit tests."""
    if config.getoption("markexpr") != "unit":
        return None
    return True if collection_path.parent.name in _NEED_VLLM else None
