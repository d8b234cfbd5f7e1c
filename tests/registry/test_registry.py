import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError

from kvcustody.errors import ConfigurationError, UnavailableError
from kvcustody.registry import Registry, open_registry
from kvcustody.registry import registry as registry_module
from kvcustody.registry.schema import (
    SCHEMA_VERSION,
    api_keys,
    data_keys,
    metadata,
    namespaces,
    schema_version,
    service_keys,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "registry.sqlite"


@pytest.fixture
def registry(path: Path) -> Iterator[Registry]:
    registry = open_registry(f"sqlite:///{path}")
    yield registry
    registry.close()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_LOCK_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(registry_module, "_START_WAIT_SECONDS", 0.05)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def refusal(url: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        open_registry(url)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def add(registry: Registry, purpose: str, wrapped: bytes = b"wrapped") -> None:
    with registry.write() as connection:
        connection.execute(
            insert(service_keys).values(purpose=purpose, wrapped=wrapped, created=0.0)
        )


def purposes(registry: Registry) -> list[str]:
    with registry.read() as connection:
        return list(connection.scalars(select(service_keys.c.purpose)))


def test_a_new_registry_has_all_tables_and_the_current_version(registry: Registry) -> None:
    with registry.read() as connection:
        assert connection.scalar(select(schema_version.c.version)) == SCHEMA_VERSION
        for table in metadata.sorted_tables:
            connection.execute(select(table)).all()


def test_what_was_written_is_there_after_a_restart(registry: Registry, path: Path) -> None:
    add(registry, "assertion")
    registry.close()
    again = open_registry(f"sqlite:///{path}")
    assert purposes(again) == ["assertion"]
    with again.read() as connection:
        assert connection.scalars(select(schema_version.c.version)).all() == [SCHEMA_VERSION]
    again.close()


@pytest.mark.usefixtures("_umask")
def test_files_and_folder_are_private_whatever_the_umask(registry: Registry, path: Path) -> None:
    add(registry, "assertion")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_transaction_that_fails_leaves_nothing(registry: Registry) -> None:
    def fail() -> None:
        with registry.write() as connection:
            connection.execute(
                insert(service_keys).values(purpose="assertion", wrapped=b"", created=0.0)
            )
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert purposes(registry) == []


def test_a_reader_changes_nothing(registry: Registry) -> None:
    with registry.read() as connection:
        connection.execute(
            insert(service_keys).values(purpose="assertion", wrapped=b"", created=0.0)
        )
    assert purposes(registry) == []


def test_a_reader_sees_one_state_while_another_writes(registry: Registry, path: Path) -> None:
    other = open_registry(f"sqlite:///{path}")
    add(registry, "assertion")
    query = select(service_keys.c.purpose)
    with other.read() as connection:
        before = connection.scalars(query).all()
        add(registry, "cache-salt")
        assert connection.scalars(query).all() == before == ["assertion"]
    assert sorted(purposes(other)) == ["assertion", "cache-salt"]
    other.close()


def test_writers_at_once_all_get_their_turn(registry: Registry, path: Path) -> None:
    failures: list[Exception] = []
    together = threading.Barrier(4)

    def work(worker: int) -> None:
        mine = open_registry(f"sqlite:///{path}")
        together.wait(5)
        try:
            for number in range(5):
                with mine.write() as connection:
                    connection.execute(select(service_keys)).all()
                    connection.execute(
                        insert(service_keys).values(
                            purpose=f"{worker}-{number}", wrapped=b"", created=0.0
                        )
                    )
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)
        mine.close()

    threads = [threading.Thread(target=work, args=[worker]) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert failures == []
    assert len(purposes(registry)) == 20


def test_processes_that_start_at_once_make_one_registry(path: Path) -> None:
    together = threading.Barrier(4)
    opened: list[Registry] = []

    def start() -> None:
        together.wait(5)
        opened.append(open_registry(f"sqlite:///{path}"))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 4
    with opened[0].read() as connection:
        assert connection.scalars(select(schema_version.c.version)).all() == [SCHEMA_VERSION]
    for registry in opened:
        registry.close()


def test_a_namespace_has_one_key_for_each_epoch(registry: Registry) -> None:
    _add_namespace(registry)
    key = {"namespace": "n", "epoch": 1, "wrapped": b"", "created": 0.0}
    with registry.write() as connection:
        connection.execute(insert(data_keys).values(id="one", **key))
    with pytest.raises(UnavailableError), registry.write() as connection:
        connection.execute(insert(data_keys).values(id="two", **key))


def test_a_data_key_belongs_to_a_namespace(registry: Registry) -> None:
    with pytest.raises(UnavailableError), registry.write() as connection:
        connection.execute(
            insert(data_keys).values(
                id="one", namespace="nobody's", epoch=1, wrapped=b"", created=0.0
            )
        )


def test_a_destroyed_key_does_not_survive_in_the_file(registry: Registry, path: Path) -> None:
    """Its wrapped form would be enough for whoever gets the root key later."""
    marker = b"wrapped key that must go" * 4
    _add_namespace(registry, wrapped=marker)
    registry.close()
    assert marker in path.read_bytes()
    again = open_registry(f"sqlite:///{path}")
    with again.write() as connection:
        connection.execute(update(namespaces).values(wrapped_naming_key=None, destroyed=1.0))
    again.close()
    for file in path.parent.iterdir():
        assert marker not in file.read_bytes(), file.name


def test_no_table_holds_a_secret_in_the_clear() -> None:
    """Keys are wrapped and API keys hashed; a column that holds one says so by its name."""
    binary = {
        f"{table.name}.{column.name}"
        for table in metadata.sorted_tables
        for column in table.columns
        if column.type.python_type is bytes
    }
    assert binary == {
        "service_keys.wrapped",
        "namespaces.wrapped_naming_key",
        "data_keys.wrapped",
        "api_keys.digest",
    }
    assert "key" not in api_keys.columns


@pytest.mark.usefixtures("_impatient")
def test_a_locked_registry_is_unavailable_and_not_waited_for_long(path: Path) -> None:
    registry = open_registry(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError), registry.write():
            pass
        assert purposes(registry) == []
        other.execute("ROLLBACK")
    add(registry, "assertion")
    registry.close()


@pytest.mark.usefixtures("_impatient")
def test_a_registry_locked_at_the_start_is_unavailable(registry: Registry, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="locked by another process"):
            open_registry(f"sqlite:///{path}")
        other.execute("ROLLBACK")
    assert purposes(registry) == []


def test_an_error_carries_no_statement_and_no_value(registry: Registry) -> None:
    add(registry, "assertion")
    with pytest.raises(UnavailableError) as caught:
        add(registry, "assertion", b"a wrapped key")
    assert str(caught.value) == f"the registry failed: {IntegrityError.__name__}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_lost_table_is_unavailable(registry: Registry) -> None:
    with registry.write() as connection:
        connection.execute(text("DROP TABLE service_keys"))
    with pytest.raises(UnavailableError):
        purposes(registry)


def test_a_registry_of_a_newer_version_is_refused_and_left_alone(
    registry: Registry, path: Path
) -> None:
    with registry.write() as connection:
        connection.execute(update(schema_version).values(version=SCHEMA_VERSION + 1))
    registry.close()
    error = refusal(f"sqlite:///{path}")
    assert error.file == path
    assert f"schema {SCHEMA_VERSION + 1}" in error.message
    assert "upgrade kvcustody" in error.message
    with closing(sqlite3.connect(path)) as other:
        found = other.execute("SELECT version FROM schema_version").fetchall()
    assert found == [(SCHEMA_VERSION + 1,)]


@pytest.mark.parametrize("content", [b"not a database, but long enough" * 40, b"\0" * 4096])
def test_a_damaged_registry_says_to_restore_it(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    error = refusal(f"sqlite:///{path}")
    assert error.file == path
    assert "restore it from a backup" in error.message


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o666])
def test_a_registry_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    open_registry(f"sqlite:///{path}").close()
    path.chmod(mode)
    error = refusal(f"sqlite:///{path}")
    assert (error.file, error.message) == (
        path,
        f"others may read it (mode {mode:04o}); run chmod 600 on it",
    )
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert "others may write to it" in refusal(f"sqlite:///{path}").message
    path.parent.chmod(0o755)
    open_registry(f"sqlite:///{path}").close()


def test_a_folder_in_place_of_the_registry_is_a_clear_error(path: Path) -> None:
    path.mkdir(parents=True)
    error = refusal(f"sqlite:///{path}")
    assert error.file == path
    assert "check `state` and its permissions" in error.message


def test_a_file_in_place_of_the_folder_is_a_clear_error(path: Path) -> None:
    path.parent.write_bytes(b"")
    assert "check `state` and its permissions" in refusal(f"sqlite:///{path}").message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.sqlite",
        "/srv/registry.sqlite",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql://host/registry",
        "mysql://root@host/registry",
        "nonsense://x",
    ],
)
def test_an_address_that_is_not_supported_says_what_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(url)
    assert "sqlite:///PATH" in error.message
    assert list(tmp_path.iterdir()) == []


def test_a_refused_address_does_not_show_its_password() -> None:
    assert "hunter2" not in str(refusal("postgresql://root:hunter2@host/registry"))


def _add_namespace(registry: Registry, wrapped: bytes = b"") -> None:
    with registry.write() as connection:
        connection.execute(
            insert(namespaces).values(
                id="n",
                tenant="acme",
                model_revision="m",
                layout="l",
                wrapped_naming_key=wrapped,
                created=0.0,
            )
        )
