"""What reaches the server from each kind of endpoint, and what a client may ask for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway_deployment import CHAT, Deployment
from kvcustody.identity.assertion import Verified
from kvcustody.identity.principal import Principal
from kvcustody.policy import SharingRefusal

pytestmark = pytest.mark.unit

SUBJECTS = ("acme: {scope: tenant", "acme: {scope: subject, act_for_subjects: [bot]")


def verified(gateway: Deployment) -> Verified:
    found = gateway.verify(*gateway.app.requests[-1])
    assert isinstance(found, Verified)
    return found


@pytest.mark.parametrize(
    "path",
    [CHAT, "/v1/chat/completions/batch", "/v1/completions", "/v1/messages", "/cohere/v2/chat"],
)
async def test_what_generates_gets_a_salt_and_an_assertion(gateway: Deployment, path: str) -> None:
    answer, got = await gateway.post(path, gateway.bearer("acme"), {"cache_salt": "theirs"})
    assert answer.status_code == 200
    assert verified(gateway).principal == Principal("acme", "default")
    assert got["cache_salt"] == gateway.services.salts(Principal("acme", "default"))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/score", "/generative_scoring"])
async def test_what_takes_no_assertion_gets_a_ticket_for_its_salt(
    gateway: Deployment, path: str
) -> None:
    _, got = await gateway.post(path, gateway.bearer("acme"), {"cache_salt": "theirs"})
    assert got.keys() == {"cache_salt"}
    request_id = dict(gateway.app.requests[-1][0]["headers"])[b"x-request-id"].decode()
    opened = gateway.services.tickets.open(got["cache_salt"], f"embd-{request_id}-0")
    assert opened == (gateway.services.salts(Principal("acme", "default")), request_id)
    assert gateway.services.tickets.open(got["cache_salt"], f"embd-{'0' * 32}-0") is None


async def test_each_request_of_a_beam_search_carries_a_ticket(gateway: Deployment) -> None:
    fields = {"prompt": "x", "use_beam_search": True}
    _, got = await gateway.post("/v1/completions", gateway.bearer("acme"), fields)
    assert got.keys() == {"prompt", "use_beam_search", "cache_salt"}
    request_id = dict(gateway.app.requests[-1][0]["headers"])[b"x-request-id"].decode()
    engine_id = f"cmpl-{request_id}-0-{'f' * 16}-beam-3"
    assert gateway.services.tickets.open(got["cache_salt"], engine_id) is not None


async def test_what_only_renders_loses_the_clients_word_and_learns_no_salt(
    gateway: Deployment,
) -> None:
    """Its answer shows salt and parameters of the request."""
    fields = {"cache_salt": "theirs", "kv_transfer_params": {"a": 1}, "messages": []}
    path = "/v1/chat/completions/render"
    answer, got = await gateway.post(path, gateway.bearer("acme"), fields)
    assert (answer.status_code, got) == (200, {"messages": []})


async def test_pictures_are_sent_and_not_named_by_a_hash(gateway: Deployment) -> None:
    path, headers = "/inference/v1/generate", gateway.bearer("acme")
    named = {"token_ids": [1], "features": {"mm_hashes": {"image": ["globex-contract"]}}}
    answer, got = await gateway.post(path, headers, named)
    assert (answer.status_code, got) == (400, {})
    answer, got = await gateway.post(path, headers, {"token_ids": [1]})
    assert answer.status_code == 200
    assert verified(gateway).principal.tenant == "acme"
    answer, _ = await gateway.post("/invocations", headers, {"requestType": "NEW_SESSION"})
    assert answer.status_code == 400


async def test_a_client_that_chooses_a_cache_is_refused_where_the_operator_wants_it(
    tmp_path: Path,
) -> None:
    change = ("anonymous: deny", "anonymous: deny, client_parameters: refuse")
    gateway = Deployment(tmp_path, change)
    headers = gateway.bearer("acme")
    for hostile in (
        {"cache_salt": "x"},
        {"kv_transfer_params": {"max_load_tokens": 1}},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
    ):
        answer, got = await gateway.post(CHAT, headers, hostile)
        assert (answer.status_code, got) == (400, {})
        assert "leave out " in answer.json()["error"]["message"]
    answer, _ = await gateway.post(CHAT, headers, {"messages": [], "request_id": "mine"})
    assert answer.status_code == 200
    gateway.services.close()


async def test_an_allowed_parameter_goes_on_beside_the_assertion(tmp_path: Path) -> None:
    change = ("anonymous: deny", "anonymous: deny, allowed_parameters: [max_load_tokens]")
    gateway = Deployment(tmp_path, change)
    sent = {"kv_transfer_params": {"max_load_tokens": 128, "remote_host": "10.0.0.1"}}
    _, got = await gateway.post(CHAT, gateway.bearer("acme"), sent)
    assert got["kv_transfer_params"].keys() == {"kvcustody", "max_load_tokens"}
    assert got["kv_transfer_params"]["max_load_tokens"] == 128
    (removed,) = gateway.events("parameters.removed")
    assert removed["names"] == ["kv_transfer_params"]


def named(subject: str | None) -> Principal:
    return Principal("acme", "bot", subject)


@pytest.mark.parametrize(
    ("headers", "fields", "subject"),
    [
        ({}, {}, None),
        ({"X-Custody-Subject": "anna"}, {}, "anna"),
        ({"X-Custody-Subject": "Zoë".encode()}, {}, "Zoë"),
        ({"X-Custody-Subject": "Zoe\u0308".encode()}, {}, "Zoë"),
        ({}, {"user": "anna"}, "anna"),
        ({}, {"safety_identifier": "ben", "user": "anna"}, "ben"),
        ({}, {"metadata": {"user_id": "carla"}}, "carla"),
        ({"X-Custody-Subject": "anna"}, {"user": "ben"}, "anna"),
        ({}, {"user": ""}, None),
        ({}, {"user": 7, "metadata": []}, None),
    ],
)
async def test_a_workload_that_may_names_the_data_subject(
    tmp_path: Path, headers: dict[str, Any], fields: dict[str, Any], subject: str | None
) -> None:
    gateway = Deployment(tmp_path, SUBJECTS)
    bot = gateway.mint(named(None))
    answer, got = await gateway.post(CHAT, {**bot, **headers}, fields)
    assert answer.status_code == 200
    assert verified(gateway).principal == named(subject)
    if subject is None:
        _, again = await gateway.post(CHAT, {**bot, **headers}, fields)
        assert got["cache_salt"] != again["cache_salt"], "whom it is about, nobody knows"
    else:
        assert got["cache_salt"] == gateway.services.salts(named(subject))
    assert b"x-custody-subject" not in dict(gateway.app.requests[-1][0]["headers"])
    gateway.services.close()


async def test_each_data_subject_has_a_salt_of_its_own(tmp_path: Path) -> None:
    gateway = Deployment(tmp_path, SUBJECTS)
    salts = {gateway.services.salts(named(subject)) for subject in ("anna", "ben", None)}
    assert len(salts) == 3
    gateway.services.close()


async def test_a_workload_that_may_not_name_subjects_names_none(tmp_path: Path) -> None:
    gateway = Deployment(tmp_path, SUBJECTS)
    plain = gateway.bearer("acme")
    answer, got = await gateway.post(CHAT, {**plain, "X-Custody-Subject": "anna"}, {})
    assert (answer.status_code, got) == (403, {})
    assert answer.json()["error"]["code"] == "subject_not_allowed"
    await gateway.post(CHAT, plain, {"user": "anna"})  # which has other uses
    assert verified(gateway).principal == Principal("acme", "default")
    gateway.services.close()


async def test_a_key_of_one_subject_acts_for_no_other(tmp_path: Path) -> None:
    gateway = Deployment(tmp_path, SUBJECTS)
    anna = gateway.mint(named("anna"))
    answer, _ = await gateway.post(CHAT, {**anna, "X-Custody-Subject": "ben"}, {})
    assert answer.status_code == 403
    answer, _ = await gateway.post(CHAT, anna, {"user": "ben"})
    assert answer.status_code == 403
    answer, _ = await gateway.post(CHAT, {**anna, "X-Custody-Subject": "anna"}, {})
    assert answer.status_code == 200
    assert verified(gateway).principal == named("anna")
    gateway.services.close()


@pytest.mark.parametrize("value", [b"\xff", b"", b"a\tb", b"x" * 300, b"\xe2\x80\x8b"])
async def test_a_subject_that_can_not_be_read_is_a_400(tmp_path: Path, value: bytes) -> None:
    gateway = Deployment(tmp_path, SUBJECTS)
    bot = gateway.mint(named(None))
    headers: dict[str, Any] = {**bot, "X-Custody-Subject": value}
    answer, got = await gateway.post(CHAT, headers, {})
    assert (answer.status_code, got) == (400, {})
    gateway.services.close()


GROUPS = "[{group: manuals, tenants: [acme, globex]}, {group: other, tenants: [globex]}]"


def sharing(directory: Path, *changes: tuple[str, str]) -> Deployment:
    return Deployment(
        directory, ("\nauthorization:", f"\nsharing: {GROUPS}\nauthorization:"), *changes
    )


async def test_members_of_a_group_get_one_salt_if_they_ask_for_it(tmp_path: Path) -> None:
    gateway = sharing(tmp_path)
    salts = []
    for tenant in ("acme", "globex"):
        for headers in ({}, {"X-Custody-Share": "manuals"}):
            _, got = await gateway.post(CHAT, {**gateway.bearer(tenant), **headers}, {})
            salts.append(got["cache_salt"])
    assert verified(gateway).group == "manuals"
    acme, shared, globex, also_shared = salts
    assert shared == also_shared
    assert len({acme, globex, shared}) == 3
    groups = [event["group"] for event in gateway.events("request.accepted")]
    assert groups == [None, "manuals", None, "manuals"]


async def test_a_key_may_ask_for_a_group_and_a_header_for_another(tmp_path: Path) -> None:
    gateway = sharing(tmp_path)
    member = gateway.mint(Principal("globex", "chat"), group="manuals")
    await gateway.post(CHAT, member, {})
    assert verified(gateway).group == "manuals"
    await gateway.post(CHAT, {**member, "X-Custody-Share": "other"}, {})
    assert verified(gateway).group == "other"
    gateway.services.close()


@pytest.mark.parametrize(
    ("group", "reason"),
    [("nonsense", SharingRefusal.UNKNOWN_GROUP), ("other", SharingRefusal.NOT_A_MEMBER)],
)
async def test_who_is_no_member_keeps_its_own_namespace_and_the_audit_says_why(
    tmp_path: Path, group: str, reason: SharingRefusal
) -> None:
    gateway = sharing(tmp_path)
    headers = {**gateway.bearer("acme"), "X-Custody-Share": group}
    answer, got = await gateway.post(CHAT, headers, {})
    assert answer.status_code == 200
    assert verified(gateway).group is None
    assert got["cache_salt"] == gateway.services.salts(Principal("acme", "default"))
    (refused,) = gateway.events("sharing.refused")
    assert refused["reason"] == reason
    assert refused["group"] in {"other", None}


async def test_a_denial_in_a_changed_policy_ends_sharing_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.policy.in_force._POLL_SECONDS", 0.02)
    gateway = sharing(tmp_path)

    async def groups() -> list[str | None]:
        found = []
        for tenant in ("acme", "globex"):
            headers = {**gateway.bearer(tenant), "X-Custody-Share": "manuals"}
            await gateway.post(CHAT, headers, {})
            found.append(verified(gateway).group)
        return found

    assert await groups() == ["manuals", "manuals"]
    policy = tmp_path / "policies" / "policy.csv"
    text = policy.read_text(encoding="utf-8")
    policy.write_text(f"{text}p, acme, local, manuals, share, deny\n", encoding="utf-8")
    for _ in range(1_000):
        if (found := await groups()) == [None, "manuals"]:
            break
        await asyncio.sleep(0.02)
    assert found == [None, "manuals"]
    refused = gateway.events("sharing.refused")
    assert {(each["tenant"], each["reason"]) for each in refused} == {
        ("acme", SharingRefusal.POLICY_DENIED)
    }


async def test_what_is_about_a_data_subject_is_not_shared(tmp_path: Path) -> None:
    gateway = sharing(tmp_path, SUBJECTS)
    bot = {**gateway.mint(named(None)), "X-Custody-Share": "manuals"}
    await gateway.post(CHAT, bot, {})
    assert verified(gateway).group == "manuals"
    await gateway.post(CHAT, bot, {"user": "anna"})
    assert verified(gateway).group is None
    assert verified(gateway).principal == named("anna")
    gateway.services.close()
