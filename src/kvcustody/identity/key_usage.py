"""When API keys were last used, written to the registry by a thread, so that no request waits."""

import threading
import time
from collections.abc import Callable

from kvcustody.errors import CustodyError
from kvcustody.identity.tokens import KeyStore

# A key that is used all the time costs one row a minute.
_WRITTEN_EVERY_SECONDS = 60.0
_ROUND_SECONDS = 5.0
_CLOSE_SECONDS = 3.0


class KeyUsage:
    """Notes the use of keys, until it is closed.

    Args:
        keys: where times of use are kept.
        clock: seconds since 1970.

    """

    def __init__(self, keys: KeyStore, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self.failures = 0
        """Rounds that could not be written; what they held is written later."""
        self._lock = threading.Lock()  # guards _waiting, which requests and rounds both change
        # Only keys that the registry knows get here, so neither grows without end.
        self._waiting: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvcustody-key-usage", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def note(self, key_id: str) -> None:
        """Note that a key was used now."""
        now = self._clock()
        with self._lock:
            self._waiting[key_id] = now

    def write_due(self, *, all_: bool = False) -> None:
        """Write what waits, except for keys whose time was written less than a minute ago.

        Nobody hears of a failure but `failures`: a time of use is worth no alarm, and whoever needs
        the registry more will report that it is away.

        Args:
            all_: write these, too.

        """
        now = self._clock()
        with self._lock:
            due = {
                key_id: used
                for key_id, used in self._waiting.items()
                if all_ or now - self._written.get(key_id, float("-inf")) >= _WRITTEN_EVERY_SECONDS
            }
        if not due:
            return
        try:
            self._keys.note_use(due)
        except CustodyError:
            self.failures += 1
            return
        self._written.update(dict.fromkeys(due, now))
        with self._lock:
            for key_id, used in due.items():
                if self._waiting[key_id] == used:  # else it was used again meanwhile
                    del self._waiting[key_id]

    def close(self) -> None:
        """Stop the thread, which writes what waits; one that hangs in the registry is left."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        while not self._stop.wait(_ROUND_SECONDS):
            self.write_due()
        self.write_due(all_=True)
