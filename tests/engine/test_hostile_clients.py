"""A tenant tries to get at another's cache in one real server, with all that a request can say."""

import gzip
import http.client
import json
import re
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from kvcustody.audit import read_events
from kvcustody.identity.assertion import ASSERTION_PARAMETER
from kvcustody.identity.principal import Principal
from served_deployment import BLOCK, CHAT, Served, cached_tokens, chat_fields

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def reused(served: Served, prompt: str) -> int:
    """Tokens that acme reuses of a prompt."""
    return cached_tokens(served.chat("acme", prompt))


def _acmes_last_request(served: Served) -> str:
    ids = [
        str(event["request_id"])
        for event in read_events(served.settings.audit.path)
        if event["event"] == "request.accepted" and event["tenant"] == "acme"
    ]
    return ids[-1]


def test_acmes_own_salt_assertion_and_request_id_give_globex_nothing(
    served: Served,
) -> None:
    """What no client could know, as if it had leaked."""
    acme = Principal("acme", "default")
    salt = served.services.salts(acme, None)
    names = ("request id", "transfer", "xargs", "ticket", "share header", "subject header")
    for name in names:
        prompt = served.prompt()
        assert reused(served, prompt) == 0
        request_id = _acmes_last_request(served)
        assertion = served.services.signer.sign(acme, request_id=request_id, salt=salt, group=None)
        transfer = {ASSERTION_PARAMETER: assertion, "max_load_tokens": 4096}
        words: dict[str, Any] = {"cache_salt": salt, "request_id": request_id}
        headers = {"X_Request_Id": request_id}
        if name == "transfer":
            words |= {"kv_transfer_params": transfer}
        elif name == "xargs":
            inner = {"kv_transfer_params": transfer, "cache_salt": salt}
            words |= {"vllm_xargs": inner, "extra_args": inner, "sampling_params": inner}
        elif name == "ticket":
            words |= {"cache_salt": served.services.tickets.issue(salt, request_id)}
            words |= {"use_beam_search": True, "n": 2, "max_tokens": 1}
        elif name == "share header":
            headers |= {"X_Custody_Share": "acme"}
        elif name == "subject header":
            headers |= {"X_Custody_Subject": "acme"}
        before = served.hits()
        answer = served.post(CHAT, "globex", chat_fields(prompt) | words, **headers)
        assert answer.status_code == (403 if name == "subject header" else 200), answer.text
        assert served.hits() == before, name
        assert reused(served, prompt) >= 2 * BLOCK


@dataclass(frozen=True)
class Trick:
    """One way to send a request.

    Args:
        body: makes it of the honest body and acme's salt, both as JSON.
        status: the answers that are right; 0 is a connection that closes without one.
        path: where it goes.
        headers: beside the honest ones, or instead of them.
        leaves: whether the client closes its side at the end, as the server waits for more.

    """

    status: frozenset[int]
    body: Callable[[str, str], bytes] = lambda honest, _salt: honest.encode()
    path: str = CHAT
    headers: dict[str, str] = field(default_factory=dict)
    leaves: bool = False


def _more(text: str) -> Callable[[str, str], bytes]:
    """An honest body with more fields; @salt stands for acme's salt."""
    return lambda honest, salt: f"{honest[:-1]}, {text.replace('@salt', salt)}}}".encode()


REFUSED, SERVED, NO_SUCH_ROUTE = frozenset({400}), frozenset({200}), frozenset({403})
ENCODED = frozenset({415})
TRICKS = {
    "a field twice": Trick(REFUSED, _more('"cache_salt": @salt, "cache_salt": @salt')),
    "a field twice, once escaped": Trick(
        REFUSED, _more('"cache_salt": @salt, "cache\\u005fsalt": @salt')
    ),
    "an inner field twice": Trick(REFUSED, _more('"x": {"a": 1, "a": 2}')),
    "an escaped name": Trick(SERVED, _more('"cache\\u005fsalt": @salt')),
    "a name in capitals": Trick(SERVED, _more('"CACHE_SALT": @salt')),
    "a name with a NUL": Trick(SERVED, _more('"cache_salt\\u0000": @salt')),
    "a lone surrogate": Trick(REFUSED, _more('"x\\ud800": "\\ud800"')),
    "NaN": Trick(REFUSED, _more('"x": NaN')),
    "infinity": Trick(REFUSED, _more('"x": -Infinity')),
    "a number that overflows": Trick(REFUSED, _more('"x": 1e999')),
    "a huge integer": Trick(REFUSED, _more(f'"x": {"9" * 5000}')),
    "a large seed": Trick(REFUSED, _more(f'"seed": {"9" * 40}')),
    "deep nesting": Trick(REFUSED, _more(f'"x": {"[" * 100_000}{"]" * 100_000}')),
    "a BOM": Trick(REFUSED, lambda honest, _: b"\xef\xbb\xbf" + honest.encode()),
    "UTF-16": Trick(REFUSED, lambda honest, _: honest.encode("utf-16")),
    "UTF-16 that is announced": Trick(
        REFUSED,
        lambda honest, _: honest.encode("utf-16"),
        headers={"Content-Type": "application/json; charset=utf-16"},
    ),
    "invalid UTF-8": Trick(REFUSED, lambda honest, _: honest.encode()[:-1] + b', "x": "\xff"}'),
    "two objects": Trick(
        REFUSED, lambda honest, salt: f'{honest}{{"cache_salt": {salt}}}'.encode()
    ),
    "trailing garbage": Trick(REFUSED, lambda honest, _: honest.encode() + b"\0"),
    "an array": Trick(REFUSED, lambda honest, _: f"[{honest}]".encode()),
    "nothing": Trick(REFUSED, lambda _honest, _salt: b""),
    "gzip": Trick(
        ENCODED,
        lambda honest, _: gzip.compress(honest.encode()),
        headers={"Content-Encoding": "gzip"},
    ),
    "a form": Trick(ENCODED, headers={"Content-Type": "multipart/form-data; boundary=x"}),
    "JSON under another name": Trick(ENCODED, headers={"Content-Type": "application/jsonl"}),
    "text": Trick(ENCODED, headers={"Content-Type": "text/plain"}),
    "two slashes": Trick(NO_SUCH_ROUTE, path=f"/{CHAT}"),
    "a slash at the end": Trick(NO_SUCH_ROUTE, path=f"{CHAT}/"),
    "a dot": Trick(NO_SUCH_ROUTE, path="/v1/./chat/completions"),
    "a way back": Trick(NO_SUCH_ROUTE, path="/health/..%2fv1/chat/completions"),
    "an escaped way back": Trick(NO_SUCH_ROUTE, path="/health/%2e%2e/v1/chat/completions"),
    "capitals": Trick(NO_SUCH_ROUTE, path="/V1/chat/completions"),
    "an escaped letter": Trick(SERVED, _more('"cache_salt": @salt'), path="/v1/ch%61t/completions"),
    "an escaped slash": Trick(SERVED, _more('"cache_salt": @salt'), path="/v1%2fchat/completions"),
    "a query": Trick(SERVED, path=f"{CHAT}?cache_salt=x&kv_transfer_params=x"),
    "a fragment": Trick(SERVED, path=f"{CHAT}#x"),
    "a whole address": Trick(SERVED, path=f"http://acme{CHAT}"),
    "a length that is too short": Trick(REFUSED, headers={"Content-Length": "40"}),
    "a length that is too long": Trick(
        frozenset({0, 400}), headers={"Content-Length": "99999"}, leaves=True
    ),
    "a length that is none": Trick(REFUSED, headers={"Content-Length": "-1"}),
    "chunks": Trick(
        SERVED,
        lambda honest, _: _chunks(honest.encode()),
        headers={"Transfer-Encoding": "chunked"},
    ),
    "chunks and a length": Trick(
        REFUSED,
        lambda honest, _: _chunks(honest.encode()),
        headers={"Transfer-Encoding": "chunked", "Content-Length": "5"},
    ),
    "a chunk that is too large": Trick(
        frozenset({0, 400}),
        lambda honest, _: b"ffffff\r\n" + honest.encode(),
        headers={"Transfer-Encoding": "chunked"},
        leaves=True,
    ),
}


def _chunks(body: bytes) -> bytes:
    """A body in two chunks, of which the first ends within a name."""
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:5], body[5:], b""))


def _send(served: Served, trick: Trick, body: bytes) -> int:
    """Send byte for byte what a trick says, as globex; the answer's status."""
    address = httpx.URL(served.server.url)
    headers = {"Content-Type": "application/json", **served.bearer("globex")}
    headers |= trick.headers
    if "Transfer-Encoding" not in headers:
        headers = {"Content-Length": str(len(body))} | headers
    with closing(http.client.HTTPConnection(address.host, address.port, timeout=60)) as connection:
        connection.putrequest("POST", trick.path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        if trick.leaves:
            connection.sock.shutdown(socket.SHUT_WR)
        try:
            return connection.getresponse().status
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return 0


@pytest.mark.parametrize("name", TRICKS)
def test_no_way_to_write_a_request_gives_globex_what_is_acmes(served: Served, name: str) -> None:
    trick, prompt = TRICKS[name], served.prompt()
    salt = served.services.salts(Principal("acme", "default"), None)
    assert reused(served, prompt) == 0
    before = served.hits()
    body = trick.body(json.dumps(chat_fields(prompt)), json.dumps(salt))
    assert _send(served, trick, body) in trick.status
    assert served.hits() == before
    assert reused(served, prompt) >= 2 * BLOCK


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


@pytest.mark.parametrize("what", REMOVED)
def test_what_a_client_says_of_caches_changes_nothing(served: Served, what: str) -> None:
    prompt = served.prompt()
    assert reused(served, prompt) == 0
    answers = [served.post(CHAT, "globex", chat_fields(prompt) | REMOVED[what]) for _ in range(2)]
    assert [answer.status_code for answer in answers] == 2 * [httpx.codes.OK]
    first, again = (cached_tokens(answer.json()) for answer in answers)
    assert first == 0
    assert again >= 2 * BLOCK, "it has its own tenant's cache all the same"
    assert reused(served, prompt) >= 2 * BLOCK


@pytest.mark.parametrize("what", HEADERS)
def test_no_header_gives_globex_what_is_acmes(served: Served, what: str) -> None:
    prompt = served.prompt()
    assert reused(served, prompt) == 0
    before = served.hits()
    given = {"Content-Type": "application/json", **served.bearer("globex"), **HEADERS[what]}
    body = json.dumps(chat_fields(prompt)).encode()
    answer = httpx.post(served.server.url + CHAT, content=body, headers=given, timeout=120)
    assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR
    assert served.hits() == before
    assert reused(served, prompt) >= 2 * BLOCK


def test_a_request_behind_another_on_one_connection_has_its_own_credential(
    served: Served,
) -> None:
    """A length that lies makes the rest of a body a request: it comes from nobody."""
    prompt = served.prompt()
    assert reused(served, prompt) == 0
    body = json.dumps(chat_fields(prompt)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    length = f"Content-Length: {len(body)}\r\n\r\n"
    first = f"{head}Authorization: Bearer {served.keys['globex']}\r\n{length}".encode() + body
    second = f"{head}Connection: close\r\n{length}".encode() + body
    before = served.hits()
    address = httpx.URL(served.server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as connection:
        connection.sendall(first + second)
        with connection.makefile("rb") as stream:
            answers = re.findall(rb"HTTP/1\.1 (\d+)", stream.read())
    assert answers == [b"200", b"401"]
    assert served.hits() == before
    assert reused(served, prompt) >= 2 * BLOCK


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


def test_after_all_of_it_the_server_is_well(served: Served) -> None:
    assert httpx.get(f"{served.server.url}/health", timeout=30).status_code == 200
    prompt = served.prompt()
    assert [reused(served, prompt) >= 2 * BLOCK for _ in range(2)] == [False, True]
