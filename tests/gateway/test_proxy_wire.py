"""What a client writes on the wire can't make the server behind read another request.

Each attempt goes over a raw socket, since no client library would write it.
"""

import json

import pytest

from gateway_deployment import CHAT, Deployment
from kvcustody.gateway.replies import Receive, Scope, Send
from upstream_double import Proxied, UpstreamDouble, proxied, raw_upstream

pytestmark = pytest.mark.unit

AUDIO = "POST /v1/audio/transcriptions HTTP/1.1"
# Only an admin may; if it reaches the server, it was smuggled.
HIDDEN = b"POST /reset_prefix_cache HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def paths(upstream: UpstreamDouble) -> list[str]:
    return [request.scope["path"] for request in upstream.requests]


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 4", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 4"],
        ["Content-Length: 4", "Content-Length: 200"],
        ["Content-Length: 4, 200"],
        ["Content-Length: +4"],
        ["Content-Length: 0x4"],
        ["Content-Length: -4"],
        ["Content-Length : 4"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked, identity"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding:\x0bchunked"],
        ["Transfer-Encoding : chunked"],
        ["X: y\nTransfer-Encoding: chunked", "Content-Length: 4"],
    ],
)
async def test_a_body_of_unclear_length_reaches_nobody(
    proxy: Proxied, upstream: UpstreamDouble, lines: list[str]
) -> None:
    head = [AUDIO, "Host: x", proxy.key(), *lines, "Connection: close"]
    answer = await proxy.raw(*head, body=b"0\r\n\r\n" + HIDDEN)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert answer.count(b"HTTP/1.1") == 1
    assert paths(upstream) == []
    honest = [AUDIO, "Host: x", proxy.key(), "Content-Length: 4", "Connection: close"]
    assert (await proxy.raw(*honest, body=b"abcd")).startswith(b"HTTP/1.1 200")


async def test_what_follows_a_body_is_a_request_and_judged_as_one(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    head = [AUDIO, "Host: x", proxy.key(), "Content-Length: 4"]
    following = HIDDEN.replace(b"Host: x", b"Connection: close\r\n" + proxy.key().encode())
    answer = await proxy.raw(*head, body=b"abcd" + following)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 403" in answer
    assert paths(upstream) == ["/v1/audio/transcriptions"]
    assert upstream.requests[0].body == b"abcd"


@pytest.mark.parametrize(
    "named", ["content-length", "x-request-id", "Content-Length, X-Request-Id, Content-Type"]
)
async def test_connection_can_not_name_away_what_the_gateway_relies_on(
    proxy: Proxied, upstream: UpstreamDouble, named: str
) -> None:
    body = json.dumps({"messages": []}).encode()
    await proxy.raw(
        f"POST {CHAT} HTTP/1.1",
        "Host: x",
        proxy.key(),
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Connection: close, {named}",
        body=body,
    )
    (request,) = upstream.requests
    assert type(proxy.gateway.verify(request.scope, request.body)).__name__ == "Verified"
    await proxy.raw(
        *(AUDIO, "Host: x", proxy.key(), f"Connection: close, {named}"),
        f"Content-Length: {len(HIDDEN)}",
        body=HIDDEN,
    )
    assert paths(upstream) == [CHAT, "/v1/audio/transcriptions"]
    assert upstream.requests[1].body == HIDDEN


async def test_hop_by_hop_headers_end_at_the_proxy(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    hop_by_hop = {
        "Keep-Alive": "timeout=5",
        "Proxy-Connection": "keep-alive",
        "TE": "trailers",
        "Trailer": "x",
        "Upgrade": "h2c",
        "X-For-This-Hop": "1",
    }
    await proxy.raw(
        *("GET /health HTTP/1.1", "Host: x", "X-Stays: 1"),
        *(f"{name}: {value}" for name, value in hop_by_hop.items()),
        "Connection: close, X-For-This-Hop",
    )
    names = {name.decode() for name, _ in upstream.requests[0].scope["headers"]}
    assert names == {"host", "x-stays", "via"}


async def test_hop_by_hop_headers_of_answers_end_at_the_proxy(gateway: Deployment) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nX-For-This-Hop: 1\r\nX-Stays: 1\r\n"
        b"Proxy-Authenticate: Basic\r\nServer: behind\r\nUpgrade: h2c\r\n"
        b"Connection: X-For-This-Hop, close\r\nContent-Length: 2\r\n\r\nok"
    )
    async with raw_upstream(head) as url, proxied(gateway, url) as proxy:
        answer = await proxy.client.get("/health")
    assert answer.text == "ok"
    assert set(answer.headers) == {"date", "x-stays", "content-length"}


async def test_an_answer_is_never_read_into_the_next_requests(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    """A server whose answer is longer than it says: the rest is not another client's answer."""

    async def answer(scope: Scope, _receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        )
        body = scope["query_string"][:2]
        await send({"type": "http.response.body", "body": body})

    upstream.answer = answer
    for word in ("aa", "bb", "cc"):
        assert (await proxy.client.get(f"/health?{word}")).text == word
    overlong = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\nevil"
    async with raw_upstream(overlong) as url, proxied(proxy.gateway, url) as other:
        for _ in range(3):
            response = await other.client.get("/health")
            assert (response.status_code, response.text) == (200, "ok")


async def test_a_chunked_body_is_chunked_anew(proxy: Proxied, upstream: UpstreamDouble) -> None:
    chunks = b"4;ext=1\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n"
    head = [AUDIO, "Host: x", proxy.key(), "Transfer-Encoding: chunked", "Connection: close"]
    assert (await proxy.raw(*head, body=chunks)).startswith(b"HTTP/1.1 200")
    (request,) = upstream.requests
    assert request.body == b"abcdefg"
    assert request.header("transfer-encoding") == [b"chunked"]


@pytest.mark.parametrize("trailer", ["Content-Length: 2", "Transfer-Encoding: chunked"])
async def test_a_trailer_can_not_change_where_a_body_ends(
    proxy: Proxied, upstream: UpstreamDouble, trailer: str
) -> None:
    """Uvicorn appends trailers to the headers, if they come before the application looks."""
    head = [AUDIO, "Host: x", proxy.key(), "Transfer-Encoding: chunked", "Connection: close"]
    chunks = b"4\r\nabcd\r\n0\r\n" + trailer.encode() + b"\r\n\r\n"
    answer = await proxy.raw(*head, body=chunks)
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert [request.body for request in upstream.requests] in ([], [b"abcd"])


async def test_a_trailer_can_not_choose_the_request_id(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    head = [AUDIO, "Host: x", proxy.key(), "Transfer-Encoding: chunked", "Connection: close"]
    await proxy.raw(*head, body=b"4\r\nabcd\r\n0\r\nX-Request-Id: mine\r\n\r\n")
    (request,) = upstream.requests
    assert len(request.header("x-request-id")) == 1
    assert request.header("x-request-id") != [b"mine"]


@pytest.mark.parametrize(
    "chunks", [b"zz\r\nabcd\r\n", b"-4\r\nabcd\r\n", b"4\r\nabcdX\r\n0\r\n\r\n"]
)
async def test_a_body_in_broken_chunks_never_ends_well(
    proxy: Proxied, upstream: UpstreamDouble, chunks: bytes
) -> None:
    head = [AUDIO, "Host: x", proxy.key(), "Transfer-Encoding: chunked", "Connection: close"]
    answer = await proxy.raw(*head, body=chunks + HIDDEN)
    assert b"HTTP/1.1 200" not in answer
    assert "/reset_prefix_cache" not in paths(upstream)


async def test_a_client_that_expects_to_be_asked_for_its_body_is_asked(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    head = [AUDIO, "Host: x", proxy.key(), "Content-Length: 4", "Connection: close"]
    answer = await proxy.raw(*head, "Expect: 100-continue", body=b"abcd")
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
    assert upstream.requests[0].header("expect") == []
