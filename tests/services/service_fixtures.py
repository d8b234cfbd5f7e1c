"""The services that key providers need, one of each for all tests."""

from collections.abc import Iterator

import pytest

from moto_server import CREDENTIALS, MotoServer


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    with MotoServer() as server:
        yield server


@pytest.fixture
def aws(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> MotoServer:
    """AWS, and an environment with credentials for it."""
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    return moto
