"""A deployment's gateway in front of a test double for the server, for the tests of the gateway."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from kvcustody.audit import read_events
from kvcustody.config import load_settings
from kvcustody.deployment import init_deployment
from kvcustody.gateway import CustodyGateway
from kvcustody.gateway.replies import Receive, Scope, Send
from kvcustody.gateway.services import GatewayServices
from kvcustody.identity.assertion import ASSERTION_PARAMETER, AssertionVerifier
from kvcustody.identity.authenticator import REMEMBERED_SECONDS
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.sealing import ServiceKey
from kvcustody.wiring import build_gateway, open_keys

CHAT = "/v1/chat/completions"


class RecordingApp:
    """A test double for the server behind: keeps what reaches it, and answers in two parts."""

    def __init__(self) -> None:
        self.requests: list[tuple[Scope, bytes]] = []
        self.disconnected = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._echo(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.requests.append((scope, body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async def _echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((scope, b""))
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        self.disconnected = True


class Clock:
    """Monotonic seconds that tests turn on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Deployment:
    """A real deployment of `kvcustody init`, with its gateway in front of a recording app."""

    def __init__(self, directory: Path, *changes: tuple[str, str]) -> None:
        self.directory = directory
        config = directory / "custody.yaml"
        self.keys = {key.record.principal.tenant: key for key in init_deployment(config)}
        text = config.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        config.write_text(text, encoding="utf-8")
        self.settings = load_settings(config)
        self.app = RecordingApp()
        self.clock = Clock()
        self.restart()

    def restart(self) -> None:
        self.services: GatewayServices = build_gateway(self.settings, self.clock)
        self.middleware = CustodyGateway(self.app, self.services)

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.middleware)
        return httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def events(self, name: str) -> list[dict[str, Any]]:
        self.services.close()
        found = read_events(self.settings.audit.path)
        return [event for event in found if event["event"] == name]

    def bearer(self, tenant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[tenant].key}"}

    def mint(self, principal: Principal, **rights: Any) -> dict[str, str]:
        """Headers with a new key."""
        with closing(open_keys(self.settings)) as keys:
            minted = KeyStore(keys.registry).mint(principal, expires=None, **rights)
        return {"Authorization": f"Bearer {minted.key}"}

    def revoke(self, tenant: str) -> None:
        with closing(open_keys(self.settings)) as keys:
            assert KeyStore(keys.registry).revoke(self.keys[tenant].record.id)
        self.forget()

    def lose_registry(self) -> None:
        """Make the registry fail from now on."""
        (self.directory / "state" / "registry.sqlite").unlink()
        self.services.authenticator._keys._registry.close()  # so that it is opened anew

    def forget(self) -> None:
        """Let the time pass for which a credential is remembered."""
        self.clock.now += REMEMBERED_SECONDS

    async def post(
        self, path: str, headers: dict[str, str], fields: dict[str, Any]
    ) -> tuple[httpx.Response, dict[str, Any]]:
        """The answer, and the body that the server got (empty if it got none)."""
        before = len(self.app.requests)
        async with self.client() as client:
            answer = await client.post(path, json=fields, headers=headers)
        if len(self.app.requests) == before:
            return answer, {}
        got = json.loads(self.app.requests[-1][1])
        assert isinstance(got, dict)
        return answer, got

    def verify(self, scope: Scope, body: bytes) -> object:
        """What the connector would find in a request that reached the server."""
        fields = json.loads(body)
        request_id = dict(scope["headers"])[b"x-request-id"].decode()
        keys = open_keys(self.settings)
        verifier = AssertionVerifier(keys.keyring.service_key(ServiceKey.ASSERTION), "local")
        found = verifier.verify(
            fields["kv_transfer_params"][ASSERTION_PARAMETER],
            request_id=f"chatcmpl-{request_id}-00ff",
            cache_salt=fields["cache_salt"],
        )
        keys.close()
        return found
