import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway_deployment import CHAT, Deployment, RecordingApp
from kvcustody.config import load_settings
from kvcustody.gateway import CustodyGateway
from kvcustody.gateway.replies import Receive, Scope, Send
from kvcustody.identity.assertion import Verified
from kvcustody.identity.authenticator import REMEMBERED_SECONDS
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.wiring import build_gateway, open_keys

pytestmark = pytest.mark.unit


async def test_a_request_with_a_key_arrives_with_salt_and_a_valid_assertion(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    answer = await client.post(CHAT, json={"messages": []}, headers=gateway.bearer("acme"))
    assert (answer.status_code, answer.text) == (200, "one two")
    ((scope, body),) = gateway.app.requests
    verified = gateway.verify(scope, body)
    assert isinstance(verified, Verified)
    assert verified.principal == Principal("acme", "default")
    (accepted,) = gateway.events("request.accepted")
    assert accepted["request_id"] == verified.request_id
    assert accepted["tenant"] == "acme"
    assert accepted["key_id"] == gateway.keys["acme"].record.id


async def test_two_tenants_never_share_a_salt_and_one_tenant_always_does(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    for tenant in ("acme", "globex", "acme"):
        await client.post(CHAT, json={}, headers=gateway.bearer(tenant))
    first, second, third = (json.loads(body)["cache_salt"] for _, body in gateway.app.requests)
    assert first == third != second


async def test_what_the_client_says_of_caches_is_dropped_and_audited(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    stolen = json.loads((await _sent(gateway, client, "globex", {}))[1])
    hostile = {**stolen, "request_id": "mine", "vllm_xargs": {"kv_transfer_params": "x"}}
    scope, body = await _sent(gateway, client, "acme", hostile, {"X-Request-Id": "mine"})
    verified = gateway.verify(scope, body)
    assert isinstance(verified, Verified)
    assert verified.principal.tenant == "acme"
    assert stolen["cache_salt"] not in body.decode()
    assert b"mine" not in body
    assert b"mine" not in dict(scope["headers"]).values()
    (removed,) = gateway.events("parameters.removed")
    assert removed["names"] == [
        "kv_transfer_params",
        "cache_salt",
        "vllm_xargs.kv_transfer_params",
        "request_id",
    ]


async def _sent(
    gateway: Deployment,
    client: httpx.AsyncClient,
    tenant: str,
    fields: dict[str, object],
    headers: dict[str, str] | None = None,
) -> tuple[Scope, bytes]:
    answer = await client.post(
        CHAT, json=fields, headers={**gateway.bearer(tenant), **(headers or {})}
    )
    assert answer.status_code == 200
    return gateway.app.requests[-1]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer kvc_0123456789ab_" + "A" * 43},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "\xff\xfe"},
        {"x-api-key": "nonsense"},
    ],
)
async def test_without_a_valid_key_nothing_reaches_the_server(
    gateway: Deployment, client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("POST", "/tokenize")):
        answer = await client.request(method, path, headers=raw)
        assert answer.status_code == 401, path
        challenge = 'Bearer error="invalid_token"' if headers else "Bearer"
        assert answer.headers["www-authenticate"] == challenge
        assert answer.json()["error"]["code"] in {"missing_api_key", "invalid_api_key"}
    assert gateway.app.requests == []
    allowed = await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
    assert allowed.status_code == 200


async def test_two_different_keys_are_no_identity(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    both = {**gateway.bearer("acme"), "x-api-key": gateway.keys["globex"].key}
    assert (await client.post(CHAT, json={}, headers=both)).status_code == 401
    same = {**gateway.bearer("acme"), "x-api-key": gateway.keys["acme"].key}
    assert (await client.post(CHAT, json={}, headers=same)).status_code == 200
    only = {"x-api-key": gateway.keys["acme"].key}
    assert (await client.post("/v1/messages", json={}, headers=only)).status_code == 200


@pytest.mark.parametrize("name", ["Content-Type", "Content-Encoding"])
async def test_a_header_that_says_two_things_of_the_body_is_a_400(
    gateway: Deployment, client: httpx.AsyncClient, name: str
) -> None:
    kinds = {"Content-Type": "application/json", "Content-Encoding": "identity"}
    once = [*gateway.bearer("acme").items(), *kinds.items()]
    assert (await client.post(CHAT, content=b"{}", headers=once)).status_code == 200
    answer = await client.post(CHAT, content=b"{}", headers=[*once, (name, "gzip")])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_header")


async def test_a_key_that_is_revoked_while_its_request_is_sent_is_refused(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    halfway, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"model": '
        halfway.set()
        await go_on.wait()
        yield b'"demo"}'

    async def post(tenant: str) -> int:
        headers = {**gateway.bearer(tenant), "Content-Type": "application/json"}
        return (await client.post(CHAT, content=slowly(), headers=headers)).status_code

    requests = [asyncio.create_task(post(tenant)) for tenant in ("acme", "globex")]
    await halfway.wait()
    gateway.revoke("acme")
    await asyncio.sleep(2 * REMEMBERED_SECONDS)
    go_on.set()
    assert [await request for request in requests] == [401, 200]


async def test_no_credential_goes_on_to_an_open_route(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    for method, path in (("GET", "/health"), ("OPTIONS", CHAT)):
        await client.request(method, path, headers=gateway.bearer("acme"))
        scope, _ = gateway.app.requests[-1]
        assert not {name for name, _ in scope["headers"]} & {b"authorization", b"x-api-key"}


async def test_the_key_goes_no_further_than_the_gateway(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
    await client.get("/v1/models", headers=gateway.bearer("acme"))
    for scope, body in gateway.app.requests:
        names = {name for name, _ in scope["headers"]}
        assert not names & {b"authorization", b"x-api-key"}
        assert b"kvc_" not in body
    gateway.services.close()
    trail = b"".join(path.read_bytes() for path in gateway.settings.audit.path.iterdir())
    secret = gateway.keys["acme"].key.split("_", 2)[2]
    assert secret.encode() not in trail


async def test_a_flood_of_bad_keys_is_one_event_a_client_and_interval(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    for _ in range(20):
        await client.post(CHAT, headers={"Authorization": "Bearer x"})
    (failed,) = gateway.events("auth.failed")
    assert failed["reason"] == "invalid-key"


async def test_unknown_routes_are_refused_with_any_key(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    for path in ("/v1/responses/resp_1", "/v1/files", "/v1/completions/", "/new"):
        answer = await client.post(path, json={}, headers=gateway.bearer("acme"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "route_not_allowed")
    assert gateway.app.requests == []
    assert (await client.get("/health")).status_code == 200


async def test_a_body_that_is_not_one_json_object_is_a_400(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    headers = {**gateway.bearer("acme"), "Content-Type": "application/json"}
    answer = await client.post(CHAT, content=b'{"a": 1, "a": 2}', headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_body")
    headers["Content-Type"] = "text/plain"
    answer = await client.post(CHAT, content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "json_required")
    assert gateway.app.requests == []


async def test_a_body_beyond_the_limit_is_a_413(
    gateway: Deployment, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.gateway.request._LARGEST_BODY_BYTES", 100)
    headers = gateway.bearer("acme")
    answer = await client.post(CHAT, json={"prompt": "x" * 101}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert (await client.post(CHAT, json={"prompt": "x"}, headers=headers)).status_code == 200


async def test_a_body_that_never_ends_is_a_408(
    gateway: Deployment, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.gateway.request._BODY_SECONDS", 0.05)
    headers = {**gateway.bearer("acme"), "Content-Type": "application/json"}
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        await ended.wait()

    answer = await client.post(CHAT, content=endless(), headers=headers)
    ended.set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_too_slow")
    assert (await client.post(CHAT, json={}, headers=headers)).status_code == 200
    assert len(gateway.app.requests) == 1


async def test_a_tenant_that_left_custody_yaml_is_refused(tmp_path: Path) -> None:
    gateway = Deployment(tmp_path)
    config = tmp_path / "custody.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text("\n".join(line for line in text.splitlines() if "globex: {" not in line))
    policy = tmp_path / "policies" / "policy.csv"
    policy.write_text(policy.read_text(encoding="utf-8").replace("g, globex", "# g, globex"))
    gateway.services.close()
    services = build_gateway(load_settings(config))
    gateway.middleware = CustodyGateway(gateway.app, services)
    async with gateway.client() as client:
        answer = await client.post(CHAT, json={}, headers=gateway.bearer("globex"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "unknown_tenant")
        assert (await client.post(CHAT, json={}, headers=gateway.bearer("acme"))).is_success
    services.close()


async def test_anonymous_callers_are_the_configured_tenant_but_a_bad_key_is_not(
    tmp_path: Path,
) -> None:
    gateway = Deployment(tmp_path, ("anonymous: deny", "anonymous: globex"))
    async with gateway.client() as client:
        assert (await client.post(CHAT, json={})).status_code == 200
        bad = await client.post(CHAT, json={}, headers={"Authorization": "Bearer x"})
        assert bad.status_code == 401
    verified = gateway.verify(*gateway.app.requests[0])
    assert isinstance(verified, Verified)
    assert verified.principal == Principal("globex", "anonymous")
    gateway.services.close()


async def test_while_the_registry_fails_requests_get_a_503_and_no_custody(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    gateway.lose_registry()
    answer = await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "identity_unavailable")
    assert gateway.app.requests == []
    assert (await client.get("/health")).status_code == 200


async def test_a_client_that_leaves_is_noticed_by_the_server_behind(
    gateway: Deployment,
) -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{}", "more_body": False},
        {"type": "http.disconnect"},
    ]
    seen: list[str] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(_message: Any) -> None:
        raise AssertionError("nothing is to be sent")

    headers = [
        (b"authorization", f"Bearer {gateway.keys['acme'].key}".encode()),
        (b"content-type", b"application/json"),
    ]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
    await CustodyGateway(app, gateway.services)(scope, receive, send)
    assert seen == ["http.request", "http.disconnect"]


@pytest.mark.parametrize(
    ("connector", "status"), [("CustodyConnector", 200), ("OffloadingConnector", 503), (None, 503)]
)
async def test_a_server_without_the_custody_connector_serves_nobody(
    gateway: Deployment, connector: str | None, status: int
) -> None:
    """As vLLM's application holds it: app.state.vllm_config.kv_transfer_config.kv_connector."""
    transfer = SimpleNamespace(kv_connector=connector) if connector else None
    state = SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=transfer))
    server = SimpleNamespace(state=state)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await gateway.middleware({**scope, "app": server}, receive, send)

    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
        assert (await client.get("/health")).status_code == 200
    assert answer.status_code == status


async def test_the_root_path_of_a_proxy_is_not_part_of_the_route(
    gateway: Deployment,
) -> None:
    transport = httpx.ASGITransport(app=gateway.middleware, root_path="/llm")
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as proxied:
        ok = await proxied.post(f"/llm{CHAT}", json={}, headers=gateway.bearer("acme"))
        refused = await proxied.post("/llm/reset_prefix_cache", headers=gateway.bearer("acme"))
    assert (ok.status_code, refused.status_code) == (200, 403)


async def test_a_wrong_configuration_stops_the_server_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCUSTODY_CONFIG", str(tmp_path / "absent.yaml"))
    sent: list[Any] = []
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})

    async def send(message: Any) -> None:
        sent.append(message)

    await CustodyGateway(RecordingApp())({"type": "lifespan"}, incoming.get, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "absent.yaml: no such file" in sent[0]["message"]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=CustodyGateway(RecordingApp())),
        base_url="http://gateway",
    ) as client:
        assert (await client.post(CHAT, json={})).status_code == 503


async def test_an_admin_route_opens_for_an_admins_key_alone(tmp_path: Path) -> None:
    gateway = Deployment(tmp_path)
    admin = gateway.mint(Principal("acme", "ops"), admin=True)
    async with gateway.client() as client:
        answers = [
            await client.post("/reset_prefix_cache", headers=headers)
            for headers in ({}, gateway.bearer("acme"), admin)
        ]
    assert [answer.status_code for answer in answers] == [401, 403, 200]
    assert answers[1].json()["error"]["code"] == "admin_required"
    assert len(gateway.app.requests) == 1
    (refused,) = gateway.events("request.refused")
    assert (refused["tenant"], refused["reason"]) == ("acme", "not-admin")


async def test_a_keys_use_is_noted(tmp_path: Path) -> None:
    gateway = Deployment(tmp_path)
    async with gateway.client() as client:
        await client.get("/v1/models", headers=gateway.bearer("acme"))
    gateway.services.close()
    with closing(open_keys(gateway.settings)) as keys:
        used = {key.principal.tenant: key.last_used for key in KeyStore(keys.registry).list()}
    assert used["acme"] is not None
    assert used["globex"] is None
