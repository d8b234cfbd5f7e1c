import pytest

from kvcustody.gateway.routes import ROUTES, Treatment, find_route

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/inference/v1/generate",
    ],
)
def test_what_generates_is_governed(path: str) -> None:
    assert find_route("POST", path).treatment is Treatment.GOVERNED


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics"])
def test_what_tells_nothing_of_a_tenant_is_open(path: str) -> None:
    assert find_route("GET", path).treatment is Treatment.OPEN
    assert find_route("HEAD", path).treatment is Treatment.OPEN


def test_a_stored_response_is_its_makers_and_its_id_stays_out_of_the_template() -> None:
    route = find_route("GET", "/v1/responses/resp_1")
    assert (route.treatment, route.parameter) == (Treatment.OWNED, "resp_1")
    assert "resp_1" not in route.template
    cancelled = find_route("POST", "/v1/responses/resp_2/cancel")
    assert (cancelled.treatment, cancelled.parameter) == (Treatment.OWNED, "resp_2")
    assert find_route("POST", "/v1/responses/render").treatment is Treatment.STRIPPED


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/reset_prefix_cache"),
        ("POST", "/collective_rpc"),
        ("POST", "/v1/load_lora_adapter"),
        ("DELETE", "/adapters/style"),
        ("GET", "/server_info"),
        ("POST", "/inference/v1/abort_requests"),
    ],
)
def test_what_runs_the_server_is_an_admins(method: str, path: str) -> None:
    assert find_route(method, path).treatment is Treatment.ADMIN


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("POST", "/health"),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("POST", "/V1/completions"),
        ("POST", "/v1/completions/../chat/completions"),
        ("GET", "/v1/responses/"),
        ("GET", "/v1/responses/a/b"),
        ("POST", "/v1/responses/a/cancel/"),
        ("OPTIONS", "/unknown"),
        ("GET", ""),
        ("GET", "/v1/realtime"),
        ("WEBSOCKET", "/v1/chat/completions"),
        ("TRACE", "/v1/models"),
    ],
)
def test_every_other_route_is_refused(method: str, path: str) -> None:
    assert find_route(method, path).treatment is Treatment.REFUSED


def test_a_browsers_preflight_passes_where_the_route_is_known() -> None:
    assert find_route("OPTIONS", "/v1/chat/completions").treatment is Treatment.OPEN
    assert find_route("OPTIONS", "/v1/responses/resp_1").treatment is Treatment.OPEN


def test_no_route_has_two_treatments() -> None:
    names = [(method, route.template) for method, route in ROUTES]
    assert len(names) == len(set(names))
    for method, template in names:
        assert method in {"GET", "POST", "DELETE", "WEBSOCKET"}
        assert template.startswith("/")
