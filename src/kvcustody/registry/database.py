"""What a database must offer to hold the registry; each kind has a module of its own."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, Insert, Table
from sqlalchemy.exc import SQLAlchemyError

from kvcustody.errors import ConfigurationError, CustodyError


class Database(Protocol):
    """A database that the registry may lie in."""

    @property
    def reader(self) -> Engine:
        """Connections for queries, whose transactions each see one state of it.

        Every wait on these connections, and on a writer's, ends within seconds.
        """

    @property
    def writer(self) -> Engine:
        """Connections for changes; shares its pool with `reader`."""

    def begin_exclusively(self) -> AbstractContextManager[Connection]:
        """A transaction that only one process at a time is in, for changes to the tables.

        Raises:
            SQLAlchemyError: another is in it (see `is_locked`), or the database failed.

        """

    def insert_if_absent(self, table: Table, values: Mapping[str, Any]) -> Insert:
        """A statement that adds a row unless there is one with its key."""

    def scrub(self) -> None:
        """Drop what is still kept of values that were deleted or replaced, as far as it can be.

        Raises:
            SQLAlchemyError: the database failed.

        """

    def is_locked(self, error: SQLAlchemyError) -> bool:
        """Whether others were in the way, so that the same may succeed a moment later."""

    def refusal(self, message: str) -> ConfigurationError:
        """An error that says what is wrong with the registry's content, and where it lies."""

    def explain(self, error: SQLAlchemyError) -> CustodyError:
        """An error for a person: without statement, parameters and password."""
