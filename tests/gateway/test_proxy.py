"""The reverse proxy changes nothing on the way but what it must; failures have answers."""

import gzip
import json

import httpx
import pytest

from gateway_deployment import CHAT, Deployment
from kvcustody.gateway.replies import Receive, Scope, Send
from upstream_double import Proxied, UpstreamDouble, proxied, raw_upstream, reply

pytestmark = pytest.mark.unit

AUDIO = "/v1/audio/transcriptions"


async def test_a_governed_request_reaches_the_server_with_salt_assertion_and_id(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    fields = {"model": "m", "messages": [], "cache_salt": "mine"}
    answer = await proxy.client.post(
        CHAT, json=fields, headers=proxy.gateway.bearer("acme") | {"X-Request-Id": "mine"}
    )
    assert (answer.status_code, answer.content) == (200, b"ok")
    (request,) = upstream.requests
    verified = proxy.gateway.verify(request.scope, request.body)
    assert type(verified).__name__ == "Verified"
    assert request.header("x-request-id") != [b"mine"]
    assert json.loads(request.body)["cache_salt"] != "mine"
    assert request.header("content-length") == [str(len(request.body)).encode()]


async def test_no_credential_of_a_client_reaches_the_server_on_any_route(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    bearer = proxy.gateway.bearer("acme")
    dropped = {
        **bearer,
        "Forwarded": "for=1.2.3.4",
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Proto": "https",
        "X-Real-IP": "1.2.3.4",
        "Proxy-Authorization": "Basic eDp5",
    }
    for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("OPTIONS", CHAT)):
        assert (await proxy.client.request(method, path, headers=dropped)).status_code == 200
    await proxy.client.get("/version", headers={"x-api-key": proxy.gateway.keys["acme"].key})
    assert len(upstream.requests) == 4
    for request in upstream.requests:
        names = {name.decode() for name, _ in request.scope["headers"]}
        assert names.isdisjoint({name.lower() for name in dropped} | {"x-api-key"})
        assert request.header("host") == [upstream.url.removeprefix("http://").encode()]
        assert request.header("via") == [b"1.1 kvcustody"]


async def test_the_server_sees_the_operators_key_and_not_the_clients(
    gateway: Deployment, upstream: UpstreamDouble
) -> None:
    async with proxied(gateway, upstream.url, api_key="upstream-secret") as proxy:
        await proxy.client.get("/v1/models", headers=gateway.bearer("acme"))
        await proxy.client.get("/health")
    for request in upstream.requests:
        assert request.header("authorization") == [b"Bearer upstream-secret"]


async def test_a_server_that_refuses_the_gateway_is_no_fault_of_the_client(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, b'{"error": "Unauthorized"}', status=401)

    upstream.answer = refuse
    answer = await proxy.client.get("/v1/models", headers=proxy.gateway.bearer("acme"))
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "upstream_refused_gateway"


async def test_nothing_is_added_to_what_a_client_sends(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    await proxy.raw(
        "GET /v1/models?a=1&a=%20%0d HTTP/1.1", "Host: x", "X-A: 1", "X-A: 2", proxy.key(),
        "Connection: close",
    )  # fmt: skip
    (request,) = upstream.requests
    assert {name for name, _ in request.scope["headers"]} == {
        b"host",
        b"x-a",
        b"via",
        b"x-request-id",
    }
    assert request.header("x-a") == [b"1", b"2"]
    assert request.scope["query_string"] == b"a=1&a=%20%0d"


async def test_cookies_are_passed_on_and_not_kept(proxy: Proxied, upstream: UpstreamDouble) -> None:
    async def bake(_scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, b"", (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"))

    upstream.answer = bake
    answer = await proxy.client.get("/health")
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    proxy.client.cookies.clear()
    await proxy.client.get("/health")
    assert upstream.requests[1].header("cookie") == []


async def test_redirects_are_the_clients_to_follow(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    async def redirect(_scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, b"", (b"location", b"/elsewhere"), status=307)

    upstream.answer = redirect
    answer = await proxy.client.get("/health")
    assert (answer.status_code, answer.headers["location"]) == (307, "/elsewhere")
    assert len(upstream.requests) == 1


async def test_the_environments_proxies_are_not_used(
    gateway: Deployment, upstream: UpstreamDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with proxied(gateway, upstream.url) as proxy:
        assert (await proxy.client.get("/health")).status_code == 200


async def test_compressed_answers_pass_as_they_are(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    packed = gzip.compress(b"many words " * 1000)

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await reply(send, packed, (b"content-encoding", b"gzip"))

    upstream.answer = answer
    async with proxy.client.stream("GET", "/health") as response:
        raw = b"".join([part async for part in response.aiter_raw()])
    assert raw == packed
    assert response.headers["content-length"] == str(len(packed))
    assert upstream.requests[0].header("accept-encoding") != []


async def test_an_answer_to_head_has_a_length_and_no_body(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    answer = await proxy.client.head("/health")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "2")
    assert upstream.requests[0].scope["method"] == "HEAD"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_an_answer_without_content_ends_at_its_head(gateway: Deployment, status: str) -> None:
    head = f"HTTP/1.1 {status}\r\nETag: x\r\nContent-Length: 5\r\n\r\n".encode()
    async with raw_upstream(head) as url, proxied(gateway, url) as proxy:
        first = await proxy.client.get("/health")
        second = await proxy.client.get("/health")  # on the same connection
    for answer in (first, second):
        assert (answer.status_code, answer.content) == (int(status[:3]), b"")
        assert answer.headers["etag"] == "x"
        assert "transfer-encoding" not in answer.headers


async def test_large_bodies_pass_whole_in_both_directions(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    large = bytes(range(256)) * 2**16  # 16 MiB

    async def echo(_scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await reply(send, body)

    upstream.answer = echo
    answer = await proxy.client.post(AUDIO, content=large, headers=proxy.gateway.bearer("acme"))
    assert answer.content == large
    upstream.answer = None
    fields = {"prompt": "x" * 2**24}
    bearer = proxy.gateway.bearer("acme")
    assert (await proxy.client.post("/v1/completions", json=fields, headers=bearer)).is_success
    assert json.loads(upstream.requests[-1].body)["prompt"] == fields["prompt"]


async def test_the_path_that_was_judged_is_the_path_that_is_sent(
    proxy: Proxied, upstream: UpstreamDouble
) -> None:
    """Escapes and dots can't have the server read another path than the gateway did."""
    end = ("Host: x", proxy.key(), "Connection: close")
    answer = await proxy.raw("GET /v1/m%6fdels HTTP/1.1", *end)
    assert answer.startswith(b"HTTP/1.1 200")
    assert upstream.requests[0].scope["raw_path"] == b"/v1/models"
    for path in (
        "/v1/models/..%2f..%2freset_prefix_cache",
        "/v1/models/../../reset_prefix_cache",
        "/health/../v1/chat/completions",
        "//v1/models",
        "/v1/models%00",
        "/v1/models%3f",
        "http://other/reset_prefix_cache",
    ):
        refused = await proxy.raw(f"GET {path} HTTP/1.1", *end)
        assert refused.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), path
    assert len(upstream.requests) == 1


async def test_the_servers_base_path_comes_first(
    gateway: Deployment, upstream: UpstreamDouble
) -> None:
    async with proxied(gateway, f"{upstream.url}/llm/") as proxy:
        await proxy.client.get("/health")
    assert upstream.requests[0].scope["path"] == "/llm/health"


async def test_while_the_server_is_away_health_and_requests_are_a_502(gateway: Deployment) -> None:
    async with proxied(gateway, "http://127.0.0.1:9") as proxy:
        health = await proxy.client.get("/health")
        chat = await proxy.client.post(CHAT, json={}, headers=gateway.bearer("acme"))
    for answer in (health, chat):
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "upstream_unreachable"


class FailingTransport(httpx.AsyncBaseTransport):
    """A test double for the way to the server, which fails in a certain manner."""

    def __init__(self, error: httpx.TransportError) -> None:
        self._error = error

    async def handle_async_request(self, _request: httpx.Request) -> httpx.Response:
        raise self._error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (httpx.ConnectTimeout("secret"), 504, "upstream_timeout"),
        (httpx.WriteTimeout("secret"), 504, "upstream_timeout"),
        (httpx.PoolTimeout("secret"), 503, "gateway_busy"),
        (httpx.ReadError("secret"), 502, "upstream_unreachable"),
        (httpx.RemoteProtocolError("secret"), 502, "upstream_unreachable"),
        (httpx.LocalProtocolError("secret"), 400, "invalid_request"),
    ],
)
async def test_each_failure_has_its_answer_and_tells_nothing(
    gateway: Deployment,
    error: httpx.TransportError,
    status: int,
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = FailingTransport(error)
    async with proxied(gateway, "http://127.0.0.1:9", transport=transport) as proxy:
        answer = await proxy.client.get("/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "secret" not in answer.text + caplog.text


async def test_a_gateway_before_itself_is_noticed(proxy: Proxied) -> None:
    async with proxied(proxy.gateway, proxy.url) as outer:
        answer = await outer.client.get("/health")
    assert (answer.status_code, answer.json()["error"]["code"]) == (508, "loop")
