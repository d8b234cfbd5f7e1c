"""One audit event a source and interval: a flood must not fill the disk."""

from collections.abc import Callable

_INTERVAL_SECONDS = 10.0
_MOST_SOURCES = 1024
# Of all sources together: whoever has many addresses must not fill the disk either.
_MOST_EVENTS = 30


class Throttle:
    """Lets events through, and counts those that it doesn't.

    Args:
        clock: seconds, monotonic.

    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: dict[str, tuple[float, int]] = {}
        self._interval_began = float("-inf")
        self._events = 0
        self._suppressed_elsewhere = 0

    def admit(self, source: str) -> int | None:
        """Whether an event may be recorded: the number suppressed before it; `None` if not.

        Args:
            source: whose event it is.

        """
        now = self._clock()
        if now - self._interval_began >= _INTERVAL_SECONDS:
            self._interval_began, self._events = now, 0
        recorded, suppressed = self._recent.get(source, (float("-inf"), 0))
        if now - recorded < _INTERVAL_SECONDS:
            self._recent[source] = (recorded, suppressed + 1)
            return None
        if self._events >= _MOST_EVENTS:
            self._suppressed_elsewhere += 1
            return None
        self._events += 1
        suppressed += self._suppressed_elsewhere
        self._suppressed_elsewhere = 0
        if len(self._recent) >= _MOST_SOURCES:
            _, lost = self._recent.pop(next(iter(self._recent)))
            suppressed += lost
        self._recent.pop(source, None)  # re-inserted as the newest
        self._recent[source] = (now, 0)
        return suppressed
