"""Test doubles for the vLLM behind the reverse proxy, on real sockets, and the proxy itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn

from gateway_deployment import Deployment
from kvcustody.gateway import CustodyGateway
from kvcustody.gateway.proxy import ReverseProxy
from kvcustody.gateway.proxy_server import address_of, bind, server_for
from kvcustody.gateway.replies import Application, Receive, Scope, Send
from kvcustody.gateway.upstream import parse_upstream

# Only so that a broken proxy fails its test instead of hanging it.
PATIENCE_SECONDS = 30.0

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Request:
    """What reached the double."""

    scope: Scope
    body: bytes = b""

    def header(self, name: str) -> list[bytes]:
        return [value for each, value in self.scope["headers"] if each == name.encode()]


@dataclass
class UpstreamDouble:
    """Stands for vLLM: keeps what reaches it, and answers as the test says."""

    requests: list[Request] = field(default_factory=list)
    answer: Answer | None = None
    url: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        self.requests.append(request)
        if self.answer is not None:
            await self.answer(scope, receive, send)
            return
        more = True
        while more:
            message = await receive()
            request.body += message.get("body", b"")
            more = message.get("more_body", False)
        await reply(send, b"ok")


async def reply(send: Send, body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(server: uvicorn.Server) -> AsyncIterator[str]:
    """The URL of a server that runs in this loop."""
    with bind("127.0.0.1", 0) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.01)
        host, port = address_of(listener)
        try:
            yield f"http://{host}:{port}"
        finally:
            # A test that failed may have left connections open; they end at once.
            server.config.timeout_graceful_shutdown = 1
            server.should_exit = True
            await task


def plain_server(app: Application, certificate: Path | None = None) -> uvicorn.Server:
    """As vLLM serves: uvicorn, with its defaults; with a certificate and key in one file, https."""
    return uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", ssl_certfile=certificate)
    )


@asynccontextmanager
async def raw_upstream(answer: bytes) -> AsyncIterator[str]:
    """The URL of a server that reads a request's head, sends these bytes, and hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"


@dataclass
class Proxied:
    """A deployment's gateway as a reverse proxy, on a real socket."""

    gateway: Deployment
    url: str
    client: httpx.AsyncClient

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def key(self, tenant: str = "acme") -> str:
        return f"Authorization: Bearer {self.gateway.keys[tenant].key}"

    async def raw(self, *lines: str, body: bytes = b"") -> bytes:
        """Whatever comes back until the server hangs up, which the request should ask for."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()
        return answer


@asynccontextmanager
async def proxied(
    gateway: Deployment,
    upstream: str,
    api_key: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    ca: Path | None = None,
) -> AsyncIterator[Proxied]:
    proxy = ReverseProxy(parse_upstream(upstream, ca, api_key), transport)
    server = server_for(CustodyGateway(proxy, gateway.services), lambda: None)
    async with (
        serving(server) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client,
    ):
        yield Proxied(gateway, url, client)


async def within_patience(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE_SECONDS)


async def until_still(count: Callable[[], int]) -> int:
    """A count, once it has stopped to grow."""
    still, last = 0, -1
    while still < 20:
        await asyncio.sleep(0.02)
        now = count()
        still, last = (still + 1, now) if now == last else (0, now)
    return last
