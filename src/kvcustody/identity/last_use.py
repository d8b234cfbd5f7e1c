"""When API keys were last used: noted in passing, written together once a minute."""

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy import or_, update

from kvcustody.errors import CustodyError
from kvcustody.registry import Registry
from kvcustody.registry.schema import api_keys

_EVERY_SECONDS = 60.0
_CLOSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class LastUses:
    """Notes which keys are used, so that no request waits for the registry's write.

    Args:
        registry: where the times are kept.
        every: seconds between writes; a time is as old as that at most.
        clock: seconds since 1970.

    """

    def __init__(
        self,
        registry: Registry,
        *,
        every: float = _EVERY_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()  # guards _used
        self._used: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvcustody-key-use", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note(self, key_id: str) -> None:
        """Remember that a key was used now."""
        with self._lock:
            self._used[key_id] = self._clock()

    def write(self) -> None:
        """Write what was noted; if the registry is away, the next time."""
        with self._lock:
            used, self._used = self._used, {}
        if not used:
            return
        try:
            with self._registry.write() as connection:
                for key_id, at in used.items():
                    older = or_(api_keys.c.last_used.is_(None), api_keys.c.last_used < at)
                    connection.execute(
                        update(api_keys).where(api_keys.c.id == key_id, older).values(last_used=at)
                    )
        except CustodyError as error:
            logger.warning("The last use of API keys can't be written: %s", error)
            with self._lock:
                self._used = used | self._used

    def close(self) -> None:
        """Stop the thread and write what is left; a thread that hangs is left behind."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        self.write()

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.write()
            except Exception:
                logger.exception("Writing the last use of API keys failed; it is tried again")
