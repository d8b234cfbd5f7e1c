"""Addresses of a registry that are wrong: one line says what is right, and shows no password."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from registries import refusal

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.sqlite",
        "/srv/registry.sqlite",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "sqlite+aiosqlite:///a.db",
        "postgres://host/registry",
        "postgresql+psycopg2://host/registry",
        "postgresql://host:port/registry",
        "postgresql://host/regi\nstry",
        "mysql://root@host/registry",
        "nonsense://x",
    ],
)
def test_an_address_that_is_not_supported_says_what_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(url)
    assert "sqlite:///PATH or postgresql://USER@HOST/DATABASE" in error.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "what_to_do"),
    [
        ("postgresql://host", "names no database; write postgresql://USER@HOST/DATABASE"),
        ("postgresql://host/", "names no database"),
        ("postgresql://host/db?connect_timeout=0", "leave out 'connect_timeout'"),
        ("postgresql://host/db?options=-c%20statement_timeout%3D0", "leave out 'options'"),
        ("postgresql://host/db?password=hunter2", "leave out 'password'"),
        ("postgresql://root:hunter2@host/db?autocommit=1", "leave out 'autocommit'"),
        ("postgresql://root:hunter2@x@host/db", "write @ as %40"),
        ("postgresql://root:x@hunter2/y@host/db", "write @ as %40"),
        ("postgresql+psycopg2://root:hunter2@host/db", "this version supports"),
        ("postgresql://root:hunter2@host:port/db", "not a database URL"),
    ],
)
def test_a_postgresql_address_that_cannot_be_used_says_what_to_change(
    url: str, what_to_do: str
) -> None:
    error = refusal(url)
    assert what_to_do in error.message
    assert "hunter2" not in str(error)


def test_without_its_driver_postgresql_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    importing = builtins.__import__

    def without_psycopg(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "psycopg":
            raise ModuleNotFoundError(name)
        return importing(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "kvcustody.registry.bounded_connection", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    error = refusal("postgresql://root:hunter2@host/db")
    assert "pip install 'kvcustody[postgresql]'" in error.message
    assert "hunter2" not in str(error)
