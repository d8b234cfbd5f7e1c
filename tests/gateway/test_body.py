import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcustody.gateway.body import BodyError, Stripped, parse, serialise, strip

pytestmark = pytest.mark.unit

NOTHING: frozenset[str] = frozenset()


def stripped(fields: dict[str, Any], allowed: frozenset[str] = NOTHING) -> tuple[Any, Stripped]:
    parsed = parse(json.dumps(fields).encode())
    taken = strip(parsed, allowed)
    return json.loads(serialise(parsed)), taken


def test_nothing_stays_of_what_chooses_a_cache_wherever_the_client_put_it() -> None:
    hostile = {
        "prompt": "x",
        "cache_salt": "theirs",
        "kv_transfer_params": {"kvcustody": "theirs", "remote_host": "10.0.0.1"},
        "ec_transfer_params": {"remote_host": "10.0.0.1"},
        "kv_hints": {"a": 1},
        "request_id": "mine",
        "vllm_xargs": {"kv_transfer_params": "theirs", "cache_salt": "theirs", "kept": 1},
        "extra_args": {"kv_transfer_params": {"a": 1}},
        "sampling_params": {"extra_args": {"kv_transfer_params": "theirs", "kept": 2}},
    }
    left, taken = stripped(hostile)
    assert left == {
        "prompt": "x",
        "vllm_xargs": {"kept": 1},
        "extra_args": {},
        "sampling_params": {"extra_args": {"kept": 2}},
    }
    assert taken.chose_cache
    assert taken.names == [
        "kv_transfer_params",
        "ec_transfer_params",
        "kv_hints",
        "cache_salt",
        "vllm_xargs.kv_transfer_params",
        "vllm_xargs.cache_salt",
        "extra_args.kv_transfer_params",
        "sampling_params.extra_args.kv_transfer_params",
        "request_id",
    ]


def test_a_request_id_is_replaced_and_chooses_no_cache() -> None:
    left, taken = stripped({"request_id": "mine"})
    assert (left, taken.names, taken.chose_cache) == ({}, ["request_id"], False)


def test_a_prompt_that_speaks_of_these_fields_stays_as_it_is() -> None:
    messages = [{"role": "user", "content": '{"cache_salt": "é \U0001f600 \x00"}'}]
    tools = [{"function": {"parameters": {"cache_salt": {"type": "string"}}}}]
    left, taken = stripped({"messages": messages, "tools": tools})
    assert left == {"messages": messages, "tools": tools}
    assert not taken.names


def test_what_the_operator_allows_is_kept_if_it_is_a_count() -> None:
    allowed = frozenset({"max_load_tokens"})
    left, taken = stripped({"kv_transfer_params": {"max_load_tokens": 512}}, allowed)
    assert (left, taken) == ({}, Stripped([], False, {"max_load_tokens": 512}))
    both = {"kv_transfer_params": {"max_load_tokens": 0, "remote_host": "10.0.0.1"}}
    left, taken = stripped(both, allowed)
    assert (left, taken) == ({}, Stripped(["kv_transfer_params"], True, {"max_load_tokens": 0}))
    for value in (-1, True, 1.0, "1", None, [1], 2**63):
        _, taken = stripped({"kv_transfer_params": {"max_load_tokens": value}}, allowed)
        assert (taken.names, taken.allowed) == (["kv_transfer_params"], {})
    _, taken = stripped({"kv_transfer_params": {"max_load_tokens": 1}})
    assert (taken.names, taken.allowed) == (["kv_transfer_params"], {})


IMAGE = {"type": "image_url", "image_url": None, "uuid": "globex-contract"}


def test_nobody_names_an_image_that_another_has_sent() -> None:
    image = {"type": "image_url", "image_url": None, "uuid": "globex-contract"}
    left, taken = stripped(
        {
            "messages": [{"content": [image, {"type": "tool_result", "content": [dict(image)]}]}],
            "input": [{"content": [dict(image)]}],
            "content_parts": [dict(image)],
            "tools": [{"uuid": "kept"}],
        }
    )
    assert taken.names == ["uuid"]
    assert "globex-contract" not in json.dumps(left)
    assert left["tools"] == [{"uuid": "kept"}]


@pytest.mark.parametrize(
    "fields",
    [  # wherever vLLM looks for pictures: scores, reranking, tools' results, whole earlier messages
        {"documents": {"content": [IMAGE]}},
        {"queries": [{"content": [IMAGE]}]},
        {"data_1": [IMAGE], "text_2": {"content": [IMAGE]}},
        {"query": IMAGE, "items": [[IMAGE]]},
        {"input": [{"type": "function_call_output", "output": [IMAGE]}]},
        {"previous_input_messages": [{"content": [IMAGE]}]},
        {"what the next version has": {"deep": [{"deeper": IMAGE}]}},
        {"messages": [{"content": [{"type": "tool_use", "content": [IMAGE], "input": {}}]}]},
    ],
)
def test_an_image_is_named_nowhere(fields: dict[str, Any]) -> None:
    left, taken = stripped(json.loads(json.dumps(fields)))
    assert taken.names == ["uuid"]
    assert "globex-contract" not in json.dumps(left)
    assert "image_url" in json.dumps(left), "the picture itself stays"


def test_what_is_said_to_a_tool_and_what_describes_it_stays() -> None:
    fields = {
        "messages": [{"content": [{"type": "tool_use", "name": "find", "input": {"uuid": "a"}}]}],
        "tools": [{"input_schema": {"properties": {"uuid": {"type": "string"}}}}],
        "response_format": {"json_schema": {"uuid": {}}},
        "metadata": {"uuid": "a"},
    }
    left, taken = stripped(json.loads(json.dumps(fields)))
    assert (left, taken.names) == (fields, [])


@pytest.mark.parametrize("filler", [b"[],", b"1,", b"{},", b"[[[[[[[["])
def test_a_body_of_too_many_values_is_refused_unparsed(filler: bytes) -> None:
    with pytest.raises(BodyError, match="values"):
        parse(b'{"a": [' + filler * 2**20)
    assert len(parse(b'{"a": [' + b"1," * (2**19) + b"1]}")["a"]) == 2**19 + 1


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
        '{"a": 1}'.encode("utf-16"),
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
        serialise(parse(body))
    assert len(str(caught.value)) < 100


def test_a_name_in_disguise_is_still_that_name() -> None:
    fields = parse(b'{"cache\\u005fsalt": "theirs"}')
    assert strip(fields, NOTHING).names == ["cache_salt"]
    assert fields == {}


def test_content_nested_without_end_is_walked_to_its_end() -> None:
    part: object = {"uuid": "deep"}
    for _ in range(300):
        part = {"content": [part]}
    left, taken = stripped({"messages": [part]})
    assert taken.names == ["uuid"]
    assert "deep" not in json.dumps(left)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TOUCHED = {
    "kv_transfer_params",
    "ec_transfer_params",
    "kv_hints",
    "cache_salt",
    "request_id",
    "vllm_xargs",
    "extra_args",
    "sampling_params",
    "messages",
    "input",
    "content",
    "content_parts",
}


@given(st.dictionaries(st.text(), JSON, max_size=6))
def test_all_other_fields_arrive_unchanged(fields: dict[str, Any]) -> None:
    left, _ = stripped(fields)
    for name in fields.keys() - TOUCHED:
        assert left[name] == fields[name]
