"""The end of the audit stream comes before the server hears that it may end the process."""

import asyncio

import pytest

from gateway_deployment import Deployment
from kvcustody.audit import verify_directory
from kvcustody.gateway import CustodyGateway
from kvcustody.gateway.replies import Message, Receive, Scope, Send
from kvcustody.wiring import audit_signing_key, open_keys

pytestmark = pytest.mark.unit


async def application(_scope: Scope, receive: Receive, send: Send) -> None:
    for part in ("startup", "shutdown"):
        assert (await receive())["type"] == f"lifespan.{part}"
        await send({"type": f"lifespan.{part}.complete"})


async def test_the_trail_has_ended_when_the_server_hears_of_the_end(gateway: Deployment) -> None:
    gateway.services.audit.record("engine.started", action="start", outcome="ok")
    keys = open_keys(gateway.settings)
    public_key = audit_signing_key(keys.keyring).public_key()
    keys.close()
    ended: list[bool] = []

    async def send(_message: Message) -> None:
        report = verify_directory(gateway.settings.audit.path, public_key)
        ended.append(report.notes == ())

    incoming: asyncio.Queue[Message] = asyncio.Queue()
    for part in ("startup", "shutdown"):
        incoming.put_nowait({"type": f"lifespan.{part}"})
    await CustodyGateway(application, gateway.services)({"type": "lifespan"}, incoming.get, send)
    assert ended == [False, True]
