"""Which routes of the server are open, which need a key, and which carry a prompt to be governed.

A route that is on no list is refused: a new vLLM version may bring one that reads a cache. So far
that includes pooling, transcription, realtime, batches, stored responses and all admin routes.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Treatment(Enum):
    """What the gateway does with a request."""

    OPEN = "open"
    """Passes as it is, without a key: nothing of any tenant is to be had there."""
    AUTHENTICATED = "authenticated"
    """Needs a key; the body, which no cache sees, passes as it is."""
    GOVERNED = "governed"
    """Needs a key; the body is rewritten."""
    REFUSED = "refused"


_ROUTES: Mapping[tuple[str, str], Treatment] = MappingProxyType(
    {
        ("GET", "/health"): Treatment.OPEN,
        ("GET", "/ping"): Treatment.OPEN,
        ("POST", "/ping"): Treatment.OPEN,
        ("GET", "/version"): Treatment.OPEN,
        ("GET", "/load"): Treatment.OPEN,
        ("GET", "/metrics"): Treatment.OPEN,
        ("GET", "/metrics/"): Treatment.OPEN,
        ("GET", "/v1/models"): Treatment.AUTHENTICATED,
        ("POST", "/tokenize"): Treatment.AUTHENTICATED,
        ("POST", "/detokenize"): Treatment.AUTHENTICATED,
        ("POST", "/v1/messages/count_tokens"): Treatment.AUTHENTICATED,
        ("POST", "/v1/chat/completions"): Treatment.GOVERNED,
        ("POST", "/v1/completions"): Treatment.GOVERNED,
        ("POST", "/v1/messages"): Treatment.GOVERNED,
        ("POST", "/v1/responses"): Treatment.GOVERNED,
    }
)
RESPONSES_PATH = "/v1/responses"
"""The route whose engine request id comes from the body."""

_PATHS = frozenset(path for _, path in _ROUTES)


def treatment(method: str, path: str) -> Treatment:
    """What the gateway does with a request.

    Args:
        method: HTTP method.
        path: decoded path, without the server's root path.

    """
    if method == "OPTIONS" and path in _PATHS:
        return Treatment.OPEN  # a browser asks before it sends a key; the endpoint isn't reached
    return _ROUTES.get(("GET" if method == "HEAD" else method, path), Treatment.REFUSED)
