"""The way to the server behind may be https; then its certificate is checked."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from certificates import certificate
from gateway_deployment import Deployment
from kvcustody.gateway.replies import Receive, Scope, Send
from upstream_double import UpstreamDouble, plain_server, proxied, serving

pytestmark = pytest.mark.unit


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[UpstreamDouble]:
    double = UpstreamDouble()
    server = plain_server(double, certificate(tmp_path / "server.pem"))
    async with serving(server) as url:
        double.url = url.replace("http://", "https://")
        yield double


async def greet(_scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": "hello"})
    await receive()


async def test_a_server_with_the_certificate_we_expect_is_reached(
    gateway: Deployment, secure: UpstreamDouble, tmp_path: Path
) -> None:
    async with proxied(gateway, secure.url, ca=tmp_path / "server.pem") as proxy:
        answer = await proxy.client.get("/health")
        assert (answer.status_code, answer.text) == (200, "ok")
        secure.answer = greet
        url = proxy.url.replace("http://", "ws://") + "/v1/realtime"
        bearer = gateway.bearer("acme")
        async with connect(url, additional_headers=bearer, proxy=None) as client:
            assert await client.recv() == "hello"


@pytest.mark.parametrize("expected", ["the system's", "another's"])
async def test_a_server_with_another_certificate_gets_no_request(
    gateway: Deployment, secure: UpstreamDouble, tmp_path: Path, expected: str
) -> None:
    other = certificate(tmp_path / "other.pem")
    ca = None if expected == "the system's" else other
    async with proxied(gateway, secure.url, ca=ca) as proxy:
        answer = await proxy.client.get("/health")
        url = proxy.url.replace("http://", "ws://") + "/v1/realtime"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=gateway.bearer("acme"), proxy=None)
    assert answer.status_code == refused.value.response.status_code == 502
    assert secure.requests == []


async def test_a_certificate_for_another_address_is_not_the_servers(
    gateway: Deployment, tmp_path: Path
) -> None:
    double = UpstreamDouble()
    file = certificate(tmp_path / "server.pem", "127.0.0.2")
    async with serving(plain_server(double, file)) as url:
        https = url.replace("http://", "https://")
        async with proxied(gateway, https, ca=file) as proxy:
            assert (await proxy.client.get("/health")).status_code == 502
    assert double.requests == []
