"""Two tenants send one prompt to every generating endpoint: neither has the other's cache."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from served_deployment import BLOCK, CHAT, Served, cached_tokens, chat_fields, full_blocks, text_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]

Fields = dict[str, Any]


def completion_fields(prompt: str) -> Fields:
    return {"model": "demo", "prompt": prompt, "max_tokens": 4, "temperature": 0}


# Of the two tenants' four requests for one prompt, the engine finds in its caches what one request
# finds in itself (a beam search repeats its prompt); when repeated, at least a block more.
ENDPOINTS: dict[str, tuple[str, Callable[[str], Fields]]] = {
    "chat": (CHAT, chat_fields),
    "chat, several answers": (
        CHAT,
        lambda prompt: chat_fields(prompt) | {"n": 2, "temperature": 1},
    ),
    "chat, beam search": (
        CHAT,
        lambda prompt: chat_fields(prompt) | {"use_beam_search": True, "n": 2},
    ),
    "chat, batch": (
        f"{CHAT}/batch",
        lambda prompt: chat_fields(prompt) | {"messages": 2 * [chat_fields(prompt)["messages"]]},
    ),
    "completion": ("/v1/completions", completion_fields),
    "completion, several prompts": (
        "/v1/completions",
        lambda prompt: completion_fields(prompt) | {"prompt": [prompt, prompt]},
    ),
    "completion, beam search": (
        "/v1/completions",
        lambda prompt: completion_fields(prompt) | {"use_beam_search": True, "n": 2},
    ),
    "response": (
        "/v1/responses",
        lambda prompt: {"model": "demo", "input": prompt, "max_output_tokens": 4},
    ),
    "message": ("/v1/messages", chat_fields),
    "tokens": (
        "/inference/v1/generate",
        lambda prompt: {
            "model": "demo",
            "token_ids": [4 + ord(letter) % 200 for letter in prompt[:500]],
            "sampling_params": {"max_tokens": 4},
        },
    ),
    "invocation": ("/invocations", chat_fields),
    "generative scoring": (
        "/generative_scoring",
        lambda prompt: {
            "model": "demo",
            "query": prompt,
            "items": ["a", "b"],
            "label_token_ids": [5, 6],
        },
    ),
}
STREAMED = ("chat", "completion", "response", "message", "tokens")


def hits_of(served: Served, path: str, who: str, fields: Fields, **headers: str) -> int:
    """Tokens that the engine finds in a cache for a request that succeeds."""
    before = served.hits()
    answer = served.post(path, who, fields, **headers)
    assert answer.status_code == httpx.codes.OK, answer.text
    return served.hits() - before


def reported(usage: Mapping[str, Any]) -> int | None:
    """What an answer's usage says of reuse, in any endpoint's words; `None` if nothing."""
    if "cache_read_input_tokens" in usage:
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return None if details is None else int(details.get("cached_tokens") or 0)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_two_tenants_with_one_prompt_each_reuse_their_own_cache_alone(
    served: Served, endpoint: str
) -> None:
    path, fields_for = ENDPOINTS[endpoint]
    fields = fields_for(served.prompt())
    found = [
        hits_of(served, path, who, fields)
        for who in ("acme", "globex", "acme", "globex", "acme, other key")
    ]
    alone = found[0]
    assert found[1] == alone
    assert found[2] == found[3] == found[4] >= alone + BLOCK


@pytest.mark.parametrize("endpoint", STREAMED)
def test_a_stream_tells_no_tenant_of_anothers_cache(served: Served, endpoint: str) -> None:
    path, fields_for = ENDPOINTS[endpoint]
    fields = fields_for(served.prompt()) | {"stream": True}
    if endpoint in {"chat", "completion", "tokens"}:
        fields["stream_options"] = {"include_usage": True}
    told = [stream_usage(served, path, who, fields) for who in ("acme", "globex", "acme", "globex")]
    assert told[:2] == [0, 0]
    assert told[2] == told[3] >= BLOCK


def stream_usage(served: Served, path: str, who: str, fields: Fields) -> int:
    """What a stream's events say of reuse, at most."""
    answer = served.post(path, who, fields)
    assert answer.status_code == httpx.codes.OK, answer.text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]
    usages = [
        usage
        for event in events
        for holder in (event, event.get("response") or {}, event.get("message") or {})
        if (usage := holder.get("usage"))
    ]
    told = [found for usage in usages if (found := reported(usage)) is not None]
    assert told, "some event tells of reuse"
    return max(told)


def test_all_of_a_mixed_hour_stays_each_tenants_own(served: Served) -> None:
    """What one endpoint cached, another reads for the same tenant, and for no other."""
    prompt = served.prompt()
    chat, message = ENDPOINTS["chat"], ENDPOINTS["message"]
    assert hits_of(served, chat[0], "acme", chat[1](prompt)) == 0
    assert hits_of(served, message[0], "globex", message[1](prompt)) == 0
    assert hits_of(served, message[0], "acme", message[1](prompt)) >= BLOCK
    assert hits_of(served, chat[0], "globex", chat[1](prompt)) >= BLOCK


def reuse(served: Served, who: str, prompt: str, **headers: str) -> bool:
    """Whether a chat request reuses all it could; it reuses all or nothing."""
    answer = served.post(CHAT, who, chat_fields(prompt), **headers)
    assert answer.status_code == httpx.codes.OK, answer.text
    cached = cached_tokens(answer.json())
    assert cached in {0, full_blocks(answer.json())}
    return cached > 0


def test_each_data_subject_of_a_tenant_has_a_cache_of_its_own(served: Served) -> None:
    prompt = served.prompt()
    asked: list[dict[str, str]] = [
        {"X_Custody_Subject": "anna"},
        {"X_Custody_Subject": "ben"},
        {},
        {"X_Custody_Subject": "Anna"},
    ]
    assert [reuse(served, "clinic", prompt, **headers) for headers in asked] == 4 * [False]
    # Who names nobody has no cache: it would be one for all persons.
    again = [reuse(served, "clinic", prompt, **headers) for headers in asked]
    assert again == [True, True, False, True]
    assert not reuse(served, "acme", prompt)


def test_a_subject_in_the_body_is_the_subject_of_the_header(served: Served) -> None:
    fields = chat_fields(served.prompt())
    assert hits_of(served, CHAT, "clinic", fields | {"user": "carla"}) == 0
    assert hits_of(served, CHAT, "clinic", fields | {"user": "dora"}) == 0
    assert hits_of(served, CHAT, "clinic", fields, X_Custody_Subject="carla") >= BLOCK


def test_each_workload_of_a_tenant_with_that_scope_has_a_cache_of_its_own(
    served: Served,
) -> None:
    prompt = served.prompt()
    assert not reuse(served, "lab, chat", prompt)
    assert not reuse(served, "lab, mail", prompt)
    assert reuse(served, "lab, chat", prompt)
    assert reuse(served, "lab, mail", prompt)
    # Where the scope is the tenant, its workloads share.
    assert not reuse(served, "acme", prompt)
    assert reuse(served, "acme, other workload", prompt)


def test_a_sharing_group_is_shared_by_its_members_who_ask_for_it_and_by_nobody_else(
    served: Served,
) -> None:
    prompt, group = served.prompt(), {"X_Custody_Share": "manuals"}
    assert not reuse(served, "acme", prompt, **group)
    assert reuse(served, "globex", prompt, **group)
    # Without asking, each has its own.
    assert not reuse(served, "acme", prompt)
    assert not reuse(served, "globex", prompt)
    # No member; and one whom the policy denies it.
    outside: list[tuple[str, dict[str, str]]] = [
        ("lab, chat", {}),
        ("clinic", {"X_Custody_Subject": "emma"}),
    ]
    for who, headers in outside:
        assert not reuse(served, who, prompt, **group, **headers)
    # What these have stored is not the group's either: the second time they reuse their own.
    for who, headers in outside:
        assert reuse(served, who, prompt, **headers)
    assert not reuse(served, "globex", served.prompt(), **group)


def test_all_tenants_get_the_same_answer_from_cold_and_warm_caches(served: Served) -> None:
    prompt = served.prompt()
    answers = [served.chat(who, prompt) for who in ("acme", "globex", "acme", "globex", "clinic")]
    assert len({text_of(answer) for answer in answers}) == 1
    assert [cached_tokens(answer) > 0 for answer in answers] == [False, False, True, True, False]
