"""Relay a websocket to the server behind, message by message in both directions."""

import asyncio
import logging
from http import HTTPStatus

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from kvcustody.gateway.proxy_headers import handshake_headers
from kvcustody.gateway.replies import Receive, Refused, Scope, Send
from kvcustody.gateway.request import path_of
from kvcustody.gateway.upstream import UPSTREAM_AWAY, UPSTREAM_REFUSES_US, Upstream
from kvcustody.gateway.websocket import deny

logger = logging.getLogger(__name__)

_OPEN_SECONDS = 5.0
# As much as uvicorn, in front and behind, takes in one message.
_LARGEST_MESSAGE_BYTES = 16 * 2**20
_NORMAL, _GOING_AWAY, _NO_STATUS, _INTERNAL_ERROR = 1000, 1001, 1005, 1011
# Codes that no endpoint may send: they say that there was no code (RFC 6455, 7.4.1).
_NEVER_SENT = frozenset({1004, 1005, 1006, 1015})


class _OneHandshake(connect):
    """Opens a connection; a redirect is an answer like another."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follow none."""
        return exc


async def relay(upstream: Upstream, scope: Scope, receive: Receive, send: Send) -> None:
    """Relay one websocket.

    Args:
        upstream: the server behind.
        scope: the request to open it.
        receive: the client's messages.
        send: to the client.

    """
    try:
        connection = await _open(upstream, scope)
    except Refused as refused:
        await deny(scope, receive, send, refused)
        return
    try:
        await receive()  # the request to connect
        await send({"type": "websocket.accept", "subprotocol": connection.subprotocol})
        await _exchange(connection, receive, send)
    finally:
        await connection.close()


async def _open(upstream: Upstream, scope: Scope) -> ClientConnection:
    """Open the connection to the server behind.

    Raises:
        Refused: it doesn't open.

    """
    try:
        return await _OneHandshake(
            upstream.websocket_uri(path_of(scope), scope.get("query_string", b"")),
            additional_headers=handshake_headers(scope["headers"], upstream.host, upstream.api_key),
            subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", ())] or None,
            compression=None,  # the way is short, and audio doesn't shrink
            user_agent_header=None,
            proxy=None,
            ssl=upstream.tls,
            open_timeout=_OPEN_SECONDS,
            max_size=_LARGEST_MESSAGE_BYTES,
        )
    except InvalidStatus as error:
        raise _refusal(error.response.status_code) from None
    except (InvalidHandshake, InvalidURI, OSError) as error:  # TimeoutError is an OSError
        logger.warning("no websocket to the server behind: %s", type(error).__name__)
        raise UPSTREAM_AWAY from None


def _refusal(status: int) -> Refused:
    """What the client hears when the server behind doesn't open the websocket."""
    if status == HTTPStatus.UNAUTHORIZED:
        logger.error("the server behind doesn't take the gateway's API key")
        return UPSTREAM_REFUSES_US
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
        return Refused(HTTPStatus(status), "upstream_refused", "The server has no such websocket.")
    logger.warning("no websocket to the server behind: status %d", status)
    return UPSTREAM_AWAY


async def _exchange(connection: ClientConnection, receive: Receive, send: Send) -> None:
    """Pass messages on until either side ends."""
    inwards = asyncio.create_task(_from_client(receive, connection))
    outwards = asyncio.create_task(_to_client(connection, send))
    try:
        await asyncio.wait({inwards, outwards}, return_when=asyncio.FIRST_COMPLETED)
        if not (inwards.done() and inwards.result()):
            await outwards  # the server behind has ended; its last messages are still to be sent
    finally:
        inwards.cancel()
        outwards.cancel()
        await asyncio.gather(inwards, outwards, return_exceptions=True)


async def _from_client(receive: Receive, connection: ClientConnection) -> bool:
    """Pass on what the client says; whether it has left, and not the server behind."""
    try:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = message.get("code", _NO_STATUS)
                await connection.close(_sendable(code, _GOING_AWAY), message.get("reason") or "")
                return True
            text = message.get("text")
            await connection.send(message["bytes"] if text is None else text)
    except ConnectionClosed:
        return False


async def _to_client(connection: ClientConnection, send: Send) -> None:
    """Pass on what the server behind says, and its end."""
    try:
        try:
            async for data in connection:
                kind = "text" if isinstance(data, str) else "bytes"
                await send({"type": "websocket.send", kind: data})
        except ConnectionClosed:
            pass  # not in order; its code says so
        code = connection.close_code
        code = _NORMAL if code == _NO_STATUS else _sendable(code, _INTERNAL_ERROR)
        await send(
            {"type": "websocket.close", "code": code, "reason": connection.close_reason or ""}
        )
    except OSError:
        return  # uvicorn's way to say that the client has left


def _sendable(code: int | None, instead: int) -> int:
    return instead if code is None or code in _NEVER_SENT else code
