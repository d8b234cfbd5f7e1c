"""The ASGI middleware that `vllm serve --middleware kvcustody.gateway.CustodyGateway` installs.

For each request, in order: is its route known → who asks (credential) → may they (admin routes,
stored responses) → out with the client's cache fields → in with salt and assertion → on to vLLM.
Answers stream untouched.
"""

import asyncio
import secrets
import time
from http import HTTPStatus

from kvcustody.config import load_settings
from kvcustody.errors import CustodyError
from kvcustody.gateway.acting_for import principal_of, read_headers
from kvcustody.gateway.failures import FailureReports
from kvcustody.gateway.governing import NO_SUCH_RESPONSE, govern
from kvcustody.gateway.rejections import refusal_for
from kvcustody.gateway.replies import Application, Message, Receive, Refused, Scope, Send
from kvcustody.gateway.reports import report_accepted, report_governed
from kvcustody.gateway.request import (
    path_of,
    presented_credential,
    read_json,
    replay,
    with_request_id,
    without_credential,
)
from kvcustody.gateway.routes import WEBSOCKET, Route, Treatment, find_route
from kvcustody.gateway.services import GatewayServices
from kvcustody.gateway.websocket import RecheckedSession, deny
from kvcustody.identity.caller import AuthenticationFailure, Caller, Rejection

# Above this, parsing takes longer than other requests should wait.
_PARSED_IN_LOOP_BYTES = 256 * 2**10

_MOST_LARGE_BODIES = 2

_UNAVAILABLE = Refused(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "identity_unavailable",
    "Credentials can't be checked at the moment; try again.",
)

_CONNECTOR = "CustodyConnector"


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
        # Parsing takes the interpreter, and many times a body's size in memory.
        self._large_bodies = asyncio.Semaphore(_MOST_LARGE_BODIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Build at start, so that a mistake stops the server; end the audit stream at the end."""
        try:
            self._ready()
        except CustodyError as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": f"kvcustody: {error}"})
            return

        async def close_then_send(message: Message) -> None:
            # Once the server has heard of the end, it may end the process at once.
            if message["type"].startswith("lifespan.shutdown."):
                await self._close()
            await send(message)

        try:
            await self._app(scope, receive, close_then_send)
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._services is not None:
            await asyncio.to_thread(self._services.close)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            route = find_route(scope["method"], path_of(scope))
            if route.treatment is Treatment.OPEN:
                scope = without_credential(scope)
            else:
                scope, receive = await self._admit(scope, receive, route)
        except Refused as refused:
            await refused.reply(send)
            return
        except CustodyError:
            await _UNAVAILABLE.reply(send)
            return
        await self._app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            route = find_route(WEBSOCKET, path_of(scope))
            admitted, receive = await self._admit(scope, receive, route)
        except Refused as refused:
            await deny(scope, receive, send, refused)
            return
        except CustodyError:
            await deny(scope, receive, send, _UNAVAILABLE)
            return

        async def still_allowed() -> bool:
            try:
                await self._authenticate(self._ready(), scope)
            except Refused:
                return False
            except CustodyError:
                return False  # while the registry is away, known callers stay good for a while
            return True

        await RecheckedSession(receive, send, still_allowed).run(self._app, admitted)

    async def _admit(self, scope: Scope, receive: Receive, route: Route) -> tuple[Scope, Receive]:
        """The request as it goes on.

        Raises:
            Refused: it doesn't go on.
            CustodyError: who asks can't be found out now.

        """
        if route.treatment is Treatment.REFUSED:
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
        caller = await self._authenticate(services, scope)
        if route.treatment in {Treatment.STRIPPED, Treatment.SALTED, Treatment.GOVERNED}:
            return await self._govern(services, caller, scope, receive, route)
        self._check_right(services, caller, scope, route)
        request_id = secrets.token_hex(16)
        report_accepted(services.audit, caller, route, caller.principal, request_id)
        return with_request_id(scope, request_id), receive

    async def _govern(
        self,
        services: GatewayServices,
        caller: Caller,
        scope: Scope,
        receive: Receive,
        route: Route,
    ) -> tuple[Scope, Receive]:
        asked = read_headers(scope["headers"])
        body = await read_json(scope, receive)
        # Whoever is slow to send it may have lost the right meanwhile.
        caller = await self._authenticate(services, scope)
        if len(body) > _PARSED_IN_LOOP_BYTES:
            async with self._large_bodies:
                governed = await asyncio.to_thread(govern, services, caller, route, asked, body)
        else:
            governed = govern(services, caller, route, asked, body)
        report_governed(services.audit, caller, route, governed, asked.group or caller.group)
        return (
            with_request_id(scope, governed.request_id, governed.body),
            replay(governed.body, receive),
        )

    def _check_right(
        self, services: GatewayServices, caller: Caller, scope: Scope, route: Route
    ) -> None:
        """Check what takes more than a credential.

        Raises:
            Refused: the caller has no right to the route, or to the object that it names.

        """
        if route.treatment is Treatment.ADMIN and not caller.admin:
            self._reports().forbidden(_client_of(scope), caller, route, "not-admin")
            raise Refused(
                HTTPStatus.FORBIDDEN, "admin_required", "This route needs an admin's credential."
            )
        if route.treatment is Treatment.OWNED:
            tenant = services.tenants[caller.principal.tenant]
            principal = principal_of(caller, tenant, read_headers(scope["headers"]), {})
            owner = services.salts.scope(principal)
            if not services.response_ids.belongs(route.parameter or "", owner):
                self._reports().forbidden(_client_of(scope), caller, route, "not-owner")
                raise NO_SUCH_RESPONSE

    async def _authenticate(self, services: GatewayServices, scope: Scope) -> Caller:
        presented = presented_credential(scope["headers"])
        if presented is None:
            if services.anonymous is not None:
                return Caller(services.anonymous, None)
            raise self._rejected(scope, Rejection(AuthenticationFailure.NO_KEY))
        authenticator = services.authenticator
        caller = authenticator.remembered(presented)
        if caller is not None:
            return caller
        outcome = await asyncio.to_thread(authenticator.authenticate, presented)
        if isinstance(outcome, Rejection):
            raise self._rejected(scope, outcome)
        return outcome

    def _rejected(self, scope: Scope, rejection: Rejection) -> Refused:
        self._reports().unauthenticated(_client_of(scope), rejection)
        return refusal_for(rejection.reason)

    def _reports(self) -> FailureReports:
        if self._failures is None:
            self._failures = FailureReports(self._ready().audit, time.monotonic)
        return self._failures

    def _ready(self) -> GatewayServices:
        if self._services is None:
            # Not at import: the command line imports this package without a configuration.
            from kvcustody.wiring import build_gateway  # noqa: PLC0415 - wiring imports this package

            self._services = build_gateway(load_settings())
        return self._services


def _client_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


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
