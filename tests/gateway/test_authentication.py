"""Credentials at the gateway: whom a key or token lets act, and what becomes of bad ones."""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_line import Run
from gateway_deployment import CHAT, Deployment
from kvcustody.audit import read_events
from kvcustody.gateway import CustodyGateway
from kvcustody.identity.assertion import Verified
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.wiring import build_gateway, open_keys
from token_issuer import IssuerKey, key_set

pytestmark = pytest.mark.unit

ISSUER_KEY, STRANGER = IssuerKey("EdDSA", "k-1"), IssuerKey("EdDSA", "k-1")
_SECTION = (
    "anonymous: deny, jwt: {issuer: 'https://idp.example', audience: kvcustody, jwks: jwks.json, "
    "algorithms: [EdDSA], claims: {tenant: tenant, workload: azp, subject: sub, "
    "group: custody.group, admin: custody.admin}}"
)
JWT = ("anonymous: deny", _SECTION)


@pytest.fixture
def federated(tmp_path: Path) -> Iterator[Deployment]:
    """A gateway that takes tokens of an identity provider, too."""
    folder = tmp_path / "federated"
    folder.mkdir(mode=0o700)
    (folder / "jwks.json").write_bytes(key_set(ISSUER_KEY))
    gateway = Deployment(folder, JWT)
    yield gateway
    gateway.services.close()


@pytest.fixture
async def client(federated: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    async with federated.client() as client:
        yield client


def token(key: IssuerKey = ISSUER_KEY, **changes: Any) -> dict[str, str]:
    """Headers with a token that is good now, but for the changes."""
    now = time.time()
    signed = key.sign({"iat": now, "exp": now + 60, **changes})
    return {"Authorization": f"Bearer {signed}"}


def trail(gateway: Deployment) -> str:
    gateway.services.close()
    return b"".join(path.read_bytes() for path in gateway.settings.audit.path.iterdir()).decode()


async def test_a_request_with_a_token_is_for_whom_its_claims_name(
    federated: Deployment, client: httpx.AsyncClient
) -> None:
    headers = token()
    assert (await client.post(CHAT, json={}, headers=headers)).status_code == 200
    ((scope, body),) = federated.app.requests
    verified = federated.verify(scope, body)
    assert isinstance(verified, Verified)
    assert verified.principal == Principal("acme", "chat", "anna")
    assert b"authorization" not in dict(scope["headers"])
    (accepted,) = federated.events("request.accepted")
    assert (accepted["tenant"], accepted["workload"]) == ("acme", "chat")
    assert accepted["key_id"] == "jwt:t-1"
    for part in headers["Authorization"].removeprefix("Bearer ").split("."):
        assert part not in trail(federated)


@pytest.mark.parametrize(
    ("make", "reason", "expected"),
    [  # made in the test: a token that is made when pytest collects has expired by then
        (lambda: token(STRANGER), "invalid-token", (401, "invalid_token")),
        (lambda: token(exp=1), "expired-token", (401, "invalid_token")),
        (lambda: token(iss="https://evil.example"), "wrong-issuer", (401, "invalid_token")),
        (lambda: token(aud="other"), "wrong-audience", (401, "invalid_token")),
        (lambda: token(azp=7), "unmapped-claims", (401, "invalid_token")),
        (lambda: token(tenant="initech"), "unknown-tenant", (403, "unknown_tenant")),
        (lambda: {"Authorization": "Bearer a.b.c"}, "invalid-token", (401, "invalid_token")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_token_that_is_no_good_is_refused_and_audited_without_its_content(
    federated: Deployment,
    client: httpx.AsyncClient,
    make: Callable[[], dict[str, str]],
    reason: str,
    expected: tuple[int, str],
) -> None:
    answer = await client.post(CHAT, json={}, headers=make())
    assert (answer.status_code, answer.json()["error"]["code"]) == expected
    challenge = 'Bearer error="invalid_token"' if answer.status_code == 401 else None
    assert answer.headers.get("www-authenticate") == challenge
    assert federated.app.requests == []
    assert (await client.post(CHAT, json={}, headers=token())).status_code == 200
    (failed,) = federated.events("auth.failed")
    assert failed["reason"] == reason
    genuine = reason in {"expired-token", "unmapped-claims", "unknown-tenant"} or "wrong" in reason
    assert failed["key_id"] == ("jwt:t-1" if genuine else None)
    assert "evil" not in trail(federated)


async def test_a_flood_of_bad_tokens_is_one_event(
    federated: Deployment, client: httpx.AsyncClient
) -> None:
    for number in range(20):
        await client.post(CHAT, json={}, headers=token(STRANGER, jti=f"t-{number}"))
    assert len(federated.events("auth.failed")) == 1


async def test_a_token_about_one_person_acts_for_no_other(client: httpx.AsyncClient) -> None:
    other = {**token(), "X-Custody-Subject": "bert"}
    answer = await client.post(CHAT, json={}, headers=other)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "subject_not_allowed")
    own = {**token(), "X-Custody-Subject": "anna"}
    assert (await client.post(CHAT, json={}, headers=own)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/reset_prefix_cache"), ("GET", "/server_info"), ("DELETE", "/adapters/a")],
)
async def test_administrative_routes_open_to_administrators_alone(
    federated: Deployment, client: httpx.AsyncClient, method: str, path: str
) -> None:
    acme = Principal("acme", "ops")
    plain = [federated.mint(acme), token(), token(custody={"admin": "true"})]
    for headers in plain:
        answer = await client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_required")
    assert federated.app.requests == []
    admins = [federated.mint(acme, admin=True), token(custody={"admin": True})]
    for headers in admins:
        assert (await client.request(method, path, headers=headers)).status_code == 200
    assert len(federated.app.requests) == 2
    # Two are of one token.
    assert len(federated.events("request.refused")) == 2
    accepted = federated.events("request.accepted")
    assert [event["action"] for event in accepted] == ["administer", "administer"]


async def test_an_administrators_key_is_no_way_to_another_tenant(
    federated: Deployment, client: httpx.AsyncClient
) -> None:
    salts = []
    admin = federated.mint(Principal("globex", "ops"), admin=True)
    for headers in (federated.bearer("acme"), admin, federated.bearer("globex")):
        await client.post(CHAT, json={}, headers=headers)
        salts.append(json.loads(federated.app.requests[-1][1])["cache_salt"])
    assert salts[0] != salts[1] == salts[2]


async def test_a_revoked_key_is_refused_a_moment_later_and_another_is_not(
    gateway: Deployment,
) -> None:
    async with gateway.client() as client:
        for tenant in ("acme", "globex"):
            answer = await client.post(CHAT, json={}, headers=gateway.bearer(tenant))
            assert answer.status_code == 200
        gateway.revoke("acme")
        answer = await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        answer = await client.post(CHAT, json={}, headers=gateway.bearer("globex"))
        assert answer.status_code == 200
    (failed,) = gateway.events("auth.failed")
    assert (failed["reason"], failed["key_id"]) == (
        "revoked-key",
        gateway.keys["acme"].record.id,
    )


async def test_when_token_revoke_returns_no_gateway_takes_the_key(
    gateway: Deployment, run: Run
) -> None:
    services = build_gateway(gateway.settings)  # by the real clock
    gateway.middleware = CustodyGateway(gateway.app, services)
    key_id = gateway.keys["acme"].record.id
    config = gateway.directory / "custody.yaml"
    async with gateway.client() as client:
        for tenant in ("acme", "globex"):
            answer = await client.post(CHAT, json={}, headers=gateway.bearer(tenant))
            assert answer.status_code == 200
        assert run("token", "revoke", key_id, "-c", config).code == 0
        answer = await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
        assert answer.status_code == 401
        answer = await client.post(CHAT, json={}, headers=gateway.bearer("globex"))
        assert answer.status_code == 200
    services.close()


async def test_while_the_registry_is_away_known_callers_are_served_and_no_others(
    gateway: Deployment,
) -> None:
    async with gateway.client() as client:
        known, unknown = gateway.bearer("acme"), gateway.bearer("globex")
        assert (await client.post(CHAT, json={}, headers=known)).status_code == 200
        gateway.lose_registry()
        gateway.clock.now += 299
        assert (await client.post(CHAT, json={}, headers=known)).status_code == 200
        assert (await client.post(CHAT, json={}, headers=unknown)).status_code == 503
        gateway.clock.now += 1
        assert (await client.post(CHAT, json={}, headers=known)).status_code == 503


async def test_without_the_providers_keys_tokens_get_a_503_and_keys_work(
    federated: Deployment, client: httpx.AsyncClient
) -> None:
    (federated.directory / "jwks.json").unlink()
    answer = await client.post(CHAT, json={}, headers=token())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "identity_unavailable")
    answer = await client.post(CHAT, json={}, headers=federated.bearer("acme"))
    assert answer.status_code == 200


async def test_the_time_of_a_keys_use_is_written_when_the_gateway_ends_at_the_latest(
    gateway: Deployment,
) -> None:
    before = time.time()
    async with gateway.client() as client:
        await client.post(CHAT, json={}, headers=gateway.bearer("acme"))
    gateway.services.close()
    keys = open_keys(gateway.settings)
    used = {key.principal.tenant: key.last_used for key in KeyStore(keys.registry).list()}
    keys.close()
    assert used["acme"] is not None
    assert before <= used["acme"] <= time.time()
    assert used["globex"] is None


@pytest.mark.parametrize("share", ["key", "token"])
async def test_a_credential_may_ask_for_a_sharing_group_and_the_policy_decides(
    tmp_path: Path, share: str
) -> None:
    (tmp_path / "jwks.json").write_bytes(key_set(ISSUER_KEY))
    gateway = Deployment(
        tmp_path,
        JWT,
        ("tenants:\n", "sharing: [{group: manuals, tenants: [acme]}]\ntenants:\n"),
    )
    policy = tmp_path / "policies" / "policy.csv"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(text + "\np, acme, local, manuals, share, allow\n", encoding="utf-8")
    gateway.services.close()
    gateway.restart()
    salts = []
    async with gateway.client() as client:
        for tenant in ("acme", "globex"):
            for group in ("manuals", None):
                if share == "key":
                    headers = gateway.mint(Principal(tenant, "chat"), group=group)
                else:
                    headers = token(tenant=tenant, custody={"group": group})
                assert (await client.post(CHAT, json={}, headers=headers)).status_code == 200
                salts.append(json.loads(gateway.app.requests[-1][1])["cache_salt"])
    assert len({*salts}) == 3, "acme's group, acme, and globex both times"
    assert salts[2] == salts[3]
    gateway.services.close()
    (refused,) = [
        event
        for event in read_events(gateway.settings.audit.path)
        if event["event"] == "sharing.refused"
    ]
    assert (refused["tenant"], refused["reason"]) == ("globex", "not-a-member")
