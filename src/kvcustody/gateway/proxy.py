"""The reverse proxy: an ASGI application that forwards what the gateway lets through.

`CustodyGateway(ReverseProxy(upstream), services)` is the gateway for a vLLM that can't be started
with middleware. Nothing is buffered: bodies pass in both directions as they come, a slow reader
slows the writer down, and whoever leaves ends the request on the other side. An answer is read
once the request's body is sent, as vLLM needs the whole body to answer.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx

from kvcustody.gateway.proxy_headers import (
    Framing,
    framing_of,
    request_headers,
    response_headers,
)
from kvcustody.gateway.proxy_websocket import relay
from kvcustody.gateway.replies import Receive, Refused, Scope, Send
from kvcustody.gateway.request import path_of
from kvcustody.gateway.upstream import UPSTREAM_AWAY, UPSTREAM_REFUSES_US, Upstream

logger = logging.getLogger(__name__)

# Each is a request under way. vLLM queues what it can't serve yet, so this is only to keep a flood
# from using up file descriptors (two for each request; a common limit is 4,096 or more).
_MOST_CONNECTIONS = 1024
_IDLE_CONNECTIONS = 128
# vLLM closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); we must be the first, else
# a request could meet the closing.
_IDLE_SECONDS = 2.0
_CONNECT_SECONDS = 5.0
# Without a free connection, or without the server taking a byte. An answer has no limit: a request
# may wait in vLLM's queue for long, and the client knows how long it wants to wait.
_WRITE_SECONDS = 60.0
_POOL_SECONDS = 10.0
_TIMEOUT = httpx.Timeout(
    connect=_CONNECT_SECONDS, read=None, write=_WRITE_SECONDS, pool=_POOL_SECONDS
)
# A host that went away without a word is noticed after about two minutes.
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)

_UPSTREAM_SLOW = Refused(
    HTTPStatus.GATEWAY_TIMEOUT, "upstream_timeout", "The server behind the gateway doesn't answer."
)
_BUSY = Refused(
    HTTPStatus.SERVICE_UNAVAILABLE, "gateway_busy", "Too many requests are under way; try again."
)
_NOT_FORWARDABLE = Refused(
    HTTPStatus.BAD_REQUEST, "invalid_request", "The request's headers are not valid HTTP."
)


class ReverseProxy:
    """Forwards requests to a server behind.

    The transport, and not httpx's client, does it: it follows no redirect, keeps no cookie, adds no
    header, reads no environment and decodes no content.

    Args:
        upstream: the server behind.
        transport: reaches it; only tests give one.

    """

    def __init__(
        self, upstream: Upstream, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._upstream = upstream
        self._transport = transport or httpx.AsyncHTTPTransport(
            verify=upstream.tls or True,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=_MOST_CONNECTIONS,
                max_keepalive_connections=_IDLE_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            ),
            socket_options=_SOCKET_OPTIONS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await relay(self._upstream, scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._transport.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, until it is answered or its client has left."""
        body = _ClientBody(receive)
        try:
            request = self._request(scope, body)
        except Refused as refused:
            await refused.reply(send)
            return
        exchange = asyncio.create_task(self._exchange(request, body, send))
        leaving = asyncio.create_task(body.client_left())
        try:
            await asyncio.wait({exchange, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            exchange.cancel()
            await asyncio.gather(exchange, leaving, return_exceptions=True)
        if not exchange.cancelled():
            exchange.result()

    def _request(self, scope: Scope, body: "_ClientBody") -> httpx.Request:
        """The request as it goes to the server behind.

        Raises:
            Refused: it can't go there.

        """
        upstream = self._upstream
        headers = request_headers(scope["headers"], upstream.host, upstream.api_key)
        has_body = framing_of(scope["headers"]) is not Framing.NONE
        if not has_body:
            body.end()
        return httpx.Request(
            scope["method"],
            upstream.url,
            headers=headers,
            stream=body if has_body else httpx.ByteStream(b""),
            extensions={
                "target": upstream.target(path_of(scope), scope.get("query_string", b"")),
                "timeout": _TIMEOUT.as_dict(),
            },
        )

    async def _exchange(self, request: httpx.Request, body: "_ClientBody", send: Send) -> None:
        try:
            response = await self._transport.handle_async_request(request)
        except _ClientLeft:
            return
        except httpx.TransportError as error:
            logger.warning("the server behind gave no answer: %s", type(error).__name__)
            await _refusal(error).reply(send)
            return
        body.end()
        try:
            await self._answer(response, send)
        finally:
            await response.aclose()

    async def _answer(self, response: httpx.Response, send: Send) -> None:
        status = response.status_code
        if status == HTTPStatus.UNAUTHORIZED:
            # The client's credential was good; the one at fault is ours.
            logger.error("the server behind doesn't take the gateway's API key")
            await UPSTREAM_REFUSES_US.reply(send)
            return
        headers = response_headers(response.headers.raw, status)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        try:
            async for part in response.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except httpx.TransportError as error:
            # Returning before the end makes the server in front break the connection, so that the
            # client can't take what it has for the whole.
            logger.warning("the server behind broke off its answer: %s", type(error).__name__)
            return
        await send({"type": "http.response.body", "body": b""})


class _ClientLeft(Exception):  # noqa: N818 - it ends a request; nothing has gone wrong here
    """The client went away before it had sent all of its body."""


class _ClientBody(httpx.AsyncByteStream):
    """The client's body as it comes; after its end, tells when the client leaves.

    Args:
        receive: the client's messages. They have one reader at a time: first whoever sends the body
            on, then `client_left`.

    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            if part := message.get("body", b""):
                yield part
            more = message.get("more_body", False)
        self._ended.set()

    def end(self) -> None:
        """Nobody wants the rest of the body."""
        self._ended.set()

    async def client_left(self) -> None:
        """Wait until the body has ended and the client has left."""
        await self._ended.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _refusal(error: httpx.TransportError) -> Refused:
    """What the client hears of an answer that did not come."""
    if isinstance(error, httpx.PoolTimeout):
        return _BUSY
    if isinstance(error, httpx.TimeoutException):
        return _UPSTREAM_SLOW
    if isinstance(error, httpx.LocalProtocolError):
        return _NOT_FORWARDABLE
    return UPSTREAM_AWAY
