from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from kvcustody.audit.events import COMMON_FIELDS, EVENTS
from postgresql_server import PostgreSQLServer, running_server
from tier_doubles import Custody

pytest_plugins = [
    "command_line",
    "engine_fixtures",
    "gateway_fixtures",
    "key_deployment",
    "service_fixtures",
]

# A busy machine is no finding.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

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


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    with running_server() as server:
        yield server


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.unit),
        pytest.param("postgresql", marks=pytest.mark.service),
    ]
)
def registry_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty registry may lie; what uses this runs on every database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state' / 'registry.sqlite'}"
        return
    # Not an argument, so that no server is started for SQLite.
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    with server.database() as name:
        yield server.url(name)
