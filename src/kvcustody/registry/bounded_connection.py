"""Connections that give up on a PostgreSQL server which has stopped answering.

The server's own time limits don't help if its process hangs, nor TCP's if a proxy still answers.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from psycopg import Connection, OperationalError
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

# A server that refuses at once may be asked by every request; one that keeps them waiting, not.
_SLOW_SECONDS = 1.0
_PAUSE_SECONDS = 5.0

_Result = TypeVar("_Result")


class BoundedConnection(Connection[TupleRow]):
    """Closes itself when an answer takes longer than `answer_seconds`."""

    answer_seconds = 1.5

    def wait(self, gen: PQGen[_Result], *args: Any, **kwargs: Any) -> _Result:
        """Drive the exchange with the server, as psycopg does for every command.

        Args:
            gen: yields whenever it waits for the server.
            args: as psycopg has them.
            kwargs: as psycopg has them.

        Raises:
            OperationalError: the server did not answer; the connection is closed.

        """
        return super().wait(_bounded(gen, self.close, self.answer_seconds), *args, **kwargs)


def _bounded(
    gen: PQGen[_Result], give_up: Callable[[], None], answer_seconds: float
) -> PQGen[_Result]:
    deadline = time.monotonic() + answer_seconds
    try:
        waits_for = next(gen)
        while True:
            # psycopg looks in several times a second, with nothing if there was no answer.
            ready = yield waits_for
            if not ready and time.monotonic() > deadline:
                give_up()
                raise OperationalError("no answer in time")
            waits_for = gen.send(ready)
    except StopIteration as end:
        result: _Result = end.value
        return result


class Connector:
    """Connects, but leaves a server alone for a while that let the last attempt wait in vain.

    Args:
        answer_seconds: how long an answer may take.

    """

    def __init__(self, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        self._paused_until = 0.0

    def connect(
        self, _dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]
    ) -> BoundedConnection:
        """Open a connection; a listener for SQLAlchemy's event `do_connect`.

        Args:
            arguments: for psycopg, from SQLAlchemy.
            options: for psycopg, from SQLAlchemy.

        Raises:
            OperationalError: the server can't be reached, or is left alone.

        """
        started = time.monotonic()
        if started < self._paused_until:
            raise OperationalError("no answer in time, a moment ago")
        try:
            connection = BoundedConnection.connect(*arguments, **options)
        except OperationalError:
            if (now := time.monotonic()) - started > _SLOW_SECONDS:
                self._paused_until = now + _PAUSE_SECONDS
            raise
        connection.answer_seconds = self._answer_seconds
        return connection
