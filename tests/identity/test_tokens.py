from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import KeyStore, key_id_of
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import api_keys

ACME = Principal("acme", "chat", "patient-7")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registry(registry_url: str) -> Iterator[Registry]:
    registry = open_registry(registry_url)
    yield registry
    registry.close()


def test_a_minted_key_proves_its_principal_and_no_other_text_does(registry: Registry) -> None:
    store = KeyStore(registry)
    minted = store.mint(ACME, expires=None)
    other = store.mint(Principal("globex", "chat"), expires=None)
    found = store.authenticate(minted.key)
    assert found is not None
    assert found.principal == ACME
    own_id, other_id = minted.record.id, other.record.id
    hostile = [
        "",
        "kvc_",
        minted.key[:-1],
        minted.key + "A",
        minted.key + "\n",
        " " + minted.key,
        minted.key.upper(),
        minted.key.replace(own_id, other_id),
        minted.key.replace(own_id, "0" * 12),
        f"kvc_{own_id}_{'A' * 43}",
        f"kvc_' OR 1=1 --_{'A' * 43}",
        "kvc_" + "\uff19" * 12 + "_" + "A" * 43,
        "x" * 1_000_000,
    ]
    assert [store.authenticate(text) for text in hostile] == [None] * len(hostile)


def test_a_revoked_key_proves_nothing_and_the_others_still_do(registry: Registry) -> None:
    store = KeyStore(registry)
    revoked, kept = store.mint(ACME, expires=None), store.mint(ACME, expires=None)
    assert store.revoke(revoked.record.id)
    assert store.authenticate(revoked.key) is None
    assert store.authenticate(kept.key) is not None
    assert not store.revoke(revoked.record.id)
    assert not store.revoke("unknown")


def test_a_key_ends_when_it_expires(registry: Registry) -> None:
    clock = Clock()
    store = KeyStore(registry, clock)
    minted = store.mint(ACME, expires=clock.now + 60)
    assert store.authenticate(minted.key) is not None
    clock.now += 60
    assert store.authenticate(minted.key) is None


def test_the_registry_holds_no_secret(registry: Registry, tmp_path: Path) -> None:
    minted = KeyStore(registry).mint(ACME, expires=None)
    secret = minted.key.split("_", 2)[2]
    with registry.read() as connection:
        row = connection.execute(select(api_keys)).one()
    assert secret not in repr(row)
    registry.close()
    for file in tmp_path.rglob("registry*"):
        assert secret.encode() not in file.read_bytes(), file


def test_no_representation_shows_the_key(registry: Registry) -> None:
    minted = KeyStore(registry).mint(ACME, expires=None)
    secret = minted.key.split("_", 2)[2]
    assert secret not in repr(minted)
    assert secret not in f"{minted}"


def test_keys_are_listed_oldest_first(registry: Registry) -> None:
    clock = Clock()
    store = KeyStore(registry, clock)
    ids = []
    for _ in range(3):
        ids.append(store.mint(ACME, expires=None).record.id)
        clock.now += 1
    assert [record.id for record in store.list()] == ids


@pytest.mark.unit
def test_the_public_id_is_read_from_keys_only() -> None:
    assert key_id_of("kvc_0123456789ab_" + "A" * 43) == "0123456789ab"
    assert key_id_of("Bearer secret") is None


def test_a_key_has_the_rights_that_it_was_minted_with_and_no_others(registry: Registry) -> None:
    store = KeyStore(registry)
    plain = store.mint(ACME, expires=None)
    admin = store.mint(ACME, expires=None, admin=True)
    member = store.mint(ACME, expires=None, group="manuals")
    found = [store.authenticate(minted.key) for minted in (plain, admin, member)]
    assert [(key.admin, key.group) for key in found if key] == [
        (False, None),
        (True, None),
        (False, "manuals"),
    ]


def test_a_key_of_before_there_were_rights_has_none(registry: Registry) -> None:
    store = KeyStore(registry)
    minted = store.mint(ACME, expires=None, admin=True)
    with registry.write() as connection:
        connection.execute(update(api_keys).values(admin=None))
    found = store.authenticate(minted.key)
    assert found is not None
    assert not found.admin
