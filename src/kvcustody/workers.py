"""A fixed number of threads that work off a queue; a hung one never keeps the process alive."""

import logging
import queue
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class WorkerPool:
    """Daemon threads for blocking I/O.

    `concurrent.futures` joins its threads when the interpreter exits, so one read that hangs on a
    dead file server would keep the engine from ever stopping.

    Args:
        name: prefix of the threads' names.
        threads: how many.

    """

    def __init__(self, name: str, threads: int) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task; what it raises is logged."""
        self._tasks.put(task)

    def close(self, timeout: float) -> bool:
        """Let queued tasks finish, for at most `timeout` seconds; whether all did."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("A tier's task failed")
