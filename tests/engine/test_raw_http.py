"""Hostile HTTP before a real server: nothing reaches another's cache, and nothing ends the server.

Each attack carries a prompt that acme has cached, and globex's key. It is refused, or answered
without reuse; acme itself reuses its cache in the same test.
"""

import gzip
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from served_deployment import BLOCK, CHAT, Served, cached_tokens, chat_fields

pytestmark = [pytest.mark.engine, pytest.mark.slow]

_DEEP = 100_000


def body_of(prompt: str, **fields: Any) -> str:
    return json.dumps(chat_fields(prompt) | fields)


def with_raw(prompt: str, raw: str) -> bytes:
    """A chat body with more text before its end."""
    return (body_of(prompt)[:-1] + f", {raw}}}").encode()


# What a client may not say; the request is answered as if it hadn't.
REMOVED: dict[str, dict[str, Any]] = {
    "salt": {"cache_salt": "acme"},
    "assertion": {"kv_transfer_params": {"kvcustody": "e30.e30.e30"}},
    "transfer parameters of no kind": {"kv_transfer_params": "text"},
    "peer": {"kv_transfer_params": {"remote_kv_source": {"remote_host": "10.0.0.9"}}},
    "peer's tokens": {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}},
    "smuggled parameters": {"vllm_xargs": {"kv_transfer_params": {"kvcustody": "x"}}},
    "smuggled text": {"vllm_xargs": {"kv_transfer_params": "x"}},
    "hints": {"kv_hints": {"priority": 1}},
    "request id": {"request_id": "acme"},
}
# Bodies that a careless parser reads as something else.
BODIES: dict[str, Callable[[str], bytes]] = {
    "salt under an escaped name": lambda prompt: with_raw(prompt, r'"cache\u005fsalt": "acme"'),
    "salt twice": lambda prompt: with_raw(prompt, '"cache_salt": "a", "cache_salt": "b"'),
    "one plain, one escaped": lambda p: with_raw(p, r'"seed": 1, "cache_salt": 1, "\u0073eed": 2'),
    "key twice below": lambda prompt: with_raw(prompt, '"vllm_xargs": {"a": 1, "a": 2}'),
    "NaN": lambda prompt: with_raw(prompt, '"temperature": NaN'),
    "infinity": lambda prompt: with_raw(prompt, '"top_p": -Infinity'),
    "a float beyond all": lambda prompt: with_raw(prompt, '"temperature": 1e999'),
    "an integer beyond all": lambda prompt: with_raw(prompt, '"seed": ' + "9" * 5_000),
    "deep lists": lambda prompt: with_raw(prompt, '"a": ' + "[" * _DEEP + "]" * _DEEP),
    "deep objects": lambda prompt: with_raw(prompt, '"a": ' + '{"a":' * _DEEP + "1" + "}" * _DEEP),
    "many names": lambda prompt: with_raw(prompt, ",".join(f'"k{n}": 1' for n in range(100_000))),
    "lone surrogate": lambda prompt: with_raw(prompt, r'"cache_salt": "\ud800"'),
    "lone surrogate as prompt": lambda prompt: body_of(prompt + "\ud800").encode(),
    "byte order mark": lambda prompt: b"\xef\xbb\xbf" + body_of(prompt).encode(),
    "UTF-16": lambda prompt: body_of(prompt, cache_salt="acme").encode("utf-16"),
    "UTF-32": lambda prompt: body_of(prompt, cache_salt="acme").encode("utf-32"),
    "no UTF-8": lambda prompt: body_of(prompt).encode() + b"\xff",
    "trailing text": lambda prompt: body_of(prompt).encode() + b'{"cache_salt": "acme"}',
    "zero byte": lambda prompt: body_of(prompt).encode() + b"\0",
    "list": lambda prompt: f"[{body_of(prompt)}]".encode(),
    "text": lambda prompt: json.dumps(body_of(prompt)).encode(),
    "comment": lambda prompt: b"/* */" + body_of(prompt).encode(),
    "nothing": lambda _prompt: b"",
    "null": lambda _prompt: b"null",
}
HEADERS: dict[str, dict[str, str]] = {
    "acme's request id": {"X-Request-Id": "acme"},
    "text": {"Content-Type": "text/plain"},
    "form": {"Content-Type": "multipart/form-data; boundary=x"},
    "other charset": {"Content-Type": "application/json; charset=utf-16"},
    "gzip that it isn't": {"Content-Encoding": "gzip"},
    "method override": {"X-HTTP-Method-Override": "DELETE"},
    "forwarded": {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Prefix": "/health"},
    "other's key beside": {"x-api-key": "kvc_000000000000_" + "A" * 43},
}
# Other spellings of the path; none may come through ungoverned.
PATHS = [
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions;a=b",
    "/v1/chat/%63ompletions",
    "/v1%2fchat%2fcompletions",
    "/V1/CHAT/COMPLETIONS",
    "/health/../v1/chat/completions",
    "/health/%2e%2e/v1/chat/completions",
    "/v1/chat/completions?path=/health",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0a",
]


def warm(served: Served) -> str:
    """A prompt that acme has cached, and reuses."""
    prompt = served.prompt()
    assert cached_tokens(served.chat("acme", prompt)) == 0
    return prompt


def check_unharmed(served: Served, prompt: str) -> None:
    """The server still serves, and acme still has its cache."""
    assert cached_tokens(served.chat("acme", prompt)) >= BLOCK


def check_no_reuse(answer: httpx.Response) -> None:
    assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, answer.text
    if answer.status_code == httpx.codes.OK:
        assert cached_tokens(answer.json()) == 0


def check_raw(answer: bytes) -> None:
    """The same for an answer's bytes; none is the server hanging up."""
    if not answer:
        return
    status = int(answer.split(b" ", 2)[1])
    assert status < httpx.codes.INTERNAL_SERVER_ERROR
    if status == httpx.codes.OK:
        assert cached_tokens(json.loads(answer.partition(b"\r\n\r\n")[2])) == 0


def send(served: Served, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    given = {"Content-Type": "application/json", **served.bearer("globex"), **headers}
    return httpx.post(served.server.url + path, content=body, headers=given, timeout=120)


def send_raw(served: Served, head: str, body: bytes, *, ended: bool = True) -> bytes:
    """What the server answers to bytes; nothing if it hangs up.

    Args:
        served: the server.
        head: the request's beginning.
        body: what follows the headers.
        ended: whether the client says that it sends no more; else the server ends, after 5 s.

    """
    host, port = served.server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        key = served.bearer("globex")["Authorization"]
        lines = f"{head}\r\nHost: x\r\nAuthorization: {key}\r\nContent-Type: application/json\r\n"
        connection.sendall(lines.encode().replace(b"\n\r\n", b"\n") + body)
        if ended:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while part := connection.recv(65_536):
                received += part
        except ConnectionResetError:
            pass
    return received


@pytest.mark.parametrize("what", REMOVED)
def test_what_a_client_says_of_caches_changes_nothing(served: Served, what: str) -> None:
    prompt = warm(served)
    answers = [served.post(CHAT, "globex", chat_fields(prompt) | REMOVED[what]) for _ in range(2)]
    assert [answer.status_code for answer in answers] == 2 * [httpx.codes.OK]
    first, again = (cached_tokens(answer.json()) for answer in answers)
    assert first == 0
    assert again >= BLOCK, "it has its own tenant's cache all the same"
    check_unharmed(served, prompt)


@pytest.mark.parametrize("what", BODIES)
def test_a_body_with_two_readings_reaches_no_others_cache(served: Served, what: str) -> None:
    prompt = warm(served)
    check_no_reuse(send(served, CHAT, BODIES[what](prompt), {}))
    check_unharmed(served, prompt)


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_reaches_no_others_cache(served: Served, what: str) -> None:
    prompt = warm(served)
    check_no_reuse(send(served, CHAT, body_of(prompt).encode(), HEADERS[what]))
    check_unharmed(served, prompt)


@pytest.mark.parametrize("path", PATHS)
def test_another_spelling_of_the_path_is_governed_or_refused(served: Served, path: str) -> None:
    prompt = warm(served)
    body = body_of(prompt, cache_salt="acme").encode()
    head = f"POST {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}"
    check_raw(send_raw(served, head, b"\r\n" + body))
    check_unharmed(served, prompt)


def test_a_compressed_body_is_refused(served: Served) -> None:
    prompt = warm(served)
    body = gzip.compress(body_of(prompt).encode())
    answer = send(served, CHAT, body, {"Content-Encoding": "gzip"})
    assert answer.status_code == httpx.codes.UNSUPPORTED_MEDIA_TYPE
    check_unharmed(served, prompt)


def test_a_body_in_chunks_is_governed_like_any_other(served: Served) -> None:
    prompt = warm(served)
    text = body_of(prompt, cache_salt="acme").encode()
    headers = {"Content-Type": "application/json", **served.bearer("globex")}
    for expected in (False, True):
        parts = (text[start : start + 100] for start in range(0, len(text), 100))
        answer = httpx.post(served.server.url + CHAT, content=parts, headers=headers, timeout=120)
        assert (cached_tokens(answer.json()) > 0) is expected
    check_unharmed(served, prompt)


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: {short}",
        "Content-Length: {long}",
        "Content-Length: {right}\r\nContent-Length: {short}",
        "Content-Length: -1",
        "Content-Length: {right}\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Content-Length: 1e3",
    ],
)
def test_a_lie_about_a_bodys_length_reaches_no_others_cache(served: Served, framing: str) -> None:
    prompt = warm(served)
    body = body_of(prompt).encode()
    lengths = {"short": len(body) - 10, "right": len(body), "long": len(body) + 10}
    head = f"POST {CHAT} HTTP/1.1\r\nConnection: close\r\n{framing.format(**lengths)}"
    check_raw(send_raw(served, head, b"\r\n" + body))
    check_unharmed(served, prompt)


def test_a_second_request_hidden_behind_the_first_is_governed(served: Served) -> None:
    prompt = warm(served)
    hidden = body_of(prompt, cache_salt="acme").encode()
    smuggled = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(hidden)}\r\n\r\n"
    ).encode() + hidden
    head = "POST /ping HTTP/1.1\r\nContent-Length: 0"
    answer = send_raw(served, head, b"\r\n" + smuggled, ended=False)
    assert b"cached_tokens" not in answer
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 401" in answer
    check_unharmed(served, prompt)


def test_a_stored_response_is_its_owners(served: Served) -> None:
    fields = {"model": "demo", "input": served.prompt(), "max_output_tokens": 4}
    made = served.post("/v1/responses", "acme", fields).json()
    path = f"/v1/responses/{made['id']}"
    go_on = fields | {"previous_response_id": made["id"]}
    for who in ("globex", "lab, chat"):
        assert served.get(path, who).status_code == httpx.codes.NOT_FOUND
        assert served.post(f"{path}/cancel", who, {}).status_code == httpx.codes.NOT_FOUND
        refused = served.post("/v1/responses", who, go_on)
        assert refused.status_code == httpx.codes.NOT_FOUND
    found = served.get(path, "acme, other key")
    assert (found.status_code, found.json()["id"]) == (httpx.codes.OK, made["id"])
    assert served.post("/v1/responses", "acme", go_on).status_code == httpx.codes.OK
