"""Failed authentications, one audit event a client and interval: a flood must not fill the disk."""

from collections.abc import Callable

from kvcustody.audit import AuditLog
from kvcustody.identity.caller import Rejection

_INTERVAL_SECONDS = 10.0
_MOST_CLIENTS = 1024
# Of all clients together: whoever has many addresses must not fill the disk either.
_MOST_EVENTS = 30


class FailureReports:
    """Reports failed authentications.

    Args:
        audit: told of them.
        clock: seconds, monotonic.

    """

    def __init__(self, audit: AuditLog, clock: Callable[[], float]) -> None:
        self._audit = audit
        self._clock = clock
        self._recent: dict[str, tuple[float, int]] = {}
        self._interval_began = float("-inf")
        self._events = 0
        self._suppressed_elsewhere = 0

    def report(self, client: str, rejection: Rejection) -> None:
        """Report a failure, or count it if its client had one reported a moment ago.

        Args:
            client: network address.
            rejection: why it is nobody; of its credential, no more than the public id is told.

        """
        now = self._clock()
        if now - self._interval_began >= _INTERVAL_SECONDS:
            self._interval_began, self._events = now, 0
        reported, suppressed = self._recent.get(client, (float("-inf"), 0))
        if now - reported < _INTERVAL_SECONDS:
            self._recent[client] = (reported, suppressed + 1)
            return
        if self._events >= _MOST_EVENTS:
            self._suppressed_elsewhere += 1
            return
        self._events += 1
        suppressed += self._suppressed_elsewhere
        self._suppressed_elsewhere = 0
        if len(self._recent) >= _MOST_CLIENTS:
            _, lost = self._recent.pop(next(iter(self._recent)))
            suppressed += lost
        self._recent.pop(client, None)  # re-inserted as the newest
        self._recent[client] = (now, 0)
        self._audit.record(
            "auth.failed",
            action="authenticate",
            outcome="denied",
            reason=rejection.reason.value,
            client=client,
            key_id=rejection.credential,
            suppressed=suppressed,
        )
