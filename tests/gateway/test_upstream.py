"""The server behind: what its options must be like, and what can be told of it from outside."""

from pathlib import Path

import httpx
import pytest

from answering_server import closed_port
from kvcustody.errors import ConfigurationError
from kvcustody.gateway.upstream import parse_upstream
from kvcustody.gateway.upstream_check import doubts_about

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://user:secret@host",
        "http://host/?secret",
        "http://host/#secret",
        "http://[::1",
        "http://host\x00",
    ],
)
def test_a_wrong_url_is_one_clear_line_without_what_it_holds(url: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        parse_upstream(url)
    assert str(wrong.value).startswith("--upstream: ")
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("url", "target", "host"),
    [
        ("http://h", b"/v1/models?a=b", b"h"),
        ("http://h:80/", b"/v1/models?a=b", b"h"),
        ("http://h:8000/llm/", b"/llm/v1/models?a=b", b"h:8000"),
        ("http://[::1]:8000", b"/v1/models?a=b", b"[::1]:8000"),
    ],
)
def test_a_request_goes_below_the_base(url: str, target: bytes, host: bytes) -> None:
    upstream = parse_upstream(url)
    assert upstream.target("/v1/models", b"a=b") == target
    assert upstream.host == host


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/a/../b", b"/a/../b"),
        ("/a?b#c", b"/a%3Fb%23c"),
        ("/a%2fb", b"/a%252fb"),
        ("/a b\r\n", b"/a%20b%0D%0A"),
        ("/\u00e4", b"/%C3%A4"),
    ],
)
def test_a_path_is_written_so_that_it_reads_as_it_was_judged(path: str, target: bytes) -> None:
    assert parse_upstream("http://h").target(path, b"") == target


def test_a_websocket_goes_to_the_same_place() -> None:
    assert parse_upstream("http://h:1/b").websocket_uri("/r", b"x=1") == "ws://h:1/b/r?x=1"
    assert parse_upstream("https://h").websocket_uri("/r", b"") == "wss://h/r"


def test_the_key_is_in_no_repr() -> None:
    assert "secret" not in repr(parse_upstream("http://h", api_key="secret"))


@pytest.mark.parametrize("key", ["a\nb", "ä", "a\x00"])
def test_a_key_that_no_header_carries_is_refused_unseen(key: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        parse_upstream("http://h", api_key=key)
    assert key not in str(wrong.value)


def test_certificates_must_be_readable_and_wanted(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file in (empty, tmp_path / "absent.pem"):
        with pytest.raises(ConfigurationError, match="--upstream-ca: no certificates"):
            parse_upstream("https://h", file)
    with pytest.raises(ConfigurationError, match="not https"):
        parse_upstream("http://h", empty)


def vllm(*, metrics: str = "", status: int = 200) -> httpx.MockTransport:
    """A test double for the way to a vLLM."""
    answers = {
        "/base/version": httpx.Response(status, json={"version": "0.32.0"}),
        "/base/metrics": httpx.Response(status, text=metrics),
    }

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers.get("authorization") == "Bearer k"
        return answers[request.url.path]

    return httpx.MockTransport(answer)


def doubts(url: str, transport: httpx.BaseTransport | None = None) -> list[str]:
    return doubts_about(parse_upstream(url, api_key="k"), transport)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/base", "http://[::1]/base", "http://localhost/base", "https://h/base"]
)
def test_a_vllm_with_the_connector_raises_no_doubts(url: str) -> None:
    assert doubts(url, vllm(metrics="# HELP kvcustody:blocks_loaded_total x")) == []


def test_a_vllm_without_the_connector_is_told_of() -> None:
    (doubt,) = doubts("http://localhost/base", vllm(metrics="# HELP vllm:x"))
    assert "kvcustody vllm-config" in doubt


def test_a_server_that_is_no_vllm_is_told_of() -> None:
    (doubt,) = doubts("http://localhost/base", vllm(status=404))
    assert "/version with 404" in doubt


def test_a_server_that_is_not_there_yet_is_told_of() -> None:
    (doubt,) = doubts(closed_port())
    assert "not reachable yet (ConnectError)" in doubt


@pytest.mark.parametrize("host", ["10.0.0.1", "vllm.internal"])
def test_clear_text_over_a_network_is_told_of(host: str) -> None:
    (doubt,) = doubts(f"http://{host}/base", vllm(metrics="kvcustody:"))
    assert "clear text" in doubt
