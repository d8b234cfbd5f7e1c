"""The adapter that custody.yaml names: found, made, and given what it needs."""

import sys
import time
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError, CustodyError
from kvcustody.wiring.policy import LivePolicy, load_decisions, open_policy_source
from policy_database import (
    DENIAL,
    GOOD,
    LINE,
    SECRET,
    SQLALCHEMY,
    Demanding,
    add_rows,
    make_table,
    may_load,
    private_file,
    settings_with,
)
from tier_doubles import RecordingAudit

pytestmark = pytest.mark.unit


def settings_of(folder: Path, class_name: str, **fields: Any) -> Settings:
    return settings_with(folder, {"adapter": {"class": class_name, **fields}})


def refusal(settings: Settings) -> str:
    with pytest.raises(CustodyError) as caught:
        load_decisions(settings)
    assert len(str(caught.value).splitlines()) == 1
    assert SECRET not in repr(caught.value)
    return str(caught.value)


def until_recorded(audit: RecordingAudit, event: str) -> None:
    deadline = time.monotonic() + 20
    while not audit.named(event):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Engine]:
    """A SQLite file with a good policy in it, and its URL in `policy.url`."""
    url = f"sqlite:///{tmp_path / 'policy.sqlite'}"
    private_file(tmp_path / "policy.url", f"{url}\n")
    engine = create_engine(url)
    make_table(engine, *GOOD)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        (
            "no_such_module.Adapter",
            "there is no module 'no_such_module'; install the package that has it",
        ),
        ("policy_database.nothing", "module 'policy_database' has no class 'nothing'"),
        ("policy_database.make_table", "module 'policy_database' has no class 'make_table'"),
        ("policy_database.NoAdapter", "'NoAdapter' is no Casbin adapter: it has no load_policy"),
        ("policy_database.AsynchronousRows", "'AsynchronousRows' is asynchronous; name an"),
    ],
)
def test_a_class_that_is_no_adapter_is_refused_with_its_field(
    tmp_path: Path, class_name: str, message: str
) -> None:
    error = refusal(settings_of(tmp_path, class_name))
    assert error.startswith(
        f"{tmp_path}/custody.yaml:{LINE}: authorization.adapter.class: {message}"
    )


def test_a_module_that_fails_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_adapter.py").write_text(f"raise ValueError('{SECRET}')\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = refusal(settings_of(tmp_path, "failing_adapter.Adapter"))
    assert "module 'failing_adapter' can't be imported (ValueError)" in error


def test_who_lacks_the_extra_is_told_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Uninstalled:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "sqlalchemy_adapter":
                raise ModuleNotFoundError(name=name)

    monkeypatch.delitem(sys.modules, "sqlalchemy_adapter", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Uninstalled(), *sys.meta_path])
    error = refusal(settings_of(tmp_path, SQLALCHEMY))
    assert "run pip install 'kvcustody[policy-db]'" in error


def test_an_adapter_is_made_once_and_again_when_a_secret_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Demanding] = []
    monkeypatch.setattr(Demanding, "made", made)
    private_file(tmp_path / "key", f"{SECRET}\n")
    source = open_policy_source(
        settings_of(
            tmp_path,
            "policy_database.Demanding",
            arguments={"port": 6379, "password": {"secret_file": "key"}},
        )
    )
    for _ in range(3):
        source.load(lambda: None)
    assert [each.named for each in made] == [{"port": 6379, "password": SECRET}]
    private_file(tmp_path / "key", "another")
    source.load(lambda: None)
    assert [each.named["password"] for each in made] == [SECRET, "another"]


def test_an_engine_comes_before_the_other_arguments(
    tmp_path: Path, table: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Demanding] = []
    monkeypatch.setattr(Demanding, "made", made)
    name = "policy_database.Demanding"
    settings = settings_of(tmp_path, name, url_file="policy.url", arguments=["a", 1])
    load_decisions(settings)
    engine, *others = made[0].arguments
    assert isinstance(engine, Engine)
    assert engine.url == table.url
    assert others == ["a", 1]


def test_an_argument_that_the_class_does_not_know_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, SQLALCHEMY, arguments={"secret": SECRET})
    assert "sqlalchemy_adapter.Adapter failed (TypeError)" in refusal(settings)


@pytest.mark.usefixtures("table")
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.url").chmod(0o644)
    error = refusal(settings_of(tmp_path, "policy_database.Demanding", url_file="policy.url"))
    assert "authorization.adapter.url_file" in error
    assert "others may read it" in error


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"not a URL {SECRET}", "not a database URL"),
        (f"postgresql://root:{SECRET}@db:port/x", "not a database URL"),
        (f"postgresql://root:{SECRET}@db@db/x", "write @ as %40"),
        (f"postgresql://root:{SECRET}@db/x?password={SECRET}", "an option that is not known"),
        (f"postgresql://root:{SECRET}@db/", "the URL names no database"),
        (f"nosuchdatabase://root:{SECRET}@db/x", "SQLAlchemy doesn't know such a database"),
        (f"mysql://root:{SECRET}@db/x", "the database's driver is not installed: MySQLdb"),
        ("sqlite:///relative.sqlite", "write an absolute path"),
        ("sqlite://", "write an absolute path"),
        ("sqlite:////nowhere/policy.sqlite", "no such SQLite file"),
    ],
)
def test_a_url_that_is_not_usable_is_refused_with_its_field(
    tmp_path: Path, url: str, message: str
) -> None:
    private_file(tmp_path / "policy.url", url)
    error = refusal(settings_of(tmp_path, "policy_database.Demanding", url_file="policy.url"))
    assert error.startswith(f"{tmp_path}/custody.yaml:{LINE}: authorization.adapter.url_file: ")
    assert message in error


def test_the_sqlalchemy_adapter_reads_a_table(tmp_path: Path, table: Engine) -> None:
    settings = settings_of(tmp_path, SQLALCHEMY, url_file="policy.url")
    assert may_load(load_decisions(settings))
    add_rows(table, DENIAL)
    decisions = load_decisions(settings)
    assert not may_load(decisions)


def test_the_registrys_database_may_hold_the_policy(tmp_path: Path, table: Engine) -> None:
    settings = settings_with(
        tmp_path,
        {"adapter": {"class": SQLALCHEMY, "database": "registry"}},
        f"registry: {table.url.render_as_string(hide_password=False)}",
    )
    assert may_load(load_decisions(settings))


def test_a_database_without_the_table_is_refused_and_left_alone(
    tmp_path: Path, table: Engine
) -> None:
    with table.begin() as connection:
        connection.execute(text("DROP TABLE casbin_rule"))
    settings = settings_of(tmp_path, SQLALCHEMY, url_file="policy.url")
    assert "the adapter wants to write, which it may not" in refusal(settings)
    arguments = {"create_table": False}
    settings = settings_of(tmp_path, SQLALCHEMY, url_file="policy.url", arguments=arguments)
    assert "there is no such table" in refusal(settings)
    with table.connect() as connection:
        assert connection.execute(text("SELECT * FROM sqlite_master")).all() == []


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"noise" * 1000)
    private_file(tmp_path / "policy.url", f"sqlite:///{tmp_path / 'noise'}")
    settings = settings_of(tmp_path, SQLALCHEMY, url_file="policy.url")
    assert "the file is no SQLite database" in refusal(settings)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((None, *DENIAL[1:]), "look for a row without a type"),
        (("", *DENIAL[1:]), "look for a row without a type"),
        (("p", "acme]", *DENIAL[2:]), "look for a row without a type, or with NULL or brackets"),
        (("p", "acme", None, *DENIAL[3:]), "expected 'p, who"),
        (("p", "ac\nme", *DENIAL[2:]), "a column holds a line break"),
        (("P", *DENIAL[1:]), "a rule's type is p or g, not 'P'"),
        ((*DENIAL, "ttl<=1h, x"), "expected 'p, who"),
        ((*DENIAL[:5], "allow, deny", "*"), "expected 'p, who"),
    ],
)
def test_a_hostile_row_is_refused(
    tmp_path: Path, table: Engine, row: tuple[str | None, ...], message: str
) -> None:
    """The adapter writes each row as a line of text, and Casbin takes that apart again."""
    add_rows(table, row)
    assert message in refusal(settings_of(tmp_path, SQLALCHEMY, url_file="policy.url"))


def test_casbins_own_file_adapter_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text("\n".join(", ".join(row) for row in GOOD), encoding="utf-8")
    name = "casbin.persist.adapters.file_adapter.FileAdapter"
    settings = settings_of(tmp_path, name, arguments=[str(file)])
    assert may_load(load_decisions(settings))


def test_what_is_refused_is_recorded_without_the_secret(
    tmp_path: Path, table: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.policy.in_force._POLL_SECONDS", 0.02)
    settings = settings_of(tmp_path, SQLALCHEMY, url_file="policy.url", refresh="20ms")
    policy = LivePolicy(settings)
    audit = RecordingAudit()
    private_file(tmp_path / "policy.url", f"postgresql://root:{SECRET}@db:port/x")
    policy.watch(audit)
    try:
        until_recorded(audit, "policy.rejected")
        private_file(tmp_path / "policy.url", str(table.url))
        add_rows(table, DENIAL)
        until_recorded(audit, "policy.loaded")
    finally:
        policy.close()
    (rejected,) = audit.named("policy.rejected")
    assert rejected["file"] == str(tmp_path / "custody.yaml")
    assert rejected["field"] == "authorization.adapter.url_file"
    assert rejected["line"] == LINE
    assert SECRET not in repr(audit.events)
    assert not may_load(policy.in_force.current)


def test_the_extra_brings_no_second_casbin() -> None:
    """`casbin` and `pycasbin` own the same package; together they overwrite each other's files."""
    needed = " ".join(requires("sqlalchemy-adapter") or ())
    assert "pycasbin" in needed
    assert "casbin" not in needed.replace("pycasbin", "")


def test_an_adapter_without_rows_allows_nothing(tmp_path: Path) -> None:
    assert not may_load(load_decisions(settings_of(tmp_path, "policy_database.Rows")))


@pytest.mark.usefixtures("table")
def test_a_policy_file_and_an_adapter_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "policy.csv").write_text("\n".join(", ".join(row) for row in GOOD))
    in_file = load_decisions(settings_with(tmp_path, {"policy": "policy.csv"}))
    in_table = load_decisions(settings_of(tmp_path, SQLALCHEMY, url_file="policy.url"))
    assert may_load(in_file) == may_load(in_table) is True


@pytest.mark.usefixtures("table")
def test_a_broken_model_file_is_refused_with_an_adapter_too(tmp_path: Path) -> None:
    (tmp_path / "model.conf").write_text("nonsense")
    section = {"model": "model.conf", "adapter": {"class": SQLALCHEMY, "url_file": "policy.url"}}
    with pytest.raises(ConfigurationError, match=r"model\.conf: "):
        load_decisions(settings_with(tmp_path, section))
