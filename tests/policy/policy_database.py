"""A deployment whose policy an adapter reads, and adapters for it."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from casbin.persist import Adapter, load_policy_line
from sqlalchemy import Engine, text

from kvcustody.config import Settings, load_settings
from kvcustody.identity.principal import Principal
from kvcustody.policy import Decisions

ACME = Principal("acme", "support")
STORE = ("p", "acme", "local", "*", "store", "allow")
LOAD = ("p", "acme", "local", "*", "load", "allow")
DENIAL = ("p", "acme", "local", "disk", "load", "deny")
GOOD = [STORE, LOAD]
SQLALCHEMY = "sqlalchemy_adapter.Adapter"
SECRET = "hunter2"  # noqa: S105 - nobody's

LINE = 9
"""Of the section `authorization` in custody.yaml."""

_TEXT = """\
version: 1
deployment: local
state: state
keys: {{path: root.key}}
tiers: [{{name: disk, path: tier}}]
tenants: {{acme: {{}}, globex: {{}}}}
audit: {{path: audit}}
{more}
authorization: {authorization}
"""


def settings_with(folder: Path, authorization: dict[str, Any], more: str = "") -> Settings:
    """The settings of a deployment; `authorization` is its section."""
    file = folder / "custody.yaml"
    section = json.dumps(authorization)
    file.write_text(_TEXT.format(authorization=section, more=more), encoding="utf-8")
    return load_settings(file)


def private_file(path: Path, content: str) -> Path:
    """A file that is its owner's alone."""
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    return path


def may_load(decisions: Decisions) -> bool:
    """Whether acme may load from the disk."""
    return decisions.decide(ACME)["disk"].load.allowed


class Rows(Adapter):  # type: ignore[misc]  # casbin has no types
    """An adapter of rows in memory, which hands them over as they are."""

    def __init__(self, *rows: Sequence[Any]) -> None:
        self.rows: list[Sequence[Any]] = list(rows)
        self.error: Exception | None = None

    def load_policy(self, model: Any) -> None:
        if self.error is not None:
            raise self.error
        for kind, *values in self.rows:
            model.add_policy(str(kind)[:1], kind, values)


class Lines(Adapter):  # type: ignore[misc]  # casbin has no types
    """An adapter of lines of text, as most of Casbin's adapters make them of their rows."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def load_policy(self, model: Any) -> None:
        for line in self.lines:
            load_policy_line(line, model)


class AsynchronousRows(Adapter):  # type: ignore[misc]  # casbin has no types
    """An adapter of the other kind."""

    async def load_policy(self, model: Any) -> None:
        pass


class Hanging(Adapter):  # type: ignore[misc]  # casbin has no types
    """An adapter whose database does not answer until it is let go."""

    def __init__(self, *rows: Sequence[Any]) -> None:
        self.let_go = threading.Event()
        self.rows = rows
        self.asked = 0

    def load_policy(self, model: Any) -> None:
        self.asked += 1
        assert self.let_go.wait(60)
        for kind, *values in self.rows:
            model.add_policy(kind, kind, values)


class Demanding(Rows):
    """An adapter that remembers what it was made of."""

    made: list["Demanding"] = []  # noqa: RUF012 - of all

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*GOOD)
        self.arguments = arguments
        self.named = named
        self.made.append(self)


class NoAdapter:
    """A class of something else."""


def make_table(engine: Engine, *rows: Sequence[str | None]) -> None:
    """The table that Casbin's SQLAlchemy adapters use, with rows."""
    columns = ", ".join(f"v{number} VARCHAR(255)" for number in range(6))
    key = "SERIAL" if engine.dialect.name == "postgresql" else "INTEGER"
    with engine.begin() as connection:
        connection.execute(
            text(f"CREATE TABLE casbin_rule (id {key} PRIMARY KEY, ptype VARCHAR(255), {columns})")
        )
    add_rows(engine, *rows)


def add_rows(engine: Engine, *rows: Sequence[str | None]) -> None:
    """Add rows to the table."""
    names = ["ptype", *(f"v{number}" for number in range(6))]
    statement = text(
        f"INSERT INTO casbin_rule ({', '.join(names)}) "  # noqa: S608 - names of our own
        f"VALUES ({', '.join(f':{name}' for name in names)})"
    )
    values = [dict(zip(names, [*row, *[None] * 7], strict=False)) for row in rows]
    if values:
        with engine.begin() as connection:
            connection.execute(statement, values)


def remove_rows(engine: Engine, condition: str) -> None:
    """Remove rows from the table."""
    with engine.begin() as connection:
        connection.execute(text(f"DELETE FROM casbin_rule WHERE {condition}"))  # noqa: S608
