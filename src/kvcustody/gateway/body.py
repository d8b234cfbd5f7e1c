"""Rewrite a body: out with what the client says of caches, in with what the gateway says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

Fields = dict[str, Any]
"""A body's object."""

_TRANSFER = "kv_transfer_params"
# Fields that choose whose cache is used, or from where. Encoder caches (`ec_…`) are peers'
# addresses, too.
_CHOOSES_CACHE = (_TRANSFER, "ec_transfer_params", "kv_hints", "cache_salt")
# Free-form arguments end up beside the request's own fields (vllm: SamplingParams.extra_args).
_SMUGGLING_PLACES = (
    ("vllm_xargs",),
    ("extra_args",),
    ("sampling_params",),
    ("sampling_params", "extra_args"),
)
# Where there are no media, but schemas and arguments whose own words must stay.
_NO_MEDIA = frozenset(
    {
        *("tools", "functions", "tool_choice", "response_format", "structured_outputs", "text"),
        *("chat_template_kwargs", "mm_processor_kwargs", "metadata"),
    }
)
# Anthropic's call of a tool, whose `input` is what the model says to the tool.
_TOOL_CALL = "tool_use"
# A request of a million tokens as numbers. Each value takes far more memory than its text, and
# parsing holds up everybody.
_MOST_VALUES = 2**20
# An allowed parameter is a count; vLLM's own are 64 bits.
_LARGEST_COUNT = 2**63 - 1
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class BodyError(ValueError):
    """The body can't be governed; the text tells the client why."""


@dataclass(frozen=True, slots=True)
class Stripped:
    """What was taken out of a body.

    Args:
        names: fields that were taken out.
        chose_cache: whether one of them chose a cache.
        allowed: transfer parameters that the client may set, with their values.

    """

    names: list[str]
    chose_cache: bool
    allowed: Mapping[str, int]


def parse(body: bytes) -> Fields:
    """A body's object. What two parsers could read differently is refused, not guessed at.

    Raises:
        BodyError: the body is not one JSON object that has one meaning.

    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > _MOST_VALUES:
        raise BodyError(f"the body holds more than {_MOST_VALUES} values")
    try:
        fields = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique_names,
            parse_constant=_refuse_constant,
        )
    except BodyError:
        raise
    except (ValueError, RecursionError):
        raise BodyError("the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise BodyError("the body must be a JSON object")
    return fields


def strip(fields: Fields, allowed: frozenset[str]) -> Stripped:
    """Take out of a body what chooses a cache, a request id, or the name of somebody's picture.

    Args:
        fields: the body; changed in place.
        allowed: names of transfer parameters that a client may set.

    """
    counts = _take_allowed(fields, allowed)
    names = [name for name in _CHOOSES_CACHE if fields.pop(name, None) is not None]
    for place in _SMUGGLING_PLACES:
        inner: Any = fields
        for step in place:
            inner = inner.get(step) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            names += [
                ".".join((*place, name))
                for name in _CHOOSES_CACHE
                if inner.pop(name, None) is not None
            ]
    chose_cache = bool(names)
    if fields.pop("request_id", None) is not None:
        names.append("request_id")
    return Stripped(names + _remove_media_ids(fields), chose_cache, counts)


def serialise(fields: Fields) -> bytes:
    """A body's bytes.

    Raises:
        BodyError: a number of it has no form in JSON.

    """
    try:
        return _ENCODER.encode(fields).encode()
    except (ValueError, RecursionError):
        raise BodyError("a number in the body is out of range") from None


def _take_allowed(fields: Fields, allowed: frozenset[str]) -> dict[str, int]:
    """Take what a client may set out of its transfer parameters, and these if nothing is left."""
    given = fields.get(_TRANSFER)
    if not allowed or not isinstance(given, dict):
        return {}
    counts = {
        name: value
        for name in allowed & given.keys()
        if type(value := given[name]) is int and 0 <= value <= _LARGEST_COUNT
    }
    for name in counts:
        del given[name]
    if not given:
        del fields[_TRANSFER]
    return counts


def _remove_media_ids(fields: Fields) -> list[str]:
    """Take out what names an image or a sound instead of being it; the name of what was removed.

    vLLM's encoder caches go by that name alone, whoever says it
    (vllm/multimodal/processing/inputs.py). Media may lie in messages, tools' results, queries and
    documents, and wherever the next version of vLLM looks.
    """
    removed = False
    waiting: list[Any] = [value for name, value in fields.items() if name not in _NO_MEDIA]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            removed |= value.pop("uuid", None) is not None
            call = value.get("type") == _TOOL_CALL
            inner = [held for name, held in value.items() if not (call and name == "input")]
        elif isinstance(value, list):
            inner = value
        else:
            continue
        waiting += [held for held in inner if isinstance(held, dict | list)]
    return ["uuid"] if removed else []


def _unique_names(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BodyError("a field occurs twice in one object")
    return fields


def _refuse_constant(_constant: str) -> NoReturn:
    raise BodyError("NaN and Infinity are not JSON")
