"""Which headers pass the reverse proxy, and how a body is delimited (RFC 9110, RFC 9112).

1. Hop-by-hop headers, and those that `Connection` names, go no further – but a client can't name
   away what delimits the body or what the gateway itself has set.
2. A body's length is stated once: by `Content-Length`, or by chunks. Anything else is refused, so
   that this gateway and the server behind never disagree on where a request ends.
3. Credentials and the gateway's own headers end here.
4. `Forwarded`, `X-Forwarded-*` and `X-Real-IP` are dropped and none is added: a client can write
   anything there, and a server that generates text needs no addresses.
"""

from enum import Enum
from http import HTTPStatus

from kvcustody.gateway.acting_for import SHARE_HEADER, SUBJECT_HEADER, Headers
from kvcustody.gateway.replies import Refused

PSEUDONYM = b"kvcustody"
"""Our name in `Via`."""

HeaderList = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# `Connection: content-length` would have the server behind read a body as the next request.
_NOT_TO_NAME_AWAY = frozenset(
    {b"content-length", b"content-type", b"content-encoding", b"x-request-id"}
)
_END_HERE = frozenset(
    {
        b"authorization",
        b"x-api-key",
        SUBJECT_HEADER,
        SHARE_HEADER,
        b"host",  # the server behind has its own
        b"expect",  # the server in front has answered it
        b"forwarded",
        b"x-real-ip",
    }
)
_FORWARDED_PREFIX = b"x-forwarded-"
_OF_A_HANDSHAKE = b"sec-websocket-"
# The server in front writes its own.
_WRITTEN_ANEW = frozenset({b"date", b"server"})
_WITHOUT_CONTENT = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class Framing(Enum):
    """How a request's body is delimited."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"


def framing_of(headers: Headers) -> Framing:
    """How a request's body is delimited.

    Raises:
        Refused: its headers say more than one thing, or what we don't understand.

    """
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings and lengths:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            "ambiguous_length",
            "Send either 'Content-Length' or 'Transfer-Encoding'.",
        )
    if codings:
        if [coding.strip().lower() for coding in codings] != [b"chunked"]:
            raise Refused(
                HTTPStatus.NOT_IMPLEMENTED,
                "transfer_coding_not_supported",
                "Send the body without 'Transfer-Encoding', or chunked and no more.",
            )
        return Framing.CHUNKED
    if not lengths:
        return Framing.NONE
    if len(lengths) > 1 or not lengths[0].isdigit():
        raise Refused(
            HTTPStatus.BAD_REQUEST, "ambiguous_length", "Send one number as 'Content-Length'."
        )
    return Framing.LENGTH


def request_headers(headers: Headers, host: bytes, api_key: str | None) -> HeaderList:
    """A request's headers as they go to the server behind.

    Args:
        headers: as they came.
        host: the server's name.
        api_key: what the server wants to see from us, if anything.

    Raises:
        Refused: the request has been here before.

    """
    dropped = _dropped(headers) | _END_HERE
    passed = [
        (name, value)
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(_FORWARDED_PREFIX)
    ]
    if any(name.lower() == b"via" and PSEUDONYM in value for name, value in passed):
        raise Refused(
            HTTPStatus.LOOP_DETECTED, "loop", "The gateway's upstream leads back to a gateway."
        )
    ours = [(b"via", b"1.1 " + PSEUDONYM)]
    if api_key is not None:
        ours.append((b"authorization", b"Bearer " + api_key.encode()))
    if framing_of(headers) is Framing.CHUNKED:
        ours.append((b"transfer-encoding", b"chunked"))
    return [(b"host", host), *passed, *ours]


def handshake_headers(headers: Headers, host: bytes, api_key: str | None) -> list[tuple[str, str]]:
    """The headers of a websocket's handshake, without those that the client library writes."""
    written = {b"host", b"content-length", b"transfer-encoding"}
    found = []
    for name, value in request_headers(headers, host, api_key):
        if name.lower() in written or name.lower().startswith(_OF_A_HANDSHAKE):
            continue
        try:
            found.append((name.decode("ascii"), value.decode("ascii")))
        except UnicodeDecodeError:
            continue  # how the library encodes other text differs from version to version
    return found


def response_headers(headers: Headers, status: int) -> HeaderList:
    """A response's headers as they go to the client."""
    dropped = _dropped(headers) | _WRITTEN_ANEW
    if status in _WITHOUT_CONTENT:
        # Of the content that isn't sent; the server in front would wait for it.
        dropped |= {b"content-length"}
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


def _dropped(headers: Headers) -> frozenset[bytes]:
    """Names of the headers that are for this hop alone."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return _HOP_BY_HOP | (named - _NOT_TO_NAME_AWAY)
