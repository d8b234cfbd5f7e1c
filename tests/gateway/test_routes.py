import pytest

from kvcustody.gateway.routes import Treatment, treatment

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/responses"),
    ],
)
def test_what_carries_a_prompt_is_governed(method: str, path: str) -> None:
    assert treatment(method, path) is Treatment.GOVERNED


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics"])
def test_what_tells_nothing_of_a_tenant_is_open(path: str) -> None:
    assert treatment("GET", path) is Treatment.OPEN
    assert treatment("HEAD", path) is Treatment.OPEN


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/reset_prefix_cache"),
        ("POST", "/collective_rpc"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/server_info"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/invocations"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/health"),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("POST", "/V1/completions"),
        ("POST", "/v1/completions/../chat/completions"),
        ("OPTIONS", "/reset_prefix_cache"),
        ("GET", ""),
    ],
)
def test_every_other_route_is_refused(method: str, path: str) -> None:
    assert treatment(method, path) is Treatment.REFUSED


def test_a_browsers_preflight_passes_where_the_route_is_known() -> None:
    assert treatment("OPTIONS", "/v1/chat/completions") is Treatment.OPEN
