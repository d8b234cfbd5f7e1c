"""Read what a request brings: its path, its credential, its body."""

import asyncio
from http import HTTPStatus

from kvcustody.gateway.acting_for import SHARE_HEADER, SUBJECT_HEADER, Headers
from kvcustody.gateway.replies import Message, Receive, Refused, Scope

# A million tokens of text, or a dozen photographs inline; parsing takes a second and some memory.
_LARGEST_BODY_BYTES = 32 * 2**20
# The largest body over 2 Mbit/s. Whoever takes longer only holds memory.
_BODY_SECONDS = 120.0
# The credential must not reach vLLM's logs.
_CREDENTIAL_HEADERS = frozenset({b"authorization", b"x-api-key"})
# For the gateway alone; or the gateway's to say; or another's session (SageMaker).
_DROPPED_HEADERS = _CREDENTIAL_HEADERS | {
    SUBJECT_HEADER,
    SHARE_HEADER,
    b"x-request-id",
    b"x-amzn-sagemaker-session-id",
}
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})


def path_of(scope: Scope) -> str:
    """The decoded path, without the server's root path."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def presented_credential(headers: Headers) -> str | None:
    """What the request shows: OpenAI clients send a bearer token, Anthropic clients x-api-key."""
    given = {_token(value) for name, value in headers if name.lower() in _CREDENTIAL_HEADERS}
    if not given:
        return None
    return given.pop() if len(given) == 1 else ""  # two identities are none


def _token(value: bytes) -> str:
    text = value.decode("latin-1").strip()
    scheme, _, token = text.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else text


def without_credential(scope: Scope) -> Scope:
    """The request without what it shows for a credential, which nobody behind needs."""
    headers = [
        header for header in scope["headers"] if header[0].lower() not in _CREDENTIAL_HEADERS
    ]
    return {**scope, "headers": headers}


def with_request_id(scope: Scope, request_id: str, body: bytes | None = None) -> Scope:
    """The request as it goes on: under the gateway's id, without what is the gateway's alone.

    Args:
        scope: the request.
        request_id: the gateway's id of it.
        body: the body that replaces the client's; `None` if that goes on.

    """
    dropped = _DROPPED_HEADERS if body is None else _DROPPED_HEADERS | _BODY_HEADERS
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in dropped]
    headers.append((b"x-request-id", request_id.encode()))
    if body is not None:
        headers.append((b"content-length", str(len(body)).encode()))
    return {**scope, "headers": headers}


async def read_json(scope: Scope, receive: Receive) -> bytes:
    """The whole body.

    Raises:
        Refused: it is not JSON, too large, too slow, or the client went away.

    """
    content_type = _single(scope, b"content-type")
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "json_required",
            "Send the body as 'Content-Type: application/json'.",
        )
    if _single(scope, b"content-encoding").strip().lower() not in {b"", b"identity"}:
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "encoding_not_supported",
            "Send the body without 'Content-Encoding'.",
        )
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await _read_body(receive)
    except TimeoutError:
        raise Refused(
            HTTPStatus.REQUEST_TIMEOUT,
            "body_too_slow",
            f"The body took longer than {_BODY_SECONDS:g} s.",
        ) from None


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(HTTPStatus.BAD_REQUEST, "disconnected", "The client went away.")
        part = message.get("body", b"")
        size += len(part)
        if size > _LARGEST_BODY_BYTES:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "body_too_large",
                f"The body is larger than {_LARGEST_BODY_BYTES // 2**20} MiB.",
            )
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _single(scope: Scope, wanted: bytes) -> bytes:
    """A header's value; empty if it isn't there.

    Raises:
        Refused: it is there more than once, so that another may read the other one.

    """
    values = [value for name, value in scope["headers"] if name.lower() == wanted]
    if len(values) > 1:
        raise Refused(
            HTTPStatus.BAD_REQUEST, "invalid_header", f"Send one '{wanted.decode()}' header."
        )
    return bytes(values[0]) if values else b""


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the rewritten body first, then whatever comes (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay_then_receive() -> Message:
        return pending.pop() if pending else await receive()

    return replay_then_receive
