"""Fixtures: a deployment's gateway, and a client of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from gateway_deployment import Deployment
from upstream_double import Proxied, UpstreamDouble, plain_server, proxied, serving


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Deployment]:
    gateway = Deployment(tmp_path)
    yield gateway
    gateway.services.close()


@pytest.fixture
async def client(gateway: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamDouble]:
    double = UpstreamDouble()
    async with serving(plain_server(double)) as double.url:
        yield double


@pytest.fixture
async def proxy(gateway: Deployment, upstream: UpstreamDouble) -> AsyncIterator[Proxied]:
    async with proxied(gateway, upstream.url) as proxy:
        yield proxy
