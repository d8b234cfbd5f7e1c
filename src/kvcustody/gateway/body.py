"""Rewrite a body: out with what the client says of caches, in with what the gateway says."""

import json
from dataclasses import dataclass
from typing import Any, NoReturn

# Fields that choose whose cache is used, from where, or under which request id. Encoder caches
# (`ec_…`) are peers' addresses, too.
_CLIENT_MAY_NOT_SAY = (
    "kv_transfer_params",
    "ec_transfer_params",
    "kv_hints",
    "cache_salt",
    "request_id",
)
# Free-form arguments end up beside the request's own fields (vllm: SamplingParams.extra_args).
_SMUGGLING_PLACES = ("vllm_xargs", "extra_args")


# Whose lists hold the parts of a message; a part may hold parts itself (Anthropic's tool results).
_PART_LISTS = ("messages", "input", "content")


class BodyError(ValueError):
    """The body can't be governed; the text tells the client why."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What the gateway puts into a body.

    Args:
        cache_salt: salt of the principal's scope.
        parameters: the request's `kv_transfer_params`.
        request_id: set where the engine takes its request id from the body.

    """

    cache_salt: str
    parameters: dict[str, str]
    request_id: str | None


def rewrite(body: bytes, injection: Injection) -> tuple[bytes, list[str]]:
    """Rewrite a JSON body.

    Args:
        body: what the client sent.
        injection: what to put in.

    Returns:
        The body to pass on, and the names of the fields that were taken out.

    Raises:
        BodyError: the body is not one JSON object that has one meaning.

    """
    fields = _parse(body)
    removed = [name for name in _CLIENT_MAY_NOT_SAY if fields.pop(name, None) is not None]
    for place in _SMUGGLING_PLACES:
        inner = fields.get(place)
        if isinstance(inner, dict):
            removed += [
                f"{place}.{name}"
                for name in _CLIENT_MAY_NOT_SAY
                if inner.pop(name, None) is not None
            ]
    removed += _remove_media_ids(fields)
    if fields.get("use_beam_search"):
        # vLLM begins a request for each beam and token, which carries nothing of ours.
        raise BodyError("'use_beam_search' is not available here")
    fields["cache_salt"] = injection.cache_salt
    fields["kv_transfer_params"] = injection.parameters
    if injection.request_id is not None:
        _refuse_stored_responses(fields)
        fields["request_id"] = injection.request_id
    try:
        return json.dumps(fields, allow_nan=False).encode(), removed
    except (ValueError, RecursionError):
        raise BodyError("a number in the body is out of range") from None


def _remove_media_ids(fields: dict[str, Any]) -> list[str]:
    """Take out what names an image or a sound instead of being it; the name of what was removed.

    vLLM's encoder caches go by that name alone, whoever says it
    (vllm/multimodal/processing/inputs.py).
    """
    removed = False
    waiting: list[Any] = [fields[name] for name in _PART_LISTS if name in fields]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            removed |= value.pop("uuid", None) is not None
            waiting += [value[name] for name in _PART_LISTS if name in value]
    return ["uuid"] if removed else []


def _parse(body: bytes) -> dict[str, Any]:
    """The body's object. What two parsers could read differently is refused, not guessed at."""
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


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BodyError("a field occurs twice in one object")
    return fields


def _refuse_constant(_constant: str) -> NoReturn:
    raise BodyError("NaN and Infinity are not JSON")


def _refuse_stored_responses(fields: dict[str, Any]) -> None:
    """Stored responses know no owner in vLLM, so nothing is stored or continued from."""
    for name in ("previous_response_id", "background"):
        if fields.get(name):
            raise BodyError(f"'{name}' is not available: responses are not stored here")
    fields["store"] = False
