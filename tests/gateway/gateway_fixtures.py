"""Fixtures: a deployment's gateway, and a client of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from gateway_deployment import Deployment


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Deployment]:
    gateway = Deployment(tmp_path)
    yield gateway
    gateway.services.close()


@pytest.fixture
async def client(gateway: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client
