"""The gateway's own answers, in the form that OpenAI clients understand."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

ANY_TOKEN = b"Bearer"
"""The challenge to who shows no credential (RFC 6750, section 3)."""
INVALID_TOKEN = b'Bearer error="invalid_token"'
"""The challenge to who shows one that is not good."""


class Refused(Exception):  # noqa: N818 - it ends a request; nothing has gone wrong here
    """Ends a request with an answer of the gateway's own.

    Args:
        status: HTTP status.
        code: what scripts look at.
        message: what people read.
        challenge: what an answer 401 asks for.

    """

    def __init__(
        self, status: HTTPStatus, code: str, message: str, *, challenge: bytes = ANY_TOKEN
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.challenge = challenge

    async def reply(self, send: Send) -> None:
        """Send the answer."""
        client_error = self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "invalid_request_error" if client_error else "server_error"
        content = json.dumps(
            {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        if self.status is HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", self.challenge))
        await send({"type": "http.response.start", "status": int(self.status), "headers": headers})
        await send({"type": "http.response.body", "body": content})
