"""Which headers pass, and how a body is delimited: the rules by themselves."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcustody.gateway.proxy_headers import (
    Framing,
    framing_of,
    handshake_headers,
    request_headers,
    response_headers,
)
from kvcustody.gateway.replies import Refused

pytestmark = pytest.mark.unit

LENGTH = (b"content-length", b"4")
CHUNKED = (b"transfer-encoding", b"chunked")

names = st.sampled_from(
    [b"content-length", b"transfer-encoding", b"connection", b"x-request-id", b"host", b"x-other"]
)
values = st.sampled_from([b"4", b"5", b"chunked", b"gzip", b"content-length, x-other", b"close"])


@pytest.mark.parametrize(
    ("headers", "framing"),
    [
        ([], Framing.NONE),
        ([LENGTH], Framing.LENGTH),
        ([(b"Content-Length", b"0")], Framing.LENGTH),
        ([CHUNKED], Framing.CHUNKED),
        ([(b"Transfer-Encoding", b" Chunked ")], Framing.CHUNKED),
    ],
)
def test_a_bodys_length_is_stated_once(
    headers: list[tuple[bytes, bytes]], framing: Framing
) -> None:
    assert framing_of(headers) is framing


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([LENGTH, CHUNKED], 400),
        ([LENGTH, LENGTH], 400),
        ([(b"content-length", b"4, 4")], 400),
        ([(b"content-length", b"+4")], 400),
        ([(b"content-length", "\u0664".encode())], 400),  # a digit, to Unicode
        ([(b"content-length", b"")], 400),
        ([CHUNKED, CHUNKED], 501),
        ([(b"transfer-encoding", b"gzip, chunked")], 501),
        ([(b"transfer-encoding", b"identity")], 501),
    ],
)
def test_anything_else_is_refused(headers: list[tuple[bytes, bytes]], status: int) -> None:
    with pytest.raises(Refused) as refused:
        framing_of(headers)
    assert refused.value.status == status


@given(st.lists(st.tuples(names, values), max_size=8))
def test_what_is_sent_states_a_bodys_length_at_most_once_and_one_host(
    headers: list[tuple[bytes, bytes]],
) -> None:
    try:
        sent = request_headers(headers, b"behind", None)
    except Refused:
        return
    given_names = [name for name, _ in sent]
    assert given_names.count(b"content-length") + given_names.count(b"transfer-encoding") <= 1
    assert framing_of(sent) is framing_of(headers)
    assert [value for name, value in sent if name == b"host"] == [b"behind"]
    assert b"connection" not in given_names
    assert given_names.count(b"x-request-id") == [n for n, _ in headers].count(b"x-request-id")


def test_order_and_repetition_stay() -> None:
    headers = [(b"X-A", b"1"), (b"x-b", b""), (b"X-A", b"2")]
    sent = request_headers(headers, b"behind", None)
    assert sent == [(b"host", b"behind"), *headers, (b"via", b"1.1 kvcustody")]


def test_a_request_that_was_here_before_is_refused() -> None:
    first = request_headers([(b"via", b"1.1 edge")], b"behind", None)
    assert [value for name, value in first if name == b"via"] == [b"1.1 edge", b"1.1 kvcustody"]
    with pytest.raises(Refused) as refused:
        request_headers(first, b"behind", None)
    assert refused.value.status is HTTPStatus.LOOP_DETECTED


def test_a_handshake_is_the_librarys_to_write() -> None:
    headers = [
        (b"host", b"x"),
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-key", b"x"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-extensions", b"permessage-deflate"),
        (b"content-length", b"0"),
        (b"x-not-ascii", b"\xe4"),
        (b"origin", b"https://example.org"),
    ]
    assert handshake_headers(headers, b"behind", "k") == [
        ("origin", "https://example.org"),
        ("via", "1.1 kvcustody"),
        ("authorization", "Bearer k"),
    ]


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_content_states_no_length(status: int) -> None:
    headers = [(b"Content-Length", b"5"), (b"ETag", b"x"), (b"Date", b"then")]
    assert response_headers(headers, status) == [(b"etag", b"x")]
    assert response_headers(headers, 200) == [(b"content-length", b"5"), (b"etag", b"x")]
