"""A server that streams tokens as vLLM would, without a model: bare, or behind the gateway.

It runs in a process of its own: `python -m kvcustody.bench.stub_server FD [governed]`, on a socket
that its parent listens on. Behind the gateway, `KVCUSTODY_CONFIG` names the deployment.
"""

import asyncio
import socket
import sys

from kvcustody.gateway import CustodyGateway
from kvcustody.gateway.replies import Application, Receive, Scope, Send

CHUNKS_HEADER = b"x-chunks"
"""How many chunks the answer has; in a header, so that the bare server need not read the body."""
PACE_HEADER = b"x-pace"
"""Seconds before each chunk."""
GOVERNED = "governed"

_BACKLOG = 2048
# As vLLM's for one token of a chat.
_CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
    b'"created":1700000000,"model":"stub","choices":[{"index":0,"delta":{"content":" token"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)


async def stub(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application that reads a body and streams what the request's headers ask for."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    while (await receive()).get("more_body"):
        pass
    headers = dict(scope["headers"])
    chunks = int(headers.get(CHUNKS_HEADER, b"0"))
    pace = float(headers.get(PACE_HEADER, b"0"))
    content_type = (b"content-type", b"text/event-stream")
    await send({"type": "http.response.start", "status": 200, "headers": [content_type]})
    for _ in range(chunks):
        await asyncio.sleep(pace)
        await send({"type": "http.response.body", "body": _CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _lifespan(receive: Receive, send: Send) -> None:
    for _ in range(2):
        event = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{event}.complete"})


def main() -> None:
    """Serve until a signal ends it."""
    import uvicorn  # noqa: PLC0415 - only this process needs it

    listener = socket.socket(fileno=int(sys.argv[1]))
    app: Application = CustodyGateway(stub) if sys.argv[2:] == [GOVERNED] else stub
    # As `vllm serve` runs it, with the fastest loop and parser that are installed.
    config = uvicorn.Config(
        app, lifespan="on", log_level="error", access_log=False, backlog=_BACKLOG
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
