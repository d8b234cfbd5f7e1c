"""Fixtures: real services, one of each for all tests."""

from collections.abc import Iterator

import pytest

from moto_server import CREDENTIALS, MotoServer
from softhsm import SoftHsm


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


@pytest.fixture(scope="session")
def softhsm(tmp_path_factory: pytest.TempPathFactory) -> SoftHsm:
    return SoftHsm(tmp_path_factory.mktemp("softhsm"))


@pytest.fixture(scope="session")
def token_label(softhsm: SoftHsm) -> str:
    """Label of an HSM's token without keys."""
    label = softhsm.create_token()
    softhsm.notice_tokens()
    return label
