"""What the audit trail hears of requests that were authenticated."""

from kvcustody.audit import AuditLog
from kvcustody.gateway.governing import Governed
from kvcustody.gateway.routes import Route, Treatment
from kvcustody.identity.caller import Caller
from kvcustody.identity.principal import Principal
from kvcustody.policy import SharingRefusal


def report_accepted(
    audit: AuditLog,
    caller: Caller,
    route: Route,
    principal: Principal,
    request_id: str,
    *,
    group: str | None = None,
) -> None:
    """A request goes on to the server.

    Args:
        audit: told of it.
        caller: who asks.
        route: what for; the trail gets its template, without ids.
        principal: for whom.
        request_id: the gateway's id of the request.
        group: the sharing group whose namespace it uses.

    """
    audit.record(
        "request.accepted",
        tenant=principal.tenant,
        workload=principal.workload,
        request_id=request_id,
        action="administer" if route.treatment is Treatment.ADMIN else "authenticate",
        outcome="ok",
        path=route.template,
        key_id=caller.credential,
        group=group,
    )


def report_governed(
    audit: AuditLog, caller: Caller, route: Route, governed: Governed, asked_group: str | None
) -> None:
    """A request goes on with another body; say what of the client's wishes was not granted.

    Args:
        audit: told of it.
        caller: who asks.
        route: what for.
        governed: the request as it goes on.
        asked_group: the sharing group that it asked for.

    """
    principal = governed.principal
    report_accepted(audit, caller, route, principal, governed.request_id, group=governed.group)
    who = {
        "tenant": principal.tenant,
        "workload": principal.workload,
        "request_id": governed.request_id,
    }
    if governed.removed:
        audit.record(
            "parameters.removed", **who, action="rewrite", outcome="ok", names=governed.removed
        )
    if governed.unshared is not None:
        audit.record(
            "sharing.refused",
            **who,
            action="share",
            outcome="denied",
            reason=governed.unshared.value,
            # The trail gets no word that a client made up.
            group=None if governed.unshared is SharingRefusal.UNKNOWN_GROUP else asked_group,
        )
