"""The reverse proxy relays websockets: messages both ways, and how each side ends."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from gateway_deployment import Deployment
from kvcustody.gateway.replies import Message, Receive, Scope, Send
from upstream_double import (
    PATIENCE_SECONDS,
    Proxied,
    UpstreamDouble,
    proxied,
    raw_upstream,
    until_still,
    within_patience,
)

pytestmark = pytest.mark.unit

REALTIME = "/v1/realtime?model=m"
MESSAGE = b"x" * 2**18
# Socket buffers on two hops and a queue of messages in between.
IN_BETWEEN_BYTES = 48 * 2**20
ENDLESS_BYTES = 256 * 2**20


def opening(proxy: Proxied, **options: Any) -> connect:
    return connect(
        proxy.url.replace("http://", "ws://") + REALTIME,
        additional_headers=options.pop("headers", proxy.gateway.bearer("acme")),
        proxy=None,
        open_timeout=PATIENCE_SECONDS,
        compression=None,  # of bodies of one letter, little would be left
        **options,
    )


async def hears(client: ClientConnection) -> str | bytes:
    return await asyncio.wait_for(client.recv(), PATIENCE_SECONDS)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    offered = scope["subprotocols"]
    await send({"type": "websocket.accept", "subprotocol": offered[-1] if offered else None})
    await send({"type": "websocket.send", "text": "session.created"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


async def test_messages_pass_in_both_directions_as_they_are(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    upstream.answer = echo
    async with opening(
        proxy, subprotocols=[Subprotocol("other"), Subprotocol("realtime")]
    ) as client:
        assert client.subprotocol == "realtime"
        assert await hears(client) == "session.created"
        for message in ("text äöü", b"\x00\xff", "", "x" * 2**20):
            await client.send(message)
            assert await hears(client) == message


async def test_the_handshake_carries_the_gateways_id_and_no_credential(
    gateway: Deployment, upstream: UpstreamDouble
) -> None:
    upstream.answer = echo
    headers = gateway.bearer("acme") | {"X-Stays": "1", "X-Forwarded-For": "1.2.3.4"}
    async with (
        proxied(gateway, upstream.url, api_key="upstream-secret") as proxy,
        opening(proxy, headers=headers, origin="https://example.org"),
    ):
        pass
    (request,) = upstream.requests
    assert request.scope["path"] == "/v1/realtime"
    assert request.scope["query_string"] == b"model=m"
    assert request.header("authorization") == [b"Bearer upstream-secret"]
    assert request.header("x-forwarded-for") == []
    assert request.header("x-stays") == [b"1"]
    assert request.header("origin") == [b"https://example.org"]
    assert len(request.header("x-request-id")[0]) == 32
    assert request.header("host") == [upstream.url.removeprefix("http://").encode()]


async def test_without_a_key_the_server_hears_nothing(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await opening(proxy, headers={})
    assert refused.value.response.status_code == 401
    assert upstream.requests == []


async def test_the_servers_end_reaches_the_client_with_its_code(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    async def leave(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "last words"})
        await send({"type": "websocket.close", "code": 4001, "reason": "done"})

    upstream.answer = leave
    async with opening(proxy) as client:
        assert await hears(client) == "last words"
        with pytest.raises(ConnectionClosed):
            await hears(client)
    assert (client.close_code, client.close_reason) == (4001, "done")


async def test_a_server_that_dies_is_an_error_for_the_client(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    async def die(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})

    upstream.answer = die
    async with opening(proxy) as client:
        with pytest.raises(ConnectionClosed):
            await hears(client)
    assert client.close_code == 1011


@pytest.mark.parametrize("politely", [True, False])
async def test_the_clients_end_reaches_the_server(
    proxy: Proxied, upstream: UpstreamDouble, *, politely: bool
) -> None:
    ended = asyncio.Event()
    last: list[Message] = []

    async def listen(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        last.append(await receive())
        ended.set()

    upstream.answer = listen
    client = await opening(proxy)
    if politely:
        await client.close(4002, "bye")
    else:
        client.transport.abort()
    await within_patience(ended)
    assert last[0]["type"] == "websocket.disconnect"
    assert last[0]["code"] == (4002 if politely else 1001)


async def test_a_client_that_does_not_read_pauses_the_server(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    sent = 0

    async def talk(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await receive()
        await send({"type": "websocket.accept"})
        while sent < ENDLESS_BYTES:
            await send({"type": "websocket.send", "bytes": MESSAGE})
            sent += len(MESSAGE)
        await send({"type": "websocket.close"})

    upstream.answer = talk
    received = 0
    async with opening(proxy, ping_interval=None) as client:
        assert 0 < await until_still(lambda: sent) < IN_BETWEEN_BYTES
        async for message in client:
            received += len(message)
    assert received == ENDLESS_BYTES


async def test_a_server_that_does_not_read_pauses_the_client(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    reading, done = asyncio.Event(), asyncio.Event()
    sent = received = 0

    async def listen(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal received
        await receive()
        await send({"type": "websocket.accept"})
        await within_patience(reading)
        while (message := await receive())["type"] == "websocket.receive":
            received += len(message["bytes"])
        done.set()

    async def talk(client: ClientConnection) -> None:
        nonlocal sent
        while sent < ENDLESS_BYTES:
            await client.send(MESSAGE)
            sent += len(MESSAGE)

    upstream.answer = listen
    async with opening(proxy, ping_interval=None) as client:
        talking = asyncio.create_task(talk(client))
        assert 0 < await until_still(lambda: sent) < IN_BETWEEN_BYTES
        reading.set()
        await talking
    await within_patience(done)
    assert received == ENDLESS_BYTES


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", 403),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", 404),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", 502),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", 502),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\n\r\n", 502),
        (b"nonsense\r\n\r\n", 502),
        (b"", 502),
    ],
)
async def test_a_server_that_opens_no_websocket_is_told_of_as_a_status(
    gateway: Deployment, answer: bytes, status: int
) -> None:
    async with raw_upstream(answer) as url, proxied(gateway, url) as proxy:
        with pytest.raises(InvalidStatus) as refused:
            await opening(proxy)
    assert refused.value.response.status_code == status


async def test_while_the_server_is_away_a_websocket_is_a_502(gateway: Deployment) -> None:
    async with proxied(gateway, "http://127.0.0.1:9") as proxy:
        with pytest.raises(InvalidStatus) as refused:
            await opening(proxy)
    assert refused.value.response.status_code == 502
