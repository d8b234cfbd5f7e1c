"""A policy in a real PostgreSQL, which changes, goes away, hangs, and comes back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from kvcustody.config import Settings
from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.wiring.policy import LivePolicy, load_decisions
from policy_database import (
    ACME,
    DENIAL,
    GOOD,
    SECRET,
    SQLALCHEMY,
    add_rows,
    make_table,
    may_load,
    private_file,
    remove_rows,
    settings_with,
)
from postgresql_server import ESCAPED_PASSWORD, PASSWORD, PostgreSQLServer, stoppable_server
from tier_doubles import RecordingAudit

pytestmark = pytest.mark.service


@contextmanager
def table_at(url: str) -> Iterator[Engine]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    make_table(engine, *GOOD)
    yield engine
    engine.dispose()


@pytest.fixture
def url(postgresql: PostgreSQLServer) -> Iterator[str]:
    with postgresql.database() as name:
        yield postgresql.url(name)


@pytest.fixture
def table(url: str) -> Iterator[Engine]:
    with table_at(url) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcustody.policy.in_force._POLL_SECONDS", 0.02)


def settings_of(folder: Path, url: str, **fields: Any) -> Settings:
    private_file(folder / "policy.url", url)
    adapter = {"class": SQLALCHEMY, "url_file": "policy.url", "refresh": "50ms", **fields}
    return settings_with(folder, {"adapter": adapter})


def failure(settings: Settings, kind: type[CustodyError]) -> str:
    with pytest.raises(CustodyError) as caught:
        load_decisions(settings)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for secret in (SECRET, PASSWORD, ESCAPED_PASSWORD):
        assert secret not in message
    return message


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def following(settings: Settings) -> Iterator[tuple[LivePolicy, RecordingAudit]]:
    policy, audit = LivePolicy(settings), RecordingAudit()
    policy.watch(audit)
    try:
        yield policy, audit
    finally:
        policy.close()


def test_a_committed_change_is_put_in_force_while_decisions_are_asked(
    tmp_path: Path, url: str, table: Engine
) -> None:
    stop = threading.Event()
    answers: list[tuple[str, bool]] = []

    with following(settings_of(tmp_path, url)) as (policy, audit):

        def ask() -> None:
            while not stop.is_set():
                current = policy.in_force.current
                answers.append((current.version, may_load(current)))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            until(lambda: answers)
            first = policy.in_force.version
            with table.begin() as connection:
                connection.execute(
                    text(
                        "INSERT INTO casbin_rule (ptype, v0, v1, v2, v3, v4) "
                        "VALUES ('p', 'acme', 'local', 'disk', 'load', 'deny')"
                    )
                )
                count = len(answers)
                until(lambda: len(answers) > count + 100)
                assert policy.in_force.version == first, "it is not committed yet"
            until(lambda: not answers[-1][1])
            remove_rows(table, "v4 = 'deny'")
            until(lambda: answers[-1][1])
        finally:
            stop.set()
            asking.join()
        second = next(version for version, allowed in answers if not allowed)
        assert set(answers) == {(first, True), (second, False)}
        versions = [event["policy_version"] for event in audit.named("policy.loaded")]
        assert versions == [second, first]


def test_a_broken_row_is_recorded_with_its_place_and_the_last_good_policy_stays(
    tmp_path: Path, url: str, table: Engine
) -> None:
    with following(settings_of(tmp_path, url)) as (policy, audit):
        add_rows(table, ("p", "acme", "local", "tape", "load", "deny"))
        until(lambda: audit.named("policy.rejected"))
        assert may_load(policy.in_force.current)
        remove_rows(table, "v2 = 'tape'")
        add_rows(table, DENIAL)
        until(lambda: audit.named("policy.loaded"))
    (rejected,) = audit.named("policy.rejected")
    assert rejected["file"] == SQLALCHEMY
    assert rejected["line"] == 3
    assert rejected["field"] == "tier"
    assert "unknown tier 'tape'" in rejected["reason"]
    assert "p, acme, local, tape, load, deny" in rejected["reason"]


def test_a_server_that_stops_and_starts_again_is_two_pieces_of_news(tmp_path: Path) -> None:
    with stoppable_server() as server:
        url = server.start().url("postgres")
        with table_at(url):
            settings = settings_of(tmp_path, url)
        with following(settings) as (policy, audit):
            server.close()
            until(lambda: audit.named("policy.rejected"))
            failure(settings, UnavailableError)
            assert may_load(policy.in_force.current)
            server.start()
            engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
            add_rows(engine, DENIAL)
            engine.dispose()
            until(lambda: audit.named("policy.loaded"))
            assert not may_load(policy.in_force.current)
    assert [event["event"] for event in audit.events] == ["policy.rejected", "policy.loaded"]


def test_a_server_that_hangs_stops_neither_the_start_nor_the_end(
    tmp_path: Path,
    postgresql: PostgreSQLServer,
    url: str,
    table: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcustody.policy.in_force._CLOSE_SECONDS", 0.1)
    settings = settings_of(tmp_path, url)
    table.dispose()
    with following(settings) as (policy, audit):
        os.kill(postgresql.process.pid, signal.SIGSTOP)
        try:
            assert "the server does not answer" in failure(settings, UnavailableError)
            until(lambda: audit.named("policy.rejected"))
            policy.close()
            assert may_load(policy.in_force.current)
        finally:
            os.kill(postgresql.process.pid, signal.SIGCONT)


def test_a_table_that_somebody_has_locked_is_not_waited_for_long(
    tmp_path: Path, url: str, table: Engine
) -> None:
    with table.begin() as connection:
        connection.execute(text("LOCK TABLE casbin_rule IN ACCESS EXCLUSIVE MODE"))
        message = failure(settings_of(tmp_path, url), UnavailableError)
    assert "somebody holds a lock on the table" in message


def test_a_wrong_password_is_refused_and_shown_nowhere(
    tmp_path: Path, url: str, table: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = url.replace(ESCAPED_PASSWORD, SECRET)
    assert "refused the user or password" in failure(
        settings_of(tmp_path, wrong), ConfigurationError
    )
    with following(settings_of(tmp_path, url)) as (policy, audit):
        private_file(tmp_path / "policy.url", wrong)
        until(lambda: audit.named("policy.rejected"))
        assert may_load(policy.in_force.current)
        private_file(tmp_path / "policy.url", url)
        add_rows(table, DENIAL)
        until(lambda: audit.named("policy.loaded"))
    for secret in (SECRET, PASSWORD, ESCAPED_PASSWORD):
        assert secret not in repr(audit.events)
        assert secret not in caplog.text


def test_a_database_without_the_table_is_refused_and_left_alone(tmp_path: Path, url: str) -> None:
    message = failure(settings_of(tmp_path, url), ConfigurationError)
    assert "the adapter wants to write, which it may not" in message
    settings = settings_of(tmp_path, url, arguments={"create_table": False})
    assert "there is no such table" in failure(settings, ConfigurationError)
    assert "there is no such table" in failure(settings, ConfigurationError)


def test_a_user_who_may_only_read_is_enough_and_one_who_may_not_is_told(
    tmp_path: Path, postgresql: PostgreSQLServer, url: str, table: Engine
) -> None:
    database = make_url(url).database
    assert database is not None
    assert table.url.database == database
    role = f"reader_{database}"
    name = sql.Identifier(role)
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
    postgresql.execute(create.format(name, sql.Literal(PASSWORD)))
    reader = url.replace("//kvcustody:", f"//{role}:")
    arguments = {"create_table": False}
    try:
        settings = settings_of(tmp_path, reader, arguments=arguments)
        assert "GRANT it SELECT" in failure(settings, ConfigurationError)
        grant = sql.SQL("GRANT SELECT ON casbin_rule TO {}")
        postgresql.execute(grant.format(name), database)
        assert may_load(load_decisions(settings))
    finally:
        postgresql.execute(sql.SQL("DROP OWNED BY {}").format(name), database)
        postgresql.execute(sql.SQL("DROP ROLE {}").format(name))


def test_the_registrys_database_may_hold_the_policy(
    tmp_path: Path, url: str, table: Engine
) -> None:
    adapter = {"class": SQLALCHEMY, "database": "registry"}
    settings = settings_with(tmp_path, {"adapter": adapter}, f"registry: {url}")
    assert may_load(load_decisions(settings))
    add_rows(table, DENIAL)
    assert not may_load(load_decisions(settings))


def test_fifty_thousand_rows_are_read_and_a_change_among_them_is_found(
    tmp_path: Path, url: str, table: Engine
) -> None:
    add_rows(table, *(("g", f"acme/w{number}", "staff", "local") for number in range(50_000)))
    with following(settings_of(tmp_path, url)) as (policy, audit):
        assert policy.in_force.current.decide(ACME)["disk"].load.allowed
        add_rows(table, DENIAL)
        until(lambda: audit.named("policy.loaded"))
        assert not may_load(policy.in_force.current)
