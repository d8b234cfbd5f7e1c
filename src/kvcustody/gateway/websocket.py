"""Websockets: refuse one before it opens, and end one whose credential is no longer good."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from kvcustody.gateway.replies import Application, Message, Receive, Refused, Scope, Send

_REPLY_EXTENSION = "websocket.http.response"
_POLICY_VIOLATION = 1008
_RECHECKED_EVERY_SECONDS = 5.0

logger = logging.getLogger(__name__)


async def deny(scope: Scope, receive: Receive, send: Send, refused: Refused) -> None:
    """Refuse to open a websocket, with the gateway's answer if the server can send one.

    Args:
        scope: the request.
        receive: gives the request to connect.
        send: sends the answer.
        refused: the answer.

    """
    await receive()
    if _REPLY_EXTENSION not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        return

    async def send_as_reply(message: Message) -> None:
        kind = str(message["type"]).removeprefix("http.response.")
        await send({**message, "type": f"{_REPLY_EXTENSION}.{kind}"})

    await refused.reply(send_as_reply)


class RecheckedSession:
    """A websocket that ends when its credential is revoked or expires, whoever is silent.

    Args:
        receive: the client's messages.
        send: to the client.
        still_allowed: whether the credential is still good.
        sleep: waits for seconds.

    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        still_allowed: Callable[[], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._receive = receive
        self._send = send
        self._still_allowed = still_allowed
        self._sleep = sleep
        self._over = asyncio.Event()
        self._closed = False
        self._incoming: asyncio.Future[Message] | None = None

    async def run(self, app: Application, scope: Scope) -> None:
        """Let the server behind have the connection, for as long as the credential is good.

        Args:
            app: the server behind.
            scope: the request as it goes on.

        """
        watch = asyncio.create_task(self._watch())
        try:
            await app(scope, self._receive_until_over, self._send_until_over)
        finally:
            watch.cancel()
            if self._incoming is not None:
                self._incoming.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self) -> None:
        while True:
            await self._sleep(_RECHECKED_EVERY_SECONDS)
            try:
                allowed = await self._still_allowed()
            except Exception:
                logger.exception("A websocket's credential can't be checked; it ends")
                allowed = False
            if not allowed:
                break
        self._over.set()
        if not self._closed:
            self._closed = True
            with suppress(OSError, RuntimeError):  # the client was quicker
                await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    async def _receive_until_over(self) -> Message:
        if self._incoming is None:
            # Kept if whoever waits here gives up, so that no message is lost.
            self._incoming = asyncio.ensure_future(self._receive())
        over = asyncio.ensure_future(self._over.wait())
        waited_for: set[asyncio.Future[Any]] = {self._incoming, over}
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if self._over.is_set():
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        message, self._incoming = self._incoming.result(), None
        return message

    async def _send_until_over(self, message: Message) -> None:
        if self._over.is_set():
            return
        if message["type"] == "websocket.close":
            self._closed = True
        await self._send(message)
