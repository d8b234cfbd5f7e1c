"""What the registry promises on every database."""

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import func, insert, select, text

from kvcustody.errors import UnavailableError
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import api_keys, data_keys, metadata, namespaces, service_keys
from registries import add, add_namespace, purposes


@pytest.fixture
def registry(registry_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    # A busy disk may take longer to commit than a scheduler is ready to wait.
    monkeypatch.setattr("kvcustody.registry.sqlite._LOCK_WAIT_SECONDS", 10)
    registry = open_registry(registry_url)
    yield registry
    registry.close()


def at_once(workers: int, work: Callable[[int], None]) -> None:
    """Run `work` in that many threads, all started together, and raise what it raised."""
    failures: list[Exception] = []
    together = threading.Barrier(workers)

    def run(worker: int) -> None:
        try:
            together.wait(10)
            work(worker)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_a_new_registry_has_all_tables(registry: Registry) -> None:
    with registry.read() as connection:
        for table in metadata.sorted_tables:
            assert connection.execute(select(table)).all() == []


def test_what_was_written_is_there_after_a_restart(registry: Registry, registry_url: str) -> None:
    add(registry, "assertion")
    registry.close()
    again = open_registry(registry_url)
    assert purposes(again) == ["assertion"]
    again.close()


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


def test_a_reader_sees_one_state_while_another_writes(
    registry: Registry, registry_url: str
) -> None:
    other = open_registry(registry_url)
    add(registry, "assertion")
    query = select(service_keys.c.purpose)
    with other.read() as connection:
        before = connection.scalars(query).all()
        add(registry, "cache-salt")
        assert connection.scalars(query).all() == before == ["assertion"]
    assert sorted(purposes(other)) == ["assertion", "cache-salt"]
    other.close()


def test_writers_at_once_all_get_their_turn(registry: Registry, registry_url: str) -> None:
    def work(worker: int) -> None:
        mine = open_registry(registry_url)
        for number in range(5):
            with mine.write() as connection:
                connection.execute(select(service_keys)).all()
                connection.execute(
                    insert(service_keys).values(
                        purpose=f"{worker}-{number}", wrapped=b"", created=0.0
                    )
                )
        mine.close()

    at_once(4, work)
    assert sorted(purposes(registry)) == [f"{w}-{n}" for w in range(4) for n in range(5)]


def test_only_the_first_of_equal_rows_is_added(registry: Registry) -> None:
    def add_if_absent(wrapped: bytes) -> bool:
        with registry.write() as connection:
            return registry.insert_if_absent(
                connection, service_keys, purpose="assertion", wrapped=wrapped, created=0.0
            )

    assert add_if_absent(b"first")
    assert not add_if_absent(b"second")
    with registry.read() as connection:
        assert connection.scalars(select(service_keys.c.wrapped)).all() == [b"first"]


def test_a_row_that_another_unique_column_forbids_is_not_added(registry: Registry) -> None:
    add_namespace(registry)
    row = {"namespace": "n", "epoch": 1, "wrapped": b"", "created": 0.0}
    with registry.write() as connection:
        assert registry.insert_if_absent(connection, data_keys, id="one", **row)
        assert not registry.insert_if_absent(connection, data_keys, id="two", **row)
        assert connection.scalars(select(data_keys.c.id)).all() == ["one"]


def test_who_adds_a_row_too_late_waits_and_then_finds_the_other_one(
    registry: Registry, registry_url: str
) -> None:
    late: list[tuple[bool, bytes | None]] = []
    asking = threading.Event()

    def add_too_late() -> None:
        other = open_registry(registry_url)
        asking.set()
        with other.write() as connection:
            added = other.insert_if_absent(
                connection, service_keys, purpose="assertion", wrapped=b"late", created=0.0
            )
            late.append((added, connection.scalar(select(service_keys.c.wrapped))))
        other.close()

    thread = threading.Thread(target=add_too_late)
    with registry.write() as connection:
        registry.insert_if_absent(
            connection, service_keys, purpose="assertion", wrapped=b"early", created=0.0
        )
        thread.start()
        assert asking.wait(5)
        thread.join(0.1)
        assert late == []
    thread.join(5)
    assert late == [(False, b"early")]


def test_times_keep_their_fractions(registry: Registry) -> None:
    """A column of 4-byte floats would round a time to minutes."""
    with registry.write() as connection:
        connection.execute(
            insert(service_keys).values(purpose="a", wrapped=b"", created=1_700_000_000.125)
        )
    with registry.read() as connection:
        assert connection.scalar(select(service_keys.c.created)) == 1_700_000_000.125


def test_bytes_and_text_come_back_as_they_were(registry: Registry) -> None:
    every_byte, name = bytes(range(256)), "Zoë 'O\"Brien' %s \\ 北京"
    with registry.write() as connection:
        connection.execute(
            insert(api_keys).values(
                id="k", digest=every_byte, tenant="acme", workload="w", subject=name, created=0.0
            )
        )
    with registry.read() as connection:
        row = connection.execute(select(api_keys)).one()
    assert (bytes(row.digest), row.subject) == (every_byte, name)


def test_a_namespace_has_one_key_for_each_epoch(registry: Registry) -> None:
    add_namespace(registry)
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
    with registry.read() as connection:
        assert connection.scalar(select(func.count()).select_from(namespaces)) == 0


def test_an_error_carries_no_statement_and_no_value(registry: Registry) -> None:
    add(registry, "assertion")
    with pytest.raises(UnavailableError) as caught:
        add(registry, "assertion", b"a wrapped key")
    assert str(caught.value) == "the registry failed: IntegrityError"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_lost_table_is_unavailable(registry: Registry) -> None:
    with registry.write() as connection:
        connection.execute(text("DROP TABLE service_keys"))
    with pytest.raises(UnavailableError, match="restore it from a backup") as caught:
        purposes(registry)
    assert "SELECT" not in str(caught.value)


@pytest.mark.unit
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
