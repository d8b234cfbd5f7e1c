"""Websockets: refuse one before it opens, and end one whose credential is no longer good."""

from collections.abc import Awaitable, Callable

from kvcustody.gateway.replies import Message, Receive, Refused, Scope, Send

_REPLY_EXTENSION = "websocket.http.response"
_POLICY_VIOLATION = 1008
# Audio comes many times a second; a revoked key may go on for this long.
_RECHECKED_AFTER_SECONDS = 5.0


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
    """A websocket that ends when its credential is revoked or expires.

    Args:
        receive: the client's messages.
        send: to the client.
        still_allowed: whether the credential is still good.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        still_allowed: Callable[[], Awaitable[bool]],
        clock: Callable[[], float],
    ) -> None:
        self._receive = receive
        self._send = send
        self._still_allowed = still_allowed
        self._clock = clock
        self._checked = clock()
        self._revoked = False

    async def receive(self) -> Message:
        """The client's next message; a disconnection if it may say no more."""
        message = await self._receive()
        now = self._clock()
        if now - self._checked >= _RECHECKED_AFTER_SECONDS:
            self._checked = now
            self._revoked = not await self._still_allowed()
        if self._revoked:
            return {"type": "websocket.disconnect", "code": _POLICY_VIOLATION}
        return message

    async def send(self, message: Message) -> None:
        """Send to the client, unless it is to hear no more."""
        if not self._revoked:
            await self._send(message)

    async def end(self) -> None:
        """Close the connection of a client that is out, once the server behind is done."""
        if self._revoked:
            await self._send({"type": "websocket.close", "code": _POLICY_VIOLATION})
