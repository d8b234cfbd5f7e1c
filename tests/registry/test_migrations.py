"""Registries of every version become what this version expects, once, and without loss."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, NullPool, create_engine, inspect, select, text

from kvcustody.registry import migrations, open_registry, upgrading
from kvcustody.registry.schema import (
    REVISION,
    api_keys,
    data_keys,
    metadata,
    namespaces,
    service_keys,
)
from kvcustody.registry.upgrading import revision_of
from registries import add, purposes, refusal

# What `metadata.create_all` of the first version made in SQLite, to the letter.
FIRST_VERSION = """
CREATE TABLE api_keys (id VARCHAR(16) NOT NULL, digest BLOB NOT NULL, tenant VARCHAR(64) NOT NULL,
 workload VARCHAR(64) NOT NULL, subject VARCHAR(256), created FLOAT NOT NULL, expires FLOAT,
 revoked FLOAT, PRIMARY KEY (id));
CREATE TABLE namespaces (id VARCHAR(32) NOT NULL, tenant VARCHAR(64) NOT NULL, workload VARCHAR(64),
 subject VARCHAR(256), model_revision VARCHAR(128) NOT NULL, layout VARCHAR(64) NOT NULL,
 wrapped_naming_key BLOB, created FLOAT NOT NULL, destroyed FLOAT, PRIMARY KEY (id));
CREATE TABLE schema_version (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE service_keys (purpose VARCHAR(64) NOT NULL, wrapped BLOB NOT NULL,
 created FLOAT NOT NULL, PRIMARY KEY (purpose));
CREATE TABLE data_keys (id VARCHAR(32) NOT NULL, namespace VARCHAR(32) NOT NULL,
 epoch INTEGER NOT NULL, wrapped BLOB, created FLOAT NOT NULL, destroyed FLOAT, PRIMARY KEY (id),
 FOREIGN KEY(namespace) REFERENCES namespaces (id));
CREATE UNIQUE INDEX one_key_per_epoch ON data_keys (namespace, epoch);
"""
ROWS = """
INSERT INTO service_keys (purpose, wrapped, created) VALUES ('assertion', 'wrapped', 1.5);
INSERT INTO namespaces (id, tenant, model_revision, layout, created)
 VALUES ('n', 'acme', 'm', 'l', 2.5);
INSERT INTO data_keys (id, namespace, epoch, created, destroyed) VALUES ('k', 'n', 1, 2.5, 3.5);
INSERT INTO api_keys (id, digest, tenant, workload, created) VALUES ('a', 'd', 'acme', 'w', 4.5);
"""


@pytest.fixture
def engine(registry_url: str, tmp_path: Path) -> Iterator[Engine]:
    """The database, past the registry."""
    (tmp_path / "state").mkdir(mode=0o700)
    engine = create_engine(
        registry_url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
    )
    yield engine
    engine.dispose()


def make_registry_at(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        assert migrations.upgrade(connection, None, revision) is None
    for path in Path(engine.url.database or "").parent.glob("registry.sqlite"):
        path.chmod(0o600)


def fill(connection: Connection) -> None:
    for statement in ROWS.split(";\n"):
        if statement:
            connection.execute(text(statement))


def content(connection: Connection) -> dict[str, list[dict[str, object]]]:
    """All rows of our tables, without columns that are empty."""
    found = {}
    for name in inspect(connection).get_table_names():
        if name in metadata.tables:
            rows = connection.execute(text(f"SELECT * FROM {name}")).mappings()  # noqa: S608 - ours
            found[name] = [{k: v for k, v in row.items() if v is not None} for row in rows]
    return found


@pytest.mark.parametrize("start", ["nothing", "0001", "0002"])
def test_a_registry_ends_with_the_schema_that_the_code_knows(
    registry_url: str, engine: Engine, start: str
) -> None:
    if start != "nothing":
        make_registry_at(engine, start)
    open_registry(registry_url).close()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, metadata) == []
        assert context.get_current_heads() == (REVISION,)
        found = inspect(connection)
        assert set(found.get_table_names()) == {*metadata.tables, "alembic_version"}
        assert found.get_pk_constraint("alembic_version")["name"] == "alembic_version_pkc"


@pytest.mark.unit
def test_the_newest_migration_is_the_one_that_the_code_names() -> None:
    assert migrations.scripts().get_heads() == [REVISION]


def test_an_older_registry_is_brought_up_to_date_without_loss(
    registry_url: str, engine: Engine
) -> None:
    make_registry_at(engine, "0001")
    with engine.begin() as connection:
        fill(connection)
        before = content(connection)
    registry = open_registry(registry_url)
    with registry.read() as connection:
        assert content(connection) == before
        assert connection.scalars(select(service_keys.c.root)).all() == [None]
        assert connection.scalars(select(data_keys.c.retired)).all() == [None]
        assert connection.execute(
            select(namespaces.c.root, namespaces.c.sharing_group, namespaces.c.adapter)
        ).all() == [(None, None, None)]
        assert connection.execute(
            select(api_keys.c.admin, api_keys.c.sharing_group, api_keys.c.last_used)
        ).all() == [(None, None, None)]
    registry.close()


@pytest.mark.unit
def test_a_registry_that_the_first_version_made_is_adopted(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FIRST_VERSION + ROWS)
        connection.execute("INSERT INTO schema_version VALUES (1)")
        connection.commit()
    path.chmod(0o600)
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        before = content(connection)
    open_registry(f"sqlite:///{path}").close()
    with engine.connect() as connection:
        assert content(connection) == before
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_the_first_migration_makes_what_the_first_version_made(engine: Engine) -> None:
    make_registry_at(engine, "0001")
    with engine.begin() as connection, closing(sqlite3.connect(":memory:")) as first:
        first.executescript(FIRST_VERSION)
        for table in (*metadata.tables, "schema_version"):
            made = {column["name"] for column in inspect(connection).get_columns(table)}
            assert made == {row[1] for row in first.execute(f"PRAGMA table_info({table})")}
        assert connection.scalar(text("SELECT version FROM schema_version")) == 1


def test_a_migration_that_fails_leaves_the_registry_as_it_was(
    registry_url: str, engine: Engine
) -> None:
    make_registry_at(engine, "0001")
    with engine.begin() as connection:
        fill(connection)
        before = content(connection)
        # The last step of the migration, so all others have been taken by then.
        connection.execute(text("DROP TABLE schema_version"))
    assert "restore it from a backup" in refusal(registry_url).message
    with engine.begin() as connection:
        assert revision_of(connection) == "0001"
        assert "root" not in {c["name"] for c in inspect(connection).get_columns("service_keys")}
        connection.execute(text("CREATE TABLE schema_version (version INTEGER)"))
    registry = open_registry(registry_url)
    with registry.read() as connection:
        assert content(connection) == before
    registry.close()


@pytest.mark.parametrize(
    "change",
    [
        ["UPDATE alembic_version SET version_num = '9999'"],
        [
            "DROP TABLE alembic_version",
            "CREATE TABLE schema_version (version INTEGER)",
            "INSERT INTO schema_version VALUES (2)",
        ],
    ],
    ids=["alembic's version", "own version"],
)
def test_a_registry_of_a_newer_version_is_refused_and_left_alone(
    registry_url: str, engine: Engine, change: list[str]
) -> None:
    registry = open_registry(registry_url)
    add(registry, "assertion")
    registry.close()
    with engine.begin() as connection:
        for statement in change:
            connection.execute(text(statement))
        before = content(connection), sorted(inspect(connection).get_table_names())
    error = refusal(registry_url)
    assert "a newer kvcustody wrote this registry" in error.message
    assert error.message.endswith("upgrade kvcustody")
    with engine.connect() as connection:
        assert (content(connection), sorted(inspect(connection).get_table_names())) == before


def test_a_database_of_another_program_is_refused_and_left_alone(
    registry_url: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER)"))
    for path in Path(engine.url.database or "").parent.glob("registry.sqlite"):
        path.chmod(0o600)
    assert "a database of its own" in refusal(registry_url).message
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["customers"]


@pytest.mark.parametrize("start", [None, "0001"])
def test_of_many_that_start_at_once_one_makes_the_tables(
    registry_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch, start: str | None
) -> None:
    if start is not None:
        make_registry_at(engine, start)
    changes: list[str | None] = []
    create, upgrade = upgrading._create, migrations.upgrade

    def count_creation(connection: Connection) -> None:
        changes.append(None)
        create(connection)

    def count_upgrade(connection: Connection, found: str | None) -> str | None:
        changes.append(found)
        return upgrade(connection, found)

    monkeypatch.setattr(upgrading, "_create", count_creation)
    monkeypatch.setattr(migrations, "upgrade", count_upgrade)
    failures: list[Exception] = []

    def open_it() -> None:
        try:
            open_registry(registry_url).close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (changes, failures) == ([start], [])
    registry = open_registry(registry_url)
    assert purposes(registry) == []
    registry.close()


def test_a_registry_that_is_up_to_date_is_opened_without_alembic(registry_url: str) -> None:
    """Its import takes longer than all else that opening needs."""
    open_registry(registry_url).close()
    program = (
        "import sys\nfrom kvcustody.registry import open_registry\n"
        "assert not {'alembic', 'psycopg'} & sys.modules.keys()\n"
        "open_registry(sys.argv[1]).close()\nassert 'alembic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program, registry_url], check=True, timeout=60)  # noqa: S603 - ours
