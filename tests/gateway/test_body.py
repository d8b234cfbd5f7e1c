import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcustody.gateway.body import BodyError, Injection, rewrite

pytestmark = pytest.mark.unit

OURS = Injection("our-salt", {"kvcustody": "our-assertion"}, None)


def rewritten(fields: dict[str, object], injection: Injection = OURS) -> dict[str, object]:
    body, _ = rewrite(json.dumps(fields).encode(), injection)
    result = json.loads(body)
    assert isinstance(result, dict)
    return result


def test_salt_and_assertion_are_the_gateways_whatever_the_client_sent() -> None:
    hostile = {
        "prompt": "x",
        "cache_salt": "theirs",
        "kv_transfer_params": {"kvcustody": "theirs", "remote_host": "10.0.0.1"},
        "ec_transfer_params": {"remote_host": "10.0.0.1"},
        "kv_hints": {"a": 1},
        "request_id": "mine",
        "vllm_xargs": {"kv_transfer_params": "theirs", "cache_salt": "theirs", "kept": 1},
        "extra_args": {"kv_transfer_params": {"a": 1}},
    }
    body, removed = rewrite(json.dumps(hostile).encode(), OURS)
    assert json.loads(body) == {
        "prompt": "x",
        "cache_salt": "our-salt",
        "kv_transfer_params": {"kvcustody": "our-assertion"},
        "vllm_xargs": {"kept": 1},
        "extra_args": {},
    }
    assert removed == [
        "kv_transfer_params",
        "ec_transfer_params",
        "kv_hints",
        "cache_salt",
        "request_id",
        "vllm_xargs.kv_transfer_params",
        "vllm_xargs.cache_salt",
        "extra_args.kv_transfer_params",
    ]
    assert b"theirs" not in body


def test_a_prompt_that_speaks_of_these_fields_stays_as_it_is() -> None:
    messages = [{"role": "user", "content": '{"cache_salt": "é \U0001f600 \x00"}'}]
    tools = [{"function": {"parameters": {"cache_salt": {"type": "string"}}}}]
    result = rewritten({"messages": messages, "tools": tools})
    assert result["messages"] == messages
    assert result["tools"] == tools


def test_a_response_is_stored_nowhere_and_continues_from_none() -> None:
    injection = Injection("s", {"kvcustody": "a"}, "resp_1")
    result = rewritten({"input": "x", "store": True, "background": False}, injection)
    assert (result["store"], result["request_id"]) == (False, "resp_1")
    for name, value in (("previous_response_id", "resp_2"), ("background", True)):
        with pytest.raises(BodyError, match=name):
            rewritten({"input": "x", name: value}, injection)


def test_nobody_names_an_image_that_another_has_sent() -> None:
    image = {"type": "image_url", "image_url": None, "uuid": "globex-contract"}
    nested = {"type": "tool_result", "content": [dict(image)]}
    body, removed = rewrite(
        json.dumps(
            {
                "messages": [{"role": "user", "content": [image, nested]}],
                "input": [{"content": [dict(image)]}],
                "tools": [{"uuid": "kept"}],
            }
        ).encode(),
        OURS,
    )
    assert removed == ["uuid"]
    assert b"globex-contract" not in body
    assert json.loads(body)["tools"] == [{"uuid": "kept"}]


def test_beam_search_is_refused_because_its_requests_can_not_be_governed() -> None:
    with pytest.raises(BodyError, match="use_beam_search"):
        rewritten({"prompt": "x", "use_beam_search": True})
    assert rewritten({"prompt": "x", "use_beam_search": False})["prompt"] == "x"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"{} {}",
        b'\xef\xbb\xbf{"a": 1}',
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"cache_salt": "a", "cache_salt": "b"}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"cache_salt": "a", "cache\\u005fsalt": "b"}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError) as caught:
        rewrite(body, OURS)
    assert len(str(caught.value)) < 100


def test_content_nested_without_end_is_walked_to_its_end() -> None:
    part: object = {"uuid": "deep"}
    for _ in range(300):
        part = {"content": [part]}
    body, removed = rewrite(json.dumps({"messages": [part]}).encode(), OURS)
    assert removed == ["uuid"]
    assert b"deep" not in body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_all_other_fields_arrive_unchanged(fields: dict[str, object]) -> None:
    result = rewritten(fields)
    for name in fields.keys() - {
        "kv_transfer_params",
        "ec_transfer_params",
        "kv_hints",
        "cache_salt",
        "request_id",
        "vllm_xargs",
        "extra_args",
        "messages",
        "input",
        "content",
        "use_beam_search",
    }:
        assert result[name] == fields[name]
