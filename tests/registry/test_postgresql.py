"""What a PostgreSQL server adds: it may be away, hang, or refuse; nothing waits long for it."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from psycopg import sql
from sqlalchemy import select, text

from kvcustody.errors import UnavailableError
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import service_keys
from postgresql_server import ESCAPED_PASSWORD, OWNER, PASSWORD, PostgreSQLServer
from registries import add, failure, purposes, refusal

pytestmark = pytest.mark.service


@pytest.fixture
def database(postgresql: PostgreSQLServer) -> Iterator[str]:
    with postgresql.database() as name:
        yield name


@pytest.fixture
def registry(postgresql: PostgreSQLServer, database: str) -> Iterator[Registry]:
    registry = open_registry(postgresql.url(database))
    yield registry
    registry.close()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def backends(postgresql: PostgreSQLServer, database: str) -> list[int]:
    """The server's processes for a database."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
    with postgresql.connect() as connection:
        return [row[0] for row in connection.execute(query, (database,))]


@contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_wrong_password_is_refused_and_not_shown(postgresql: PostgreSQLServer) -> None:
    url = postgresql.url("postgres").replace(ESCAPED_PASSWORD, "hunter2")
    error = refusal(url)
    assert "check them in the URL or in ~/.pgpass" in error.message
    assert f"'postgres' at 127.0.0.1:{postgresql.port}" in error.message
    assert "hunter2" not in str(error)


def test_a_missing_password_is_refused(
    postgresql: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    url = postgresql.url("postgres").replace(f":{ESCAPED_PASSWORD}", "")
    assert "check them in the URL or in ~/.pgpass" in refusal(url).message


def test_an_unknown_user_is_refused(postgresql: PostgreSQLServer) -> None:
    url = postgresql.url("postgres").replace(OWNER, "nobody")
    assert "refused the user or password" in refusal(url).message


def test_the_password_may_lie_in_a_file_of_libpq(
    postgresql: PostgreSQLServer, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pgpass"
    file.write_text(f"127.0.0.1:*:*:{OWNER}:{PASSWORD}\n", encoding="utf-8")
    file.chmod(0o600)
    url = postgresql.url(database).replace(f":{ESCAPED_PASSWORD}", "")
    open_registry(f"{url}?passfile={file}").close()
    monkeypatch.setenv("PGPASSFILE", str(file))
    open_registry(url).close()


def test_a_service_may_say_everything(
    postgresql: PostgreSQLServer, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "services"
    file.write_text(
        f"[registry]\nhost=127.0.0.1\nport={postgresql.port}\nuser={OWNER}\n"
        f"password={PASSWORD}\ndbname={database}\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    open_registry("postgresql://?service=registry").close()
    assert "the service file doesn't define it" in refusal("postgresql://?service=x").message


def test_a_database_that_is_not_there_is_refused(postgresql: PostgreSQLServer) -> None:
    assert "there is no such database" in refusal(postgresql.url("nowhere")).message


def test_an_option_with_a_wrong_value_is_refused(postgresql: PostgreSQLServer) -> None:
    url = f"{postgresql.url('postgres')}?sslmode=perhaps"
    assert "an option in the URL has a wrong value" in refusal(url).message


def test_a_server_without_the_tls_that_was_asked_for_is_refused(
    postgresql: PostgreSQLServer,
) -> None:
    url = f"{postgresql.url('postgres')}?sslmode=require"
    assert "no trusted connection" in refusal(url).message


def test_a_role_that_may_not_create_tables_is_refused_until_another_made_them(
    postgresql: PostgreSQLServer, database: str
) -> None:
    role = f"role_{database}"
    name = sql.Identifier(role)
    postgresql.execute(
        sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD))
    )
    postgresql.execute(sql.SQL("REVOKE CREATE ON SCHEMA public FROM PUBLIC"), database)
    url = postgresql.url(database).replace(f"//{OWNER}", f"//{role}")
    error = refusal(url)
    assert "GRANT it CREATE" in error.message
    with postgresql.connect(database) as connection:
        tables = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []
    open_registry(postgresql.url(database)).close()
    postgresql.execute(
        sql.SQL(
            "GRANT SELECT ON alembic_version TO {0}; "
            "GRANT SELECT, INSERT, UPDATE, DELETE "
            "ON service_keys, namespaces, data_keys, api_keys TO {0}"
        ).format(name),
        database,
    )
    registry = open_registry(url)
    add(registry, "assertion")
    registry.close()
    postgresql.execute(sql.SQL("DROP OWNED BY {}").format(name), database)
    postgresql.execute(sql.SQL("DROP ROLE {}").format(name))


def test_a_server_that_is_down_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with within(3):
            error = failure(f"postgresql://root:hunter2@127.0.0.1:{port}/registry")
    assert "can't be reached; check that the server runs" in error
    assert "hunter2" not in error


def test_a_host_that_is_not_known_is_unavailable() -> None:
    error = failure("postgresql://root:hunter2@nowhere.invalid/registry")
    assert "the host's name is not known" in error
    assert "hunter2" not in error


def test_a_server_that_takes_connections_and_never_answers_is_unavailable_soon() -> None:
    with silent_server() as port, within(4):
        error = failure(f"postgresql://root:hunter2@127.0.0.1:{port}/registry")
    assert "the server does not answer" in error
    assert "hunter2" not in error


def test_a_server_that_hangs_is_not_waited_for_by_every_request(
    postgresql: PostgreSQLServer, registry: Registry, database: str
) -> None:
    stop = [postgresql.process.pid, *backends(postgresql, database)]
    with stopped(stop):
        with within(5), pytest.raises(UnavailableError, match="does not answer"):
            purposes(registry)
        for _ in range(3):
            with within(0.1), pytest.raises(UnavailableError, match="does not answer"):
                purposes(registry)


def test_a_connection_that_hangs_is_replaced(
    postgresql: PostgreSQLServer, registry: Registry, database: str
) -> None:
    with stopped(backends(postgresql, database)), within(4):
        assert purposes(registry) == []


def test_a_server_that_hangs_in_a_transaction_is_unavailable_soon(
    postgresql: PostgreSQLServer, registry: Registry
) -> None:
    def hang() -> None:
        with registry.write() as connection:
            process = connection.scalar(text("SELECT pg_backend_pid()"))
            with stopped([process]):
                connection.execute(select(service_keys))

    with within(4), pytest.raises(UnavailableError, match="does not answer"):
        hang()
    assert postgresql.process.poll() is None
    assert purposes(registry) == []


def test_a_statement_that_takes_long_is_ended_by_the_server(registry: Registry) -> None:
    def sleep() -> None:
        with registry.read() as connection:
            connection.execute(text("SELECT pg_sleep(30)"))

    with within(3), pytest.raises(UnavailableError, match="the server took too long"):
        sleep()


def test_a_lock_that_another_holds_is_not_waited_for_long(
    postgresql: PostgreSQLServer, registry: Registry, database: str
) -> None:
    with postgresql.connect(database) as other, other.transaction():
        other.execute("LOCK TABLE service_keys")
        with within(2), pytest.raises(UnavailableError, match="locked by another process"):
            purposes(registry)
    assert purposes(registry) == []


def test_a_new_registry_that_stays_locked_is_unavailable(
    postgresql: PostgreSQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcustody.registry.upgrading._START_WAIT_SECONDS", 0.1)
    lock = int.from_bytes(b"kvcustod")
    with postgresql.connect(database) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (lock,))
        assert "locked by another process" in failure(postgresql.url(database))
    open_registry(postgresql.url(database)).close()


def test_connections_that_the_server_closed_are_replaced(
    postgresql: PostgreSQLServer, registry: Registry, database: str
) -> None:
    add(registry, "assertion")
    for process in backends(postgresql, database):
        postgresql.execute(sql.SQL("SELECT pg_terminate_backend({})").format(process))
    assert purposes(registry) == ["assertion"]


def test_a_read_only_server_is_refused(postgresql: PostgreSQLServer, database: str) -> None:
    postgresql.execute(
        sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(
            sql.Identifier(database)
        )
    )
    assert "name the primary server" in refusal(postgresql.url(database)).message


def test_no_representation_shows_the_password(registry: Registry) -> None:
    database = registry._database
    for thing in (registry, database, database.reader, database.writer):
        assert ESCAPED_PASSWORD not in repr(thing)
        assert PASSWORD not in repr(thing)
