"""The reverse proxy passes bodies on as they come, at the reader's pace, and ends with its ends."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway_deployment import CHAT, Deployment
from kvcustody.gateway.replies import Message, Receive, Scope, Send
from upstream_double import (
    PATIENCE_SECONDS,
    Proxied,
    UpstreamDouble,
    proxied,
    raw_upstream,
    reply,
    until_still,
    within_patience,
)

pytestmark = pytest.mark.unit

AUDIO = "/v1/audio/transcriptions"
PART = b"x" * 2**16
# Of what one side may be ahead of the other: socket buffers on three hops. The kernel lets each
# grow to some MiB; the bodies below are far larger.
IN_BETWEEN_BYTES = 48 * 2**20
ENDLESS_BYTES = 256 * 2**20


async def start(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


async def send_part(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_a_part_of_an_answer_arrives_before_the_next_is_made(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    wanted = asyncio.Event()

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await start(send, (b"content-type", b"text/event-stream"))
        for number in range(3):
            await send_part(send, f"data: {number}\n\n".encode())
            await within_patience(wanted)
            wanted.clear()
        await send_part(send, b"data: [DONE]\n\n", more=False)

    upstream.answer = answer
    parts = []
    bearer = proxy.gateway.bearer("acme")
    async with proxy.client.stream("POST", CHAT, json={}, headers=bearer) as response:
        async for part in response.aiter_raw():
            parts.append(part)
            wanted.set()
    assert parts == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]


async def test_a_part_of_a_body_arrives_before_the_next_is_sent(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    arrived = asyncio.Event()
    received: list[bytes] = []

    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            received.append(message["body"])
            more = message["more_body"]
            arrived.set()
        await start(send)
        await send_part(send, b"", more=False)

    async def body() -> AsyncIterator[bytes]:
        for part in (b"one", b"two"):
            arrived.clear()
            yield part
            await within_patience(arrived)

    upstream.answer = answer
    bearer = proxy.gateway.bearer("acme")
    response = await proxy.client.post(AUDIO, content=body(), headers=bearer)
    assert response.status_code == 200
    assert [part for part in received if part] == [b"one", b"two"]
    assert upstream.requests[0].header("transfer-encoding") == [b"chunked"]


@pytest.mark.parametrize("started", [True, False])
async def test_a_client_that_leaves_ends_the_request_behind(
    proxy: Proxied, upstream: UpstreamDouble, *, started: bool
) -> None:
    working, ended = asyncio.Event(), asyncio.Event()

    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        if started:
            await start(send)
            await send_part(send, b"data: 0\n\n")
        working.set()
        await until_disconnect(receive)
        ended.set()

    upstream.answer = answer
    bearer = proxy.gateway.bearer("acme")
    asking = asyncio.create_task(proxy.client.post(CHAT, json={}, headers=bearer))
    await within_patience(working)
    assert not ended.is_set()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await within_patience(ended)


@pytest.mark.parametrize(
    "half", [b"Content-Length: 100\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
)
async def test_a_client_that_leaves_amid_its_body_has_not_ended_it(
    proxy: Proxied, upstream: UpstreamDouble, half: bytes
) -> None:
    working, ended = asyncio.Event(), asyncio.Event()
    messages: list[Message] = []

    async def answer(_scope: Scope, receive: Receive, _send: Send) -> None:
        working.set()
        while not messages or messages[-1]["type"] != "http.disconnect":
            messages.append(await receive())
        ended.set()

    upstream.answer = answer
    _, writer = await asyncio.open_connection(*proxy.address)
    head = f"POST {AUDIO} HTTP/1.1\r\nHost: x\r\n{proxy.key()}\r\n"
    writer.write(head.encode() + half)
    await writer.drain()
    await within_patience(working)
    writer.close()
    await within_patience(ended)
    assert all(message.get("more_body", True) for message in messages)


async def test_a_reader_that_pauses_pauses_the_server_behind(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    sent = 0

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal sent
        await start(send)
        while sent < ENDLESS_BYTES:
            await send_part(send, PART)
            sent += len(PART)
        await send_part(send, b"", more=False)

    upstream.answer = answer
    async with proxy.client.stream("GET", "/metrics") as response:
        ahead = await until_still(lambda: sent)
        assert 0 < ahead < IN_BETWEEN_BYTES
        received = 0
        async for part in response.aiter_raw():
            received += len(part)
    assert received == sent == ENDLESS_BYTES


async def test_a_server_that_does_not_read_pauses_the_client(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    reading = asyncio.Event()
    sent = received = 0

    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal received
        await within_patience(reading)
        more = True
        while more:
            message = await receive()
            received += len(message["body"])
            more = message["more_body"]
        await start(send)
        await send_part(send, b"", more=False)

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < ENDLESS_BYTES:
            yield PART
            sent += len(PART)

    upstream.answer = answer
    bearer = proxy.gateway.bearer("acme")
    posting = asyncio.create_task(proxy.client.post(AUDIO, content=body(), headers=bearer))
    ahead = await until_still(lambda: sent)
    assert 0 < ahead < IN_BETWEEN_BYTES
    reading.set()
    assert (await posting).status_code == 200
    assert received == sent == ENDLESS_BYTES


async def _collect(response: httpx.Response, parts: list[bytes]) -> None:
    async for part in response.aiter_raw():
        parts.append(part)  # noqa: PERF401 - what came before an error is wanted


@pytest.mark.parametrize(
    "head",
    [b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"Content-Length: 99\r\n\r\nhello"],
)
async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(
    gateway: Deployment, head: bytes
) -> None:
    async with (
        raw_upstream(b"HTTP/1.1 200 OK\r\n" + head) as url,
        proxied(gateway, url) as proxy,
        proxy.client.stream("GET", "/metrics") as response,
    ):
        parts: list[bytes] = []
        with pytest.raises(httpx.RemoteProtocolError):
            await _collect(response, parts)
        assert b"".join(parts) == b"hello"


async def test_an_answer_that_comes_before_the_bodys_end_is_passed_on(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    """As when a server refuses a body by its size."""

    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, b"too large", status=413)

    upstream.answer = refuse
    bearer = proxy.gateway.bearer("acme")
    response = await proxy.client.post(AUDIO, content=PART * 64, headers=bearer)
    assert (response.status_code, response.text) == (413, "too large")
    assert (await proxy.client.get("/health")).status_code == 413


async def test_many_requests_at_once_do_not_wait_for_each_other(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    waiting, all_here = 0, asyncio.Event()

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 64:
            all_here.set()
        await within_patience(all_here)
        await start(send)
        await send_part(send, b"ok", more=False)

    upstream.answer = answer
    asked = [proxy.client.get("/health") for _ in range(64)]
    answers = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE_SECONDS)
    assert {answer.status_code for answer in answers} == {200}
