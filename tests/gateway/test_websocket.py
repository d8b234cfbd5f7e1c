"""Websockets: who may open one, and that a revoked key ends it."""

import asyncio
from functools import partial
from typing import Any

import pytest

from gateway_deployment import Deployment
from kvcustody.errors import UnavailableError
from kvcustody.gateway import middleware, websocket
from kvcustody.identity.authenticator import REMEMBERED_SECONDS

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


class Sleep:
    """Lets a test say when five seconds have passed."""

    def __init__(self) -> None:
        self._passed: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, _seconds: float) -> None:
        await self._passed.get()

    def five_seconds(self) -> None:
        self._passed.put_nowait(None)


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    sleep = Sleep()
    monkeypatch.setattr(
        middleware, "RecheckedSession", partial(websocket.RecheckedSession, sleep=sleep)
    )
    return sleep


@pytest.mark.parametrize("silent", [True, False])
async def test_a_revoked_key_ends_its_websocket_also_if_the_client_says_nothing(
    gateway: Deployment, sleep: Sleep, *, silent: bool
) -> None:
    client, other = (Client(gateway, REALTIME, gateway.bearer(who)) for who in ("acme", "globex"))
    tasks = [client.start(), other.start()]
    for each in (client, other):
        assert (await each.hears())["type"] == "websocket.accept"
    gateway.revoke("acme")
    await asyncio.sleep(2 * REMEMBERED_SECONDS)
    if not silent:
        client.say({"type": "websocket.receive", "text": "within five seconds"})
        assert (await client.hears())["text"] == "within five seconds"
    sleep.five_seconds()
    sleep.five_seconds()
    assert await client.hears() == {"type": "websocket.close", "code": 1008}
    await tasks[0]
    assert gateway.app.disconnected
    other.say({"type": "websocket.receive", "text": "still here"})
    assert (await other.hears())["text"] == "still here"
    other.say({"type": "websocket.disconnect", "code": 1000})
    await tasks[1]
    assert client.sent.empty()


async def test_a_credential_that_can_not_be_checked_ends_its_websocket(
    gateway: Deployment, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(gateway, REALTIME, gateway.bearer("acme"))
    task = client.start()
    assert (await client.hears())["type"] == "websocket.accept"

    def away(_presented: str) -> None:
        raise UnavailableError("the registry is away, and has been for long")

    authenticator = gateway.services.authenticator
    monkeypatch.setattr(authenticator, "remembered", lambda _presented: None)
    monkeypatch.setattr(authenticator, "authenticate", away)
    sleep.five_seconds()
    assert await client.hears() == {"type": "websocket.close", "code": 1008}
    await task


async def test_a_message_that_nobody_waited_for_is_not_lost() -> None:
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()

    async def impatient(_scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.01)
        incoming.put_nowait({"type": "websocket.receive", "text": "late"})
        await send(await receive())

    async def allowed() -> bool:
        return True

    await websocket.RecheckedSession(incoming.get, sent.put, allowed).run(impatient, {})
    assert sent.get_nowait()["text"] == "late"
