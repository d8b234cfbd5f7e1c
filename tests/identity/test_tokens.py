from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from kvcustody.identity.caller import AuthenticationFailure, Rejection
from kvcustody.identity.principal import Principal
from kvcustody.identity.tokens import ApiKey, KeyStore, key_id_of
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import api_keys

INVALID = AuthenticationFailure.INVALID_KEY
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
    assert isinstance(found, ApiKey)
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
    answers = [store.authenticate(text) for text in hostile]
    assert {a.reason for a in answers if isinstance(a, Rejection)} == {INVALID}
    assert not any(isinstance(answer, ApiKey) for answer in answers)


def test_a_revoked_key_proves_nothing_and_the_others_still_do(registry: Registry) -> None:
    store = KeyStore(registry)
    revoked, kept = store.mint(ACME, expires=None), store.mint(ACME, expires=None)
    assert store.revoke(revoked.record.id)
    id_ = revoked.record.id
    assert store.authenticate(revoked.key) == Rejection(AuthenticationFailure.REVOKED_KEY, id_)
    assert isinstance(store.authenticate(kept.key), ApiKey)
    # Who doesn't know the secret doesn't learn that there was such a key.
    stranger = f"kvc_{id_}_{'A' * 43}"
    assert store.authenticate(stranger) == Rejection(INVALID, id_)
    assert not store.revoke(revoked.record.id)
    assert not store.revoke("unknown")


def test_a_key_ends_when_it_expires(registry: Registry) -> None:
    clock = Clock()
    store = KeyStore(registry, clock)
    minted = store.mint(ACME, expires=clock.now + 60)
    assert isinstance(store.authenticate(minted.key), ApiKey)
    clock.now += 60
    expired = Rejection(AuthenticationFailure.EXPIRED_KEY, minted.record.id)
    assert store.authenticate(minted.key) == expired
    assert [record.state(clock.now) for record in store.list()] == ["expired"]


def test_a_key_has_the_rights_that_it_was_minted_with_and_no_others(registry: Registry) -> None:
    store = KeyStore(registry)
    plain = store.mint(ACME, expires=None)
    admin = store.mint(ACME, expires=None, admin=True)
    sharing = store.mint(ACME, expires=None, group="manuals")
    found = [store.authenticate(minted.key) for minted in (plain, admin, sharing)]
    rights = [(key.admin, key.group) for key in found if isinstance(key, ApiKey)]
    assert rights == [(False, None), (True, None), (False, "manuals")]
    assert [minted.record for minted in (plain, admin, sharing)] == found


def test_keys_of_older_versions_have_no_rights(registry: Registry) -> None:
    store = KeyStore(registry)
    minted = store.mint(ACME, expires=None, admin=True, group="manuals")
    with registry.write() as connection:
        connection.execute(update(api_keys).values(admin=None, sharing_group=None))
    found = store.authenticate(minted.key)
    assert isinstance(found, ApiKey)
    assert (found.admin, found.group) == (False, None)


def test_the_time_of_use_is_kept_for_each_key_and_never_goes_back(registry: Registry) -> None:
    store = KeyStore(registry)
    ids = [store.mint(ACME, expires=None).record.id for _ in range(3)]
    store.note_use({ids[0]: 50.0, ids[1]: 70.0, "unknown": 1.0})
    store.note_use({ids[0]: 60.0, ids[1]: 60.0})
    assert {key.id: key.last_used for key in store.list()} == dict(
        zip(ids, (60.0, 70.0, None), strict=True)
    )


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


def test_a_key_of_before_there_were_rights_has_none(registry: Registry) -> None:
    store = KeyStore(registry)
    minted = store.mint(ACME, expires=None, admin=True)
    with registry.write() as connection:
        connection.execute(update(api_keys).values(admin=None))
    found = store.authenticate(minted.key)
    assert isinstance(found, ApiKey)
    assert not found.admin
