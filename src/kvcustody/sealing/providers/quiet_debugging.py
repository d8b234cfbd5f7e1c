"""Keeps a library's debug messages, which show what it sends, out of the log while it has a key."""

import logging
import threading
from types import TracebackType


class QuietDebugging(logging.Filter):
    """Drops the debug messages of some libraries that come from a thread inside a `with` block.

    boto3 logs each request and answer at level DEBUG, keys included. Other users of the library,
    such as a tier in S3, go on logging.

    Args:
        libraries: names of their loggers; those below are meant, too.

    """

    def __init__(self, *libraries: str) -> None:
        super().__init__()
        self._libraries = libraries
        self._here = threading.local()

    def cover(self) -> None:
        """Cover loggers that have come to exist, once the library is in use."""
        for name in list(logging.root.manager.loggerDict):
            if name.split(".", maxsplit=1)[0] in self._libraries:
                logging.getLogger(name).addFilter(self)

    def __enter__(self) -> None:
        self._here.depth = getattr(self._here, "depth", 0) + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._here.depth -= 1

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message may be logged."""
        return record.levelno > logging.DEBUG or not getattr(self._here, "depth", 0)
