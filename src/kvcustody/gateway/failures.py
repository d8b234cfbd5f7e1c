"""What the gateway refuses: failed authentications, and callers without the right to a route."""

from collections.abc import Callable

from kvcustody.audit import AuditLog
from kvcustody.gateway.routes import Route
from kvcustody.gateway.throttle import Throttle
from kvcustody.identity.caller import Caller, Rejection


class FailureReports:
    """Reports refusals, one audit event a client, reason and interval.

    Args:
        audit: told of them.
        clock: seconds, monotonic.

    """

    def __init__(self, audit: AuditLog, clock: Callable[[], float]) -> None:
        self._audit = audit
        self._unknown = Throttle(clock)
        self._known = Throttle(clock)

    def unauthenticated(self, client: str, rejection: Rejection) -> None:
        """A credential proved nobody.

        Args:
            client: network address.
            rejection: why it is nobody; of its credential, no more than the public id is told.

        """
        suppressed = self._unknown.admit(f"{rejection.reason} {client}")
        if suppressed is None:
            return
        self._audit.record(
            "auth.failed",
            action="authenticate",
            outcome="denied",
            reason=rejection.reason.value,
            client=client,
            key_id=rejection.credential,
            suppressed=suppressed,
        )

    def forbidden(self, client: str, caller: Caller, route: Route, reason: str) -> None:
        """An authenticated caller asked for what it has no right to.

        Args:
            client: network address.
            caller: who asked.
            route: for what.
            reason: `not-admin` or `not-owner`.

        """
        suppressed = self._known.admit(caller.credential or client)
        if suppressed is None:
            return
        self._audit.record(
            "request.refused",
            tenant=caller.principal.tenant,
            workload=caller.principal.workload,
            action="authenticate",
            outcome="denied",
            reason=reason,
            path=route.template,
            key_id=caller.credential,
            suppressed=suppressed,
        )
