"""The last use of a key: written together, never older than what is there, and never lost."""

from collections.abc import Iterator

import pytest

from kvcustody.errors import UnavailableError
from kvcustody.identity.last_use import LastUses
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore
from kvcustody.registry import Registry, open_registry


@pytest.fixture
def registry(registry_url: str) -> Iterator[Registry]:
    registry = open_registry(registry_url)
    yield registry
    registry.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def last_used(store: KeyStore) -> list[float | None]:
    return [record.last_used for record in store.list()]


def test_a_use_is_written_for_its_key_alone(registry: Registry) -> None:
    store, clock = KeyStore(registry), Clock()
    used, _ = (store.mint(Principal("acme", name), expires=None) for name in ("a", "b"))
    uses = LastUses(registry, clock=clock)
    uses.note(used.record.id)
    assert last_used(store) == [None, None]
    uses.write()
    assert last_used(store) == [1_000.0, None]


def test_a_gateway_whose_clock_is_behind_makes_no_use_older(registry: Registry) -> None:
    store, clock = KeyStore(registry), Clock()
    key_id = store.mint(Principal("acme", "a"), expires=None).record.id
    uses = LastUses(registry, clock=clock)
    for now, expected in ((1_000.0, 1_000.0), (900.0, 1_000.0), (1_100.0, 1_100.0)):
        clock.now = now
        uses.note(key_id)
        uses.write()
        assert last_used(store) == [expected]


def test_what_can_not_be_written_is_written_later(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KeyStore(registry)
    key_id = store.mint(Principal("acme", "a"), expires=None).record.id
    uses = LastUses(registry, clock=Clock())
    uses.note(key_id)

    def away() -> None:
        raise UnavailableError("the registry is away")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "write", away)
        uses.write()
    assert last_used(store) == [None]
    uses.close()
    assert last_used(store) == [1_000.0]
