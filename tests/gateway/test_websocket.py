"""Websockets: who may open one, and that a revoked key ends it."""

import asyncio
from typing import Any

import pytest

from gateway_deployment import Deployment
from kvcustody.gateway import websocket

pytestmark = pytest.mark.unit

REALTIME = "/v1/realtime"


class Client:
    """A websocket's client, as an ASGI server would hand it on."""

    def __init__(self, gateway: Deployment, path: str, headers: dict[str, str]) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._scope: dict[str, Any] = {
            "type": "websocket",
            "path": path,
            "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
            "extensions": {"websocket.http.response": {}},
        }
        self._gateway = gateway.middleware
        self.say({"type": "websocket.connect"})

    def without_extensions(self) -> None:
        self._scope["extensions"] = {}

    def say(self, message: dict[str, Any]) -> None:
        self.incoming.put_nowait(message)

    def start(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self._gateway(self._scope, self.incoming.get, self.sent.put))

    async def hears(self) -> Any:
        return await asyncio.wait_for(self.sent.get(), 30)


async def test_a_websocket_opens_with_a_key_and_passes_messages(gateway: Deployment) -> None:
    client = Client(gateway, REALTIME, gateway.bearer("acme"))
    task = client.start()
    assert await client.hears() == {"type": "websocket.accept"}
    client.say({"type": "websocket.receive", "text": "hello"})
    assert await client.hears() == {"type": "websocket.send", "text": "hello"}
    client.say({"type": "websocket.disconnect", "code": 1000})
    await task
    ((scope, _),) = gateway.app.requests
    assert b"authorization" not in dict(scope["headers"])
    (accepted,) = gateway.events("request.accepted")
    assert (accepted["tenant"], accepted["path"]) == ("acme", REALTIME)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (REALTIME, {}, 401),
        (REALTIME, {"Authorization": "Bearer x"}, 401),
        ("/v1/chat/completions", {}, 403),
        ("/v1/realtime/", {}, 403),
    ],
)
async def test_a_websocket_without_a_right_is_refused_before_it_opens(
    gateway: Deployment, path: str, headers: dict[str, str], status: int
) -> None:
    client = Client(gateway, path, headers)
    await client.start()
    start, body = await client.hears(), await client.hears()
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert body["type"] == "websocket.http.response.body"
    assert b'"error"' in body["body"]
    assert gateway.app.requests == []


async def test_a_server_that_can_not_answer_a_refusal_closes(gateway: Deployment) -> None:
    client = Client(gateway, REALTIME, {})
    client.without_extensions()
    await client.start()
    assert await client.hears() == {"type": "websocket.close", "code": 1008}


async def test_a_revoked_key_ends_its_websocket(
    gateway: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "_RECHECKED_AFTER_SECONDS", 0.0)
    client = Client(gateway, REALTIME, gateway.bearer("acme"))
    task = client.start()
    assert (await client.hears())["type"] == "websocket.accept"
    client.say({"type": "websocket.receive", "text": "before"})
    assert (await client.hears())["text"] == "before"
    gateway.revoke("acme")
    client.say({"type": "websocket.receive", "text": "after"})
    assert await client.hears() == {"type": "websocket.close", "code": 1008}
    await task
    assert gateway.app.disconnected
