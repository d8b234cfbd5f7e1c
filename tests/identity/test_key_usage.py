"""The time of a key's last use: once a minute, off the request's path, and no alarm if it fails."""

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from key_deployment import Clock
from kvcustody.errors import UnavailableError
from kvcustody.identity import key_usage
from kvcustody.identity.key_usage import KeyUsage
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.registry import Registry, open_registry

ACME = Principal("acme", "chat")


class CountingStore(KeyStore):
    """Keys in a real registry that keeps what was written of their use."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.written: list[set[str]] = []
        self.noted = threading.Event()
        self.on_write: Callable[[], None] = lambda: None

    def note_use(self, times: Mapping[str, float]) -> None:
        super().note_use(times)
        self.on_write()
        self.written.append(set(times))
        self.noted.set()


@pytest.fixture
def registry(registry_url: str) -> Iterator[Registry]:
    registry = open_registry(registry_url)
    yield registry
    registry.close()


@pytest.fixture
def keys(registry: Registry) -> CountingStore:
    return CountingStore(registry)


def last_used(keys: KeyStore) -> list[float | None]:
    return [key.last_used for key in keys.list()]


def test_a_key_in_steady_use_is_written_once_a_minute(keys: CountingStore) -> None:
    clock = Clock(1000.0)
    usage = KeyUsage(keys, clock)
    busy, idle = (keys.mint(ACME, expires=None).record.id for _ in range(2))
    for _ in range(120):
        usage.note(busy)
        usage.write_due()
        clock.now += 1
    usage.note(idle)
    usage.write_due()
    assert keys.written == [{busy}, {busy}, {busy, idle}]
    usage.note(busy)
    clock.now += 59
    usage.write_due()
    assert len(keys.written) == 3
    assert sorted(last_used(keys), key=str) == [1119.0, 1120.0]


def test_what_could_not_be_written_is_counted_and_written_later(
    keys: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(1000.0)
    usage = KeyUsage(keys, clock)
    usage.note(keys.mint(ACME, expires=None).record.id)
    with monkeypatch.context() as patch:
        patch.setattr(KeyStore, "note_use", refuse)
        usage.write_due()
        usage.write_due()
    assert (usage.failures, last_used(keys)) == (2, [None])
    usage.write_due()
    assert (usage.failures, last_used(keys)) == (2, [1000.0])


def test_a_use_during_a_write_is_written_later(keys: CountingStore) -> None:
    clock = Clock(1000.0)
    usage = KeyUsage(keys, clock)
    key_id = keys.mint(ACME, expires=None).record.id

    def use_again() -> None:
        clock.now += 1
        usage.note(key_id)

    usage.note(key_id)
    keys.on_write = use_again
    usage.write_due()
    keys.on_write = lambda: None
    usage.write_due(all_=True)
    assert last_used(keys) == [1001.0]


def test_closing_writes_what_waits(keys: CountingStore) -> None:
    clock = Clock(1000.0)
    usage = KeyUsage(keys, clock)
    key_id = keys.mint(ACME, expires=None).record.id
    usage.note(key_id)
    usage.write_due()
    clock.now += 5
    usage.note(key_id)
    usage.start()
    usage.close()
    usage.close()
    assert last_used(keys) == [1005.0]
    assert not usage._thread.is_alive()


def test_the_thread_writes_by_itself(keys: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_usage, "_ROUND_SECONDS", 0.01)
    usage = KeyUsage(keys, Clock(1000.0))
    usage.start()
    usage.note(keys.mint(ACME, expires=None).record.id)
    assert keys.noted.wait(30)
    usage.close()
    assert last_used(keys) == [1000.0]


def refuse(_keys: KeyStore, _times: Mapping[str, float]) -> None:
    raise UnavailableError("away")
