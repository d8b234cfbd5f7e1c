from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcustody.audit.events import COMMON_FIELDS, EVENTS
from tier_doubles import Custody

pytest_plugins = ["command_line", "service_fixtures"]

_NEED_VLLM = ("engine", "vllm")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For `-m unit`, don't even import what needs vLLM: that takes longer than all unit tests."""
    if config.getoption("markexpr") != "unit":
        return None
    return True if collection_path.parent.name in _NEED_VLLM else None


@pytest.fixture
def custody() -> Iterator[Custody]:
    custody = Custody()
    yield custody
    custody.close()
    for event in custody.audit.events:
        known = {"event", *COMMON_FIELDS, *EVENTS[event["event"]]}
        assert event.keys() <= known, "an event carries what the catalogue does not know"
