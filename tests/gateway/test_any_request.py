"""Whatever is sent, to whatever route: the gateway never fails, and no client's words get through.

A generator made for this, as schemathesis is for servers that have a schema: the gateway's promise
is about what is in no schema.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway_deployment import Deployment
from kvcustody.gateway.routes import ROUTES, WEBSOCKET, Treatment, find_route

pytestmark = pytest.mark.unit

# What a client may not choose, by name; the value tells it from the gateway's own.
MARK = "chosen-by-the-client"
NAMES = ["cache_salt", "kv_transfer_params", "ec_transfer_params", "kv_hints", "request_id"]
PLACES = ["vllm_xargs", "extra_args", "sampling_params", "messages", "input", "content", "prompt"]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.just(MARK),
)
names = st.one_of(st.sampled_from([*NAMES, *PLACES, "uuid", "user", "stream"]), st.text())
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=6)),
    max_leaves=20,
)
bodies = st.one_of(
    st.dictionaries(names, values, max_size=8).map(lambda fields: json.dumps(fields).encode()),
    values.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=200),
)
paths = st.one_of(
    st.sampled_from(
        sorted({route.template.replace("{response_id}", "resp_1") for _, route in ROUTES})
    ),
    st.text(st.characters(codec="ascii", exclude_characters="?#"), max_size=30).map("/{}".format),
)
headers = st.dictionaries(
    st.sampled_from(
        ["X-Request-Id", "X-Custody-Subject", "X-Custody-Share", "Content-Encoding", "Accept"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(str.strip),
    max_size=3,
)


@pytest.fixture
def gateway(tmp_path: Any) -> Iterator[Deployment]:
    gateway = Deployment(tmp_path)
    yield gateway
    gateway.services.close()


def check(gateway: Deployment, request: httpx.Request, *, keyed: bool) -> None:
    """Send a request, and check what the gateway answers or lets through."""
    before = len(gateway.app.requests)

    async def send() -> httpx.Response:
        async with gateway.client() as client:
            return await client.send(request)

    answer = asyncio.run(send())
    assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR
    route = find_route(request.method, httpx.URL(request.url).path)
    passed = gateway.app.requests[before:]
    if not passed:
        assert answer.status_code >= httpx.codes.BAD_REQUEST
        error = answer.json()["error"] if request.method != "HEAD" else {"message": "", "code": ""}
        assert {"message", "code"} <= error.keys()
        return
    assert keyed or route.treatment is Treatment.OPEN, "nothing passes without a key"
    ((scope, body),) = passed
    assert route.treatment not in {Treatment.REFUSED, Treatment.ADMIN, Treatment.OWNED}
    if route.treatment is Treatment.OPEN:
        return
    sent = [value for name, value in scope["headers"] if name == b"x-request-id"]
    assert len(sent) == 1
    assert sent[0] != request.headers.get("X-Request-Id", "").encode()
    assert not any(name in {b"authorization", b"x-api-key"} for name, _ in scope["headers"])
    if route.treatment in {Treatment.GOVERNED, Treatment.SALTED, Treatment.STRIPPED}:
        check_body(json.loads(body), route.treatment)


def check_body(fields: dict[str, Any], treatment: Treatment) -> None:
    """Check that the cache is chosen by the gateway, where it is chosen at all."""
    for name in NAMES:
        assert fields.get(name) != MARK
    parameters = fields.get("kv_transfer_params") or {}
    assert set(parameters) <= {"kvcustody"}
    if treatment is Treatment.STRIPPED:
        assert "cache_salt" not in fields
        assert not parameters
    else:
        assert isinstance(fields["cache_salt"], str)
        assert len(fields["cache_salt"]) >= 43
    for place in ("vllm_xargs", "extra_args"):
        inner = fields.get(place)
        if isinstance(inner, dict):
            assert not {"kv_transfer_params", "ec_transfer_params"} & inner.keys()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(METHODS), path=paths, headers=headers, body=bodies, keyed=st.booleans()
)
def test_no_request_breaks_the_gateway_or_chooses_a_cache(
    gateway: Deployment,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    *,
    keyed: bool,
) -> None:
    try:
        request = httpx.Request(
            method,
            f"http://gateway{path}",
            headers={
                "Content-Type": "application/json",
                **headers,
                **(gateway.bearer("acme") if keyed else {}),
            },
            content=body,
        )
    except httpx.InvalidURL:
        return  # no client could send it
    check(gateway, request, keyed=keyed)


GENERATING = sorted(
    route.template
    for method, route in ROUTES
    if method not in {"GET", WEBSOCKET}
    and route.treatment in {Treatment.GOVERNED, Treatment.SALTED}
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(GENERATING), st.dictionaries(names, values, max_size=10))
def test_no_fields_of_a_generating_request_choose_a_cache(
    gateway: Deployment, path: str, fields: dict[str, Any]
) -> None:
    request = httpx.Request(
        "POST", f"http://gateway{path}", headers=gateway.bearer("acme"), json=fields
    )
    check(gateway, request, keyed=True)


def test_a_plain_request_passes_the_same_checks(gateway: Deployment) -> None:
    """Else the tests above might pass because nothing ever gets through."""
    for path in GENERATING:
        request = httpx.Request(
            "POST", f"http://gateway{path}", headers=gateway.bearer("acme"), json={"model": "demo"}
        )
        check(gateway, request, keyed=True)
    assert len(gateway.app.requests) == len(GENERATING)
