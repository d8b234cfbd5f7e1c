"""Fixtures of the engine's tests: one server for all that attack it."""

from collections.abc import Iterator

import pytest

from served_deployment import Served, served_deployment


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_deployment(tmp_path_factory.mktemp("served")) as served:
        yield served
