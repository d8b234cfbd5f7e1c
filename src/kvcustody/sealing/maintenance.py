"""The engine's key maintenance: one thread that keeps keys fresh, rotates, destroys and wipes."""

import logging
import threading
import time
from collections.abc import Callable

from kvcustody.errors import CustodyError
from kvcustody.sealing.key_table import KeyTable
from kvcustody.sealing.keyring import Keyring

REFRESH_SECONDS = 5.0
"""How soon an engine takes over what others did: a destroyed key lives this long in its memory."""

# An engine seals with an ended epoch until it hears of the new one, and clocks differ.
_GRACE_SECONDS = 3600.0
_CLOSE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class KeyMaintenance:
    """Looks after a key ring, until it is closed.

    Args:
        keyring: the keys in memory.
        table: the keys in the registry.
        longest_life: seconds that a block lives at most on any tier; epochs that ended longer ago
            open nothing any more and are destroyed.
        every: seconds between rounds.
        clock: seconds since 1970.

    """

    def __init__(
        self,
        keyring: Keyring,
        table: KeyTable,
        *,
        longest_life: float,
        every: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keyring = keyring
        self._table = table
        self._longest_life = longest_life
        self._every = every
        self._clock = clock
        self._signature: tuple[int, ...] = ()
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvcustody-key-upkeep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; one that hangs in the registry is left behind."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def run_once(self) -> None:
        """One round; what can't be done now is done in a later one."""
        try:
            signature = self._table.signature()
            if signature != self._signature:
                self._keyring.refresh()
                self._signature = signature
            self._keyring.rotate_due()
            self._table.destroy_retired(self._clock() - self._longest_life - _GRACE_SECONDS)
        except CustodyError as error:
            if not self._failing:
                logger.warning("Key maintenance has to wait: %s", error)
            self._failing = True
        else:
            self._failing = False
        finally:
            self._keyring.expire()

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.run_once()
            except Exception:
                logger.exception("Key maintenance failed; the next round tries again")
