"""What becomes of a body: for whom the request is, within what it may reuse, and the proof of it.

All of it is computation, so that a large body can be worked on beside the event loop.
"""

import secrets
from dataclasses import dataclass
from http import HTTPStatus

from kvcustody.gateway.acting_for import Asked, principal_of
from kvcustody.gateway.body import BodyError, Fields, parse, serialise, strip
from kvcustody.gateway.replies import Refused
from kvcustody.gateway.response_ids import PREFIX
from kvcustody.gateway.routes import (
    INVOCATIONS_PATH,
    RESPONSES_PATH,
    TOKENS_PATH,
    Route,
    Treatment,
)
from kvcustody.gateway.services import GatewayServices
from kvcustody.identity.assertion import ASSERTION_PARAMETER
from kvcustody.identity.caller import Caller
from kvcustody.identity.principal import Principal
from kvcustody.policy import SharingRefusal

NO_SUCH_RESPONSE = Refused(
    HTTPStatus.NOT_FOUND, "response_not_found", "There is no such response of yours."
)


@dataclass(frozen=True, slots=True)
class Governed:
    """A request as it goes on.

    Args:
        body: what the server gets.
        request_id: the gateway's id of the request.
        principal: for whom it is.
        group: the sharing group whose namespace it uses.
        unshared: why it doesn't use the one that it asked for.
        removed: names of the fields that were taken out.

    """

    body: bytes
    request_id: str
    principal: Principal
    group: str | None
    unshared: SharingRefusal | None
    removed: list[str]


def govern(
    services: GatewayServices, caller: Caller, route: Route, asked: Asked, body: bytes
) -> Governed:
    """Rewrite a body.

    Args:
        services: the gateway's collaborators.
        caller: who asks.
        route: the request's route: `STRIPPED`, `SALTED` or `GOVERNED`.
        asked: what the headers ask for.
        body: what the client sent.

    Raises:
        Refused: the request doesn't go on.

    """
    try:
        return _govern(services, caller, route, asked, parse(body))
    except BodyError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "invalid_body", f"{error}.") from None


def _govern(
    services: GatewayServices, caller: Caller, route: Route, asked: Asked, fields: Fields
) -> Governed:
    _refuse_what_names_others(route, fields)
    stripped = strip(fields, services.client_parameters.allowed)
    if stripped.chose_cache and services.client_parameters.refused:
        raise BodyError(f"leave out {', '.join(stripped.names)}: a client doesn't choose a cache")
    principal = principal_of(caller, services.tenants[caller.principal.tenant], asked, fields)
    own_scope = services.salts.scope(principal)
    previous = fields.get("previous_response_id")
    if previous is not None and not (
        isinstance(previous, str) and services.response_ids.belongs(previous, own_scope)
    ):
        raise NO_SUCH_RESPONSE
    group, unshared = _group(services, principal, asked.group or caller.group)
    if route.template == RESPONSES_PATH:
        request_id = services.response_ids.issue(own_scope)
        fields["request_id"] = PREFIX + request_id
    else:
        request_id = secrets.token_hex(16)
    if route.treatment is not Treatment.STRIPPED:
        salt = services.salts(principal, group)
        if route.treatment is Treatment.SALTED or fields.get("use_beam_search"):
            # vLLM begins a request for each beam and token, which carries a salt and no more.
            fields["cache_salt"] = services.tickets.issue(salt, request_id)
        else:
            assertion = services.signer.sign(
                principal, request_id=request_id, salt=salt, group=group
            )
            fields["cache_salt"] = salt
            fields["kv_transfer_params"] = {ASSERTION_PARAMETER: assertion, **stripped.allowed}
    return Governed(serialise(fields), request_id, principal, group, unshared, stripped.names)


def _refuse_what_names_others(route: Route, fields: Fields) -> None:
    """Refuse fields that name somebody's object, and can't be taken out without loss."""
    if route.template == TOKENS_PATH and fields.get("features") is not None:
        # A picture by the hash that vLLM's encoder cache knows it by.
        raise BodyError("'features' is not available here; send pictures as 'content_parts'")
    if route.template == INVOCATIONS_PATH and "requestType" in fields:
        raise BodyError("sessions are not available here")


def _group(
    services: GatewayServices, principal: Principal, asked: str | None
) -> tuple[str | None, SharingRefusal | None]:
    """The sharing group that the request uses, or why it doesn't use the one it asked for."""
    if asked is None:
        return None, None
    refusal = services.sharing.refusal(principal, asked)
    return (asked, None) if refusal is None else (None, refusal)
