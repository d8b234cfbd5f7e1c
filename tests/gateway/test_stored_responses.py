"""A stored response belongs to whoever made it: nobody else reads, cancels or continues it."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway_deployment import Deployment
from kvcustody.gateway.response_ids import ResponseIds
from kvcustody.identity.principal import Principal
from kvcustody.namespace import Scope

pytestmark = pytest.mark.unit

RESPONSES = "/v1/responses"


async def made(gateway: Deployment, headers: dict[str, Any]) -> str:
    """The id of a new response."""
    answer, got = await gateway.post(RESPONSES, headers, {"input": "x", "background": True})
    assert answer.status_code == 200
    return str(got["request_id"])


async def statuses(gateway: Deployment, headers: dict[str, Any], response_id: str) -> set[int]:
    """What reading, cancelling, continuing and rendering a response answer."""
    async with gateway.client() as client:
        path = f"{RESPONSES}/{response_id}"
        answers = [
            await client.get(path, headers=headers),
            await client.post(f"{path}/cancel", headers=headers),
            *[
                await client.post(
                    each,
                    json={"input": "y", "previous_response_id": response_id},
                    headers=headers,
                )
                for each in (RESPONSES, f"{RESPONSES}/render", "/v1/chat/completions")
            ],
        ]
    return {answer.status_code for answer in answers}


async def test_whoever_made_a_response_has_it_and_another_tenant_has_not(
    gateway: Deployment,
) -> None:
    acme, globex = gateway.bearer("acme"), gateway.bearer("globex")
    response_id = await made(gateway, acme)
    assert response_id.startswith("resp_")
    seen = len(gateway.app.requests)
    assert await statuses(gateway, globex, response_id) == {404}
    assert len(gateway.app.requests) == seen
    assert await statuses(gateway, acme, response_id) == {200}
    refused = gateway.events("request.refused")
    assert {event["tenant"] for event in refused} == {"globex"}
    assert all(response_id not in str(event) for event in refused)


async def test_a_response_of_another_looks_like_none_at_all(
    gateway: Deployment, client: httpx.AsyncClient
) -> None:
    theirs = await made(gateway, gateway.bearer("acme"))
    none = f"resp_{'0' * 64}"
    answers = [
        await client.get(f"{RESPONSES}/{each}", headers=gateway.bearer("globex"))
        for each in (theirs, none)
    ]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["error"]["code"] == "response_not_found"


@pytest.mark.parametrize(
    "change", [lambda text: text[:-1] + "x", lambda text: text.upper(), lambda text: text + "0"]
)
async def test_a_changed_id_is_nobodys(gateway: Deployment, change: Any) -> None:
    acme = gateway.bearer("acme")
    response_id = await made(gateway, acme)
    assert await statuses(gateway, acme, change(response_id)) == {404}
    assert await statuses(gateway, acme, response_id) == {200}


@pytest.mark.parametrize("value", [7, True, ["resp_1"], {"id": "x"}, ""])
async def test_only_a_name_can_name_a_response(gateway: Deployment, value: Any) -> None:
    fields = {"input": "x", "previous_response_id": value}
    answer, got = await gateway.post(RESPONSES, gateway.bearer("acme"), fields)
    assert (answer.status_code, got) == (404, {})


async def test_a_restarted_gateway_knows_whose_a_response_is(gateway: Deployment) -> None:
    acme, globex = gateway.bearer("acme"), gateway.bearer("globex")
    response_id = await made(gateway, acme)
    gateway.services.close()
    gateway.restart()
    assert await statuses(gateway, acme, response_id) == {200}
    assert await statuses(gateway, globex, response_id) == {404}


async def test_a_data_subjects_response_is_that_subjects(tmp_path: Path) -> None:
    gateway = Deployment(
        tmp_path, ("acme: {scope: tenant", "acme: {scope: subject, act_for_subjects: [bot]")
    )
    bot = gateway.mint(Principal("acme", "bot"))
    anna = {**bot, "X-Custody-Subject": "anna"}
    response_id = await made(gateway, anna)
    assert await statuses(gateway, anna, response_id) == {200}
    assert await statuses(gateway, {**bot, "X-Custody-Subject": "ben"}, response_id) == {404}
    assert await statuses(gateway, bot, response_id) == {404}
    gateway.services.close()


def test_an_id_says_nothing_of_its_owner_and_no_two_are_alike() -> None:
    ids = ResponseIds(b"\x01" * 32)
    acme, globex = Scope("local", "acme"), Scope("local", "globex")
    issued = [ids.issue(acme) for _ in range(100)]
    assert len({text[:32] for text in issued}) == len({text[32:] for text in issued}) == 100
    assert all(ids.belongs(f"resp_{text}", acme) for text in issued)
    assert not any(ids.belongs(f"resp_{text}", globex) for text in issued)
    assert not ResponseIds(b"\x02" * 32).belongs(f"resp_{issued[0]}", acme)
