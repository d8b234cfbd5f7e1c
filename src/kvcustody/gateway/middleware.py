"""The ASGI middleware that `vllm serve --middleware kvcustody.gateway.CustodyGateway` installs.

For each request, in order: is its route known → who asks (API key) → is the tenant known → out
with the client's cache fields → in with salt and assertion → on to vLLM. Answers stream untouched.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from http import HTTPStatus

from kvcustody.config import load_settings
from kvcustody.errors import CustodyError
from kvcustody.gateway.body import BodyError, Injection, rewrite
from kvcustody.gateway.failures import FailureReports
from kvcustody.gateway.replies import Application, Message, Receive, Refused, Scope, Send
from kvcustody.gateway.routes import RESPONSES_PATH, Treatment, treatment
from kvcustody.gateway.services import GatewayServices
from kvcustody.identity.assertion import ASSERTION_PARAMETER
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import key_id_of

# A million tokens of text, or a dozen photographs inline; parsing takes a second and some memory.
_LARGEST_BODY_BYTES = 32 * 2**20
# Above this, parsing takes longer than other requests should wait.
_PARSED_IN_LOOP_BYTES = 256 * 2**10
# The key must not reach vLLM's logs; the engine's request id is the gateway's to choose.
_KEY_HEADERS = frozenset({b"authorization", b"x-api-key"})
_REPLACED_HEADERS = _KEY_HEADERS | {b"x-request-id", b"content-length", b"transfer-encoding"}

_UNAVAILABLE = Refused(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "identity_unavailable",
    "API keys can't be checked at the moment; try again.",
)

_CONNECTOR = "CustodyConnector"

Headers = Sequence[tuple[bytes, bytes]]


class CustodyGateway:
    """Authenticates requests, and governs those that carry a prompt.

    Args:
        app: the server behind.
        services: the gateway's collaborators; without them they are made from the custody.yaml
            that `KVCUSTODY_CONFIG` names, when the first message arrives.

    """

    def __init__(self, app: Application, services: GatewayServices | None = None) -> None:
        self._app = app
        self._services = services
        self._failures: FailureReports | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            # No websocket route is governed yet.
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Build at start, so that a mistake stops the server; end the audit stream at the end."""
        try:
            self._ready()
        except CustodyError as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": f"kvcustody: {error}"})
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if self._services is not None:
                await asyncio.to_thread(self._services.close)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            path = _path(scope)
            what = treatment(scope["method"], path)
            if what is not Treatment.OPEN:
                scope, receive = await self._admit(scope, receive, what, path)
        except Refused as refused:
            await refused.reply(send)
            return
        except CustodyError:
            await _UNAVAILABLE.reply(send)
            return
        await self._app(scope, receive, send)

    async def _admit(
        self, scope: Scope, receive: Receive, what: Treatment, path: str
    ) -> tuple[Scope, Receive]:
        """The request as it goes on.

        Raises:
            Refused: it doesn't go on.
            CustodyError: who asks can't be found out now.

        """
        if what is Treatment.REFUSED:
            raise Refused(
                HTTPStatus.FORBIDDEN, "route_not_allowed", "This route is not open to clients."
            )
        services = self._ready()
        if not _engine_is_governed(scope):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "not_under_custody",
                "This server runs without the custody connector; its operator must correct that.",
            )
        principal, key_id = await self._authenticate(services, scope)
        if what is Treatment.AUTHENTICATED:
            return _with_headers(scope, ()), receive
        body = await _read_body(scope, receive)
        request_id = secrets.token_hex(16)
        salt = services.salts(principal)
        assertion = services.signer.sign(principal, request_id=request_id, salt=salt)
        injection = Injection(
            salt,
            {ASSERTION_PARAMETER: assertion},
            f"resp_{request_id}" if path == RESPONSES_PATH else None,
        )
        try:
            if len(body) > _PARSED_IN_LOOP_BYTES:
                rewritten, removed = await asyncio.to_thread(rewrite, body, injection)
            else:
                rewritten, removed = rewrite(body, injection)
        except BodyError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "invalid_body", f"{error}.") from None
        who = {
            "tenant": principal.tenant,
            "workload": principal.workload,
            "request_id": request_id,
        }
        services.audit.record(
            "request.accepted", **who, action="authenticate", outcome="ok", path=path, key_id=key_id
        )
        if removed:
            services.audit.record(
                "parameters.removed", **who, action="rewrite", outcome="ok", names=removed
            )
        headers = [
            (b"x-request-id", request_id.encode()),
            (b"content-length", str(len(rewritten)).encode()),
        ]
        return _with_headers(scope, headers), _replay(rewritten, receive)

    async def _authenticate(
        self, services: GatewayServices, scope: Scope
    ) -> tuple[Principal, str | None]:
        presented = _presented_key(scope["headers"])
        if presented is None:
            if services.anonymous is not None:
                return services.anonymous, None
            self._report(scope, "no-key", None)
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                "missing_api_key",
                "Send your API key as 'Authorization: Bearer KEY'.",
            )
        key = await asyncio.to_thread(services.keys.authenticate, presented)
        if key is None:
            self._report(scope, "invalid-key", key_id_of(presented))
            raise Refused(HTTPStatus.UNAUTHORIZED, "invalid_api_key", "This API key is not valid.")
        if key.principal.tenant not in services.tenants:
            self._report(scope, "unknown-tenant", key.id)
            raise Refused(
                HTTPStatus.FORBIDDEN, "unknown_tenant", "This API key's tenant is not served here."
            )
        return key.principal, key.id

    def _report(self, scope: Scope, reason: str, key_id: str | None) -> None:
        if self._failures is None:
            self._failures = FailureReports(self._ready().audit, time.monotonic)
        client = scope.get("client")
        self._failures.report(str(client[0]) if client else "unknown", reason, key_id)

    def _ready(self) -> GatewayServices:
        if self._services is None:
            # Not at import: the command line imports this package without a configuration.
            from kvcustody.wiring import build_gateway  # noqa: PLC0415 - wiring imports this package

            self._services = build_gateway(load_settings())
        return self._services


def _path(scope: Scope) -> str:
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _engine_is_governed(scope: Scope) -> bool:
    """Whether the server behind uses our connector, as far as it tells.

    vLLM keeps its configuration in the application's state. An option such as
    `--kv-offloading-size` replaces the connector without a word (vllm/config/vllm.py,
    `_post_init_kv_transfer_config`); then every tenant would share one cache.
    """
    config = getattr(getattr(scope.get("app"), "state", None), "vllm_config", None)
    if config is None:
        return True
    transfer = getattr(config, "kv_transfer_config", None)
    return getattr(transfer, "kv_connector", None) == _CONNECTOR


def _presented_key(headers: Headers) -> str | None:
    """The key of a request: OpenAI clients send a bearer token, Anthropic clients x-api-key."""
    given = [value for name, value in headers if name.lower() in _KEY_HEADERS]
    if not given:
        return None
    if len(set(given)) > 1:
        return ""  # two identities are none
    text = given[0].decode("latin-1").strip()
    scheme, _, token = text.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else text


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body.

    Raises:
        Refused: it is not JSON, too large, or the client went away.

    """
    content_type = next(
        (value for name, value in scope["headers"] if name.lower() == b"content-type"), b""
    )
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "json_required",
            "Send the body as 'Content-Type: application/json'.",
        )
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


def _with_headers(scope: Scope, added: Headers) -> Scope:
    """The request with other headers; without `added`, only what names the key is dropped."""
    dropped = _REPLACED_HEADERS if added else _KEY_HEADERS
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in dropped]
    return {**scope, "headers": [*kept, *added]}


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the rewritten body first, then whatever comes (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
