"""The way to the server behind may be https; then its certificate is checked."""

import ipaddress
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway_deployment import Deployment
from kvcustody.gateway.replies import Receive, Scope, Send
from upstream_double import UpstreamDouble, plain_server, proxied, serving

pytestmark = pytest.mark.unit


def certificate(file: Path, address: str = "127.0.0.1") -> Path:
    """A certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server behind")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(signed.public_bytes(Encoding.PEM) + private)
    return file


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
