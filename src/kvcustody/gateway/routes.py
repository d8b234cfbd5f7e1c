"""What the gateway does with each route of the server.

A route that is on no list is refused: a new vLLM version, or a plugin, may bring one that reads a
cache. `tests/vllm/test_routes_of_vllm.py` compares the lists with what the installed vLLM has.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Treatment(Enum):
    """What the gateway does with a request."""

    OPEN = "open"
    """Passes as it is, without a credential: nothing of any tenant is to be had there."""
    AUTHENTICATED = "authenticated"
    """Needs a credential; the body, which no cache sees, passes as it is."""
    STRIPPED = "stripped"
    """Needs a credential; the body loses what chooses a cache, and gets nothing: it comes back."""
    SALTED = "salted"
    """Needs a credential; the body gets a salt ticket, as the endpoint takes no assertion."""
    GOVERNED = "governed"
    """Needs a credential; the body gets salt and assertion."""
    OWNED = "owned"
    """Needs the credential of whoever made the object that the path names."""
    ADMIN = "admin"
    """Needs an admin's credential; the body passes as it is."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Route:
    """A request's route.

    Args:
        treatment: what the gateway does.
        template: the path, with a name in braces for what differs from request to request.
        parameter: what stands there.

    """

    treatment: Treatment
    template: str
    parameter: str | None = None


WEBSOCKET = "WEBSOCKET"
"""Stands for the method where a websocket is opened."""
RESPONSES_PATH = "/v1/responses"
"""The route whose engine request id comes from the body, and whose answers vLLM stores."""
TOKENS_PATH = "/inference/v1/generate"
"""Token-in-token-out, which takes pictures by their hashes."""
INVOCATIONS_PATH = "/invocations"
"""SageMaker's, which has sessions."""

_LISTS: dict[Treatment, str] = {
    Treatment.OPEN: """
        GET /health
        GET /ping
        POST /ping
        GET /version
        GET /load
        GET /metrics
        GET /metrics/
    """,
    # Audio streams through: no salt fits into a form. Its requests read no cache, see `admission`.
    Treatment.AUTHENTICATED: """
        GET /v1/models
        POST /tokenize
        POST /detokenize
        GET /tokenizer_info
        POST /v1/messages/count_tokens
        POST /v1/chat/completions/derender
        POST /v1/completions/derender
        POST /v1/audio/transcriptions
        POST /v1/audio/translations
        WEBSOCKET /v1/realtime
        GET /openapi.json
        GET /docs
        GET /docs/oauth2-redirect
        GET /redoc
    """,
    Treatment.STRIPPED: """
        POST /v1/chat/completions/render
        POST /v1/completions/render
        POST /v1/messages/render
        POST /v1/responses/render
        POST /cohere/v2/chat/render
    """,
    Treatment.SALTED: """
        POST /pooling
        POST /classify
        POST /v1/embeddings
        POST /v2/embed
        POST /score
        POST /v1/score
        POST /rerank
        POST /v1/rerank
        POST /v2/rerank
        POST /generative_scoring
        POST /v1/systemone
    """,
    Treatment.GOVERNED: """
        POST /v1/chat/completions
        POST /v1/chat/completions/batch
        POST /v1/completions
        POST /v1/messages
        POST /v1/responses
        POST /cohere/v2/chat
        POST /inference/v1/generate
        POST /invocations
    """,
    Treatment.OWNED: """
        GET /v1/responses/{response_id}
        POST /v1/responses/{response_id}/cancel
    """,
    Treatment.ADMIN: """
        POST /v1/load_lora_adapter
        POST /v1/unload_lora_adapter
        POST /adapters
        DELETE /adapters/{adapter_name}
        POST /inference/v1/abort_requests
        POST /abort_requests
        POST /reset_prefix_cache
        POST /reset_mm_cache
        POST /reset_encoder_cache
        POST /release_kv_cache_memory
        POST /sleep
        POST /wake_up
        GET /is_sleeping
        POST /pause
        POST /resume
        GET /is_paused
        POST /collective_rpc
        GET /server_info
        GET /kv_event_sources
        POST /start_profile
        POST /stop_profile
        POST /scale_elastic_ep
        POST /is_scaling_elastic_ep
        POST /fault_tolerance/apply
        GET /fault_tolerance/status
        POST /init_weight_transfer_engine
        POST /shutdown_weight_transfer_engine
        POST /start_weight_update
        POST /start_draft_weight_update
        POST /update_weights
        POST /finish_weight_update
        POST /update_weight_version
        POST /weight_checker
        GET /weight_info
        GET /get_world_size
    """,
}
# One part of a path, never empty; Starlette's own routes read it so.
_PARAMETER = re.compile(r"\{\w+\}")


def _routes() -> Iterator[tuple[str, Route]]:
    for treatment, text in _LISTS.items():
        for line in text.split("\n"):
            if line.strip():
                method, path = line.split()
                yield method, Route(treatment, path)


ROUTES = tuple(_routes())
"""All routes that are not refused, with their methods."""

_EXACT = {(method, route.template): route for method, route in ROUTES if "{" not in route.template}
_PATTERNS = [
    (method, re.compile(_PARAMETER.sub("([^/]+)", route.template)), route)
    for method, route in ROUTES
    if "{" in route.template
]


def find_route(method: str, path: str) -> Route:
    """The route of a request.

    Args:
        method: HTTP method, or `WEBSOCKET`.
        path: decoded path, without the server's root path.

    """
    if method == "OPTIONS":
        # A browser asks before it sends a credential; the endpoint isn't reached.
        known = any(_match(each, path) for each in ("GET", "POST", "DELETE"))
        return Route(Treatment.OPEN if known else Treatment.REFUSED, path)
    return _match("GET" if method == "HEAD" else method, path) or Route(Treatment.REFUSED, path)


def _match(method: str, path: str) -> Route | None:
    route = _EXACT.get((method, path))
    if route is not None:
        return route
    for its_method, pattern, template in _PATTERNS:
        if its_method == method and (found := pattern.fullmatch(path)):
            return Route(template.treatment, template.template, found[1])
    return None
