"""Epochs begin and end, namespaces are destroyed: as registry and running engines see it."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import OperationalError

from key_deployment import ACME, GLOBEX, NOW, Clock, KeyDeployment, current, secrets_of
from kvcustody.errors import UnavailableError
from kvcustody.namespace import Namespace
from kvcustody.sealing import (
    BlockIdentity,
    DataKey,
    KeyMaintenance,
    NamespaceKeys,
    OpenFailure,
    open_into,
    seal_into,
    sealed_size,
)
from kvcustody.sealing.providers import WrappedKeyError

DAY = 86_400.0
PLAINTEXT = b"kv data of a prompt"


def rotate(deployment: KeyDeployment, keys: NamespaceKeys) -> None:
    """What `kvcustody keys rotate` does, in a process of its own."""
    table = deployment.table()
    stored = table.read(keys.identifier)
    assert stored is not None
    assert table.add_epoch(stored, "command")


def destroy(deployment: KeyDeployment, keys: NamespaceKeys) -> None:
    """What `kvcustody keys destroy` does, in a process of its own."""
    assert deployment.table().destroy([keys.identifier.hex()], "command")


def seal(keys: NamespaceKeys) -> bytes:
    sealed = bytearray(sealed_size(len(PLAINTEXT)))
    key = current(keys)
    assert seal_into(memoryview(sealed), PLAINTEXT, _identity(keys), key, created=0, expires=9)
    return bytes(sealed)


def unseal(keys: NamespaceKeys, sealed: bytes) -> OpenFailure | bytes:
    destination = bytearray(b"\xaa" * len(PLAINTEXT))
    failure = open_into(
        memoryview(destination), memoryview(sealed), _identity(keys), keys.find, now=5
    )
    assert failure is None or destination == bytes(len(PLAINTEXT))
    return failure or bytes(destination)


def _identity(keys: NamespaceKeys) -> BlockIdentity:
    return BlockIdentity(keys.identifier, b"b" * 32, b"l" * 32)


def test_after_a_rotation_new_blocks_have_a_new_key_and_old_ones_still_open(
    deployment: KeyDeployment,
) -> None:
    before = deployment.keyring().namespace_keys(ACME)
    old_block = seal(before)
    rotate(deployment, before)
    after = deployment.keyring().namespace_keys(ACME)
    assert current(after).key_id != current(before).key_id
    assert after.name(b"block") == before.name(b"block")
    assert unseal(after, old_block) == PLAINTEXT
    assert unseal(after, seal(after)) == PLAINTEXT


def test_two_that_rotate_at_once_begin_one_epoch(deployment: KeyDeployment) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    one, two = deployment.table(), deployment.table()
    seen = one.read(keys.identifier)
    assert seen is not None
    assert [table.add_epoch(seen, "command") for table in (one, two)] == [True, False]
    stored = one.read(keys.identifier)
    assert stored is not None
    assert [epoch.number for epoch in stored.epochs] == [1, 2]
    assert [epoch.retired for epoch in stored.epochs] == [NOW, None]


def test_a_namespace_whose_epoch_is_old_begins_a_new_one_when_it_is_used(
    deployment: KeyDeployment,
) -> None:
    first = deployment.keyring(rotate_every=DAY).namespace_keys(ACME)
    deployment.clock.now += DAY - 1
    still = deployment.keyring(rotate_every=DAY).namespace_keys(ACME)
    assert current(still).key_id == current(first).key_id
    deployment.clock.now += 1
    after = deployment.keyring(rotate_every=DAY).namespace_keys(ACME)
    assert current(after).key_id != current(first).key_id
    assert deployment.changes[-1].reason == "rotate_every"


def test_a_running_engine_rotates_what_it_uses(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring(rotate_every=DAY)
    keys = keyring.namespace_keys(ACME)
    block, first = seal(keys), current(keys).key_id
    keyring.rotate_due()
    assert current(keys).key_id == first
    deployment.clock.now += DAY
    keyring.rotate_due()
    assert current(keys).key_id != first
    assert unseal(keys, block) == PLAINTEXT
    assert keyring.namespace_keys(ACME) is keys


def test_a_block_of_an_epoch_that_another_engine_began_opens(deployment: KeyDeployment) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    rotate(deployment, keys)
    block = seal(deployment.keyring().namespace_keys(ACME))
    assert unseal(keys, block) is OpenFailure.KEY_UNAVAILABLE
    keys.learn(block[8:24])
    assert unseal(keys, block) == PLAINTEXT


def test_forged_key_ids_do_not_make_an_engine_ask_the_registry_each_time(
    deployment: KeyDeployment,
) -> None:
    ticks = Clock(0.0)
    keys = deployment.keyring(monotonic=ticks).namespace_keys(ACME)
    keys.learn(b"forged" + bytes(10))
    rotate(deployment, keys)
    block = seal(deployment.keyring().namespace_keys(ACME))
    keys.learn(block[8:24])
    assert unseal(keys, block) is OpenFailure.KEY_UNAVAILABLE
    ticks.now += 1.0
    keys.learn(block[8:24])
    assert unseal(keys, block) == PLAINTEXT


def test_destroyed_keys_open_nothing_and_the_other_tenants_do(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    ours, theirs = (keyring.namespace_keys(who) for who in (ACME, GLOBEX))
    our_block, their_block = seal(ours), seal(theirs)
    destroy(deployment, ours)
    restarted = deployment.keyring()
    assert unseal(restarted.namespace_keys(ACME), our_block) is OpenFailure.KEY_DESTROYED
    assert unseal(restarted.namespace_keys(GLOBEX), their_block) == PLAINTEXT


def test_a_destroyed_namespace_that_is_used_again_begins_anew_under_other_names(
    deployment: KeyDeployment,
) -> None:
    before = deployment.keyring().namespace_keys(ACME)
    old_name, old_secrets = before.name(b"block"), secrets_of(before)
    destroy(deployment, before)
    after = deployment.keyring().namespace_keys(ACME)
    assert after.identifier == before.identifier
    assert after.name(b"block") != old_name
    assert set(secrets_of(after)).isdisjoint(old_secrets)
    assert unseal(after, seal(after)) == PLAINTEXT
    assert [(change.action, change.epoch) for change in deployment.changes] == [
        ("create", 1),
        ("destroy", 1),
        ("create", 2),
    ]


def test_a_replayed_block_of_an_epoch_before_a_destruction_never_opens(
    deployment: KeyDeployment,
) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    blocks = [seal(keys)]
    rotate(deployment, keys)
    blocks.append(seal(deployment.keyring().namespace_keys(ACME)))
    destroy(deployment, keys)
    after = deployment.keyring().namespace_keys(ACME)
    assert [unseal(after, block) for block in blocks] == [OpenFailure.KEY_DESTROYED] * 2
    assert unseal(after, seal(after)) == PLAINTEXT


def test_a_running_engine_lets_go_of_keys_that_somebody_destroyed(
    deployment: KeyDeployment,
) -> None:
    keyring = deployment.keyring()
    maintenance = KeyMaintenance(keyring, deployment.table(), longest_life=DAY)
    ours, theirs = (keyring.namespace_keys(who) for who in (ACME, GLOBEX))
    our_block, their_block = seal(ours), seal(theirs)
    secrets = [ours._naming_key, current(ours).secret]
    maintenance.run_once()
    assert unseal(ours, our_block) == PLAINTEXT
    destroy(deployment, ours)
    maintenance.run_once()
    assert not any(secret._material for secret in secrets), "wiped"
    assert (ours.current, ours.name(b"block")) == (None, None)
    assert unseal(ours, our_block) is OpenFailure.KEY_DESTROYED
    assert unseal(theirs, their_block) == PLAINTEXT
    assert keyring.namespace_keys(ACME) is not ours


def test_an_engine_that_missed_a_destruction_and_a_new_beginning_takes_the_new_keys(
    deployment: KeyDeployment,
) -> None:
    keyring = deployment.keyring()
    keys = keyring.namespace_keys(ACME)
    destroy(deployment, keys)
    other_engine = deployment.keyring().namespace_keys(ACME)
    keyring.refresh()
    assert keys.current is None
    again = keyring.namespace_keys(ACME)
    assert again.name(b"block") == other_engine.name(b"block")
    assert unseal(again, seal(other_engine)) == PLAINTEXT


@pytest.mark.unit
def test_nothing_of_a_destroyed_key_stays_in_the_registrys_files(
    in_files: KeyDeployment,
) -> None:
    keys, others = (in_files.keyring().namespace_keys(who) for who in (ACME, GLOBEX))
    wrapped, kept = (_wrapped(in_files, each) for each in (keys, others))
    assert len(wrapped) == len(kept) == 2
    assert all(_stands_in_files(in_files, each) for each in (*wrapped, *kept))
    destroy(in_files, keys)
    assert not any(_stands_in_files(in_files, each) for each in wrapped)
    assert all(_stands_in_files(in_files, each) for each in kept)


def _wrapped(deployment: KeyDeployment, keys: NamespaceKeys) -> list[bytes]:
    stored = deployment.table().read(keys.identifier)
    assert stored is not None
    found = [stored.naming_key, *(epoch.wrapped for epoch in stored.epochs)]
    return [each.ciphertext for each in found if each is not None]


def _stands_in_files(deployment: KeyDeployment, wrapped: bytes) -> bool:
    folder = deployment.registry_file.parent
    return any(wrapped in path.read_bytes() for path in folder.glob("registry.sqlite*"))


def test_an_epoch_goes_when_its_longest_lived_block_has(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    maintenance = KeyMaintenance(
        keyring, deployment.table(), longest_life=DAY, clock=deployment.clock
    )
    keys = keyring.namespace_keys(ACME)
    old_block = seal(keys)
    rotate(deployment, keys)
    deployment.clock.now += DAY  # the last block may just have been sealed when the epoch ended
    maintenance.run_once()
    assert unseal(keys, old_block) == PLAINTEXT
    deployment.clock.now += 3_601.0
    maintenance.run_once()
    maintenance.run_once()  # which hears of the change
    assert unseal(keys, old_block) is OpenFailure.KEY_DESTROYED
    assert unseal(keys, seal(keys)) == PLAINTEXT
    assert deployment.changes[-1].reason == "epoch outlived its blocks"


def test_a_current_epoch_is_never_destroyed_for_its_age(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    keys = keyring.namespace_keys(ACME)
    deployment.clock.now += 3_650 * DAY
    assert deployment.table().destroy_retired(deployment.clock.now) == []
    assert unseal(keys, seal(keys)) == PLAINTEXT


def test_a_rotation_can_not_bring_back_a_namespace_that_is_destroyed_meanwhile(
    deployment: KeyDeployment,
) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    table = deployment.table()
    seen = table.read(keys.identifier)
    assert seen is not None
    destroy(deployment, keys)
    assert not table.add_epoch(seen, "command")
    stored = table.read(keys.identifier)
    assert stored is not None
    assert (stored.naming_key, stored.current) == (None, None)


def test_keys_that_were_wiped_are_not_brought_back_by_a_late_refresh(
    deployment: KeyDeployment,
) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    fresh = deployment.keyring().namespace_keys(ACME)._epochs
    assert fresh is not None
    keys.wipe(OpenFailure.KEY_DESTROYED)
    keys.update(fresh)
    assert keys.current is None
    assert not fresh.current.secret._material, "wiped, too"


def test_a_destruction_takes_effect_while_the_provider_is_away(
    deployment: KeyDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = deployment.keyring()
    maintenance = KeyMaintenance(keyring, deployment.table(), longest_life=DAY)
    ours, theirs = (keyring.namespace_keys(who) for who in (ACME, GLOBEX))
    rotate(deployment, ours)  # which can't be taken over without the provider
    destroy(deployment, theirs)
    monkeypatch.setattr("kvcustody.sealing.roots.RootKeys.unwrap", _away)
    maintenance.run_once()
    assert theirs.current is None
    assert ours.current is not None


def test_keys_that_are_destroyed_while_they_come_are_not_used(
    deployment: KeyDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = deployment.keyring().namespace_keys(ACME)
    keyring = deployment.keyring()
    fetch = keyring._fetch

    def fetch_and_destroy(namespace: Namespace) -> NamespaceKeys:
        keys = fetch(namespace)
        destroy(deployment, first)
        return keys

    with monkeypatch.context() as patch:
        patch.setattr(keyring, "_fetch", fetch_and_destroy)
        assert keyring.namespace_keys(ACME).current is None
    assert keyring.namespace_keys(ACME).current is not None


def test_a_destruction_is_told_though_the_database_can_not_clean_up(
    deployment: KeyDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    table = deployment.table()

    def fail() -> None:
        raise OperationalError("VACUUM", None, Exception("busy"))

    monkeypatch.setattr(table._registry._database, "scrub", fail)
    assert len(table.destroy([keys.identifier.hex()], "command")) == 1
    assert deployment.changes[-1].action == "destroy"


class TestKeysInMemory:
    """With a registry and a provider that go away and come back."""

    @pytest.fixture
    def ticks(self) -> Clock:
        return Clock(0.0)

    def test_keys_work_without_the_provider_until_they_are_too_old(
        self, deployment: KeyDeployment, ticks: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keyring = deployment.keyring(cached_for=60.0, monotonic=ticks)
        keys = keyring.namespace_keys(ACME)
        block = seal(keys)
        with monkeypatch.context() as patch:
            patch.setattr("kvcustody.sealing.roots.RootKeys.unwrap", _away)
            for ticks.now in (31.0, 59.0):
                assert keyring.namespace_keys(ACME) is keys
                keyring.expire()
                assert unseal(keys, block) == PLAINTEXT
            ticks.now = 60.0
            assert unseal(keys, block) is OpenFailure.KEY_UNAVAILABLE
            assert (keys.current, keys.name(b"block")) == (None, None)
            with pytest.raises(UnavailableError):
                keyring.namespace_keys(ACME)
            keyring.expire()
            assert not keys._naming_key._material, "wiped"
        assert unseal(keyring.namespace_keys(ACME), block) == PLAINTEXT

    def test_keys_in_use_are_confirmed_in_time(
        self, deployment: KeyDeployment, ticks: Clock
    ) -> None:
        keyring = deployment.keyring(cached_for=60.0, monotonic=ticks)
        keys = keyring.namespace_keys(ACME)
        block = seal(keys)
        for ticks.now in (31.0, 62.0, 93.0, 124.0):
            assert keyring.namespace_keys(ACME) is keys
            keyring.expire()
        assert unseal(keys, block) == PLAINTEXT

    def test_keys_that_nobody_uses_are_wiped(self, deployment: KeyDeployment, ticks: Clock) -> None:
        keyring = deployment.keyring(cached_for=60.0, monotonic=ticks)
        used, unused = keyring.namespace_keys(ACME), keyring.namespace_keys(GLOBEX)
        for ticks.now in (40.0, 80.0):
            keyring.namespace_keys(ACME)
            keyring.expire()
        assert used.current is not None
        assert not unused._naming_key._material
        assert not keyring.holds(GLOBEX)
        assert unused.find(b"k" * 16) is OpenFailure.KEY_UNAVAILABLE

    def test_a_provider_that_denies_ends_the_use_of_keys_at_their_age(
        self, deployment: KeyDeployment, ticks: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keyring = deployment.keyring(cached_for=60.0, monotonic=ticks)
        keys = keyring.namespace_keys(ACME)

        def deny(*_: object) -> None:
            raise WrappedKeyError("denied")

        monkeypatch.setattr("kvcustody.sealing.roots.RootKeys.unwrap", deny)
        for ticks.now in (40.0, 59.0):
            keyring.namespace_keys(ACME)
            keyring.expire()
            assert keys.current is not None
        ticks.now = 61.0
        keyring.expire()
        assert keys.current is None

    def test_keys_that_come_late_are_there_for_the_next_request(
        self, deployment: KeyDeployment
    ) -> None:
        keyring = deployment.keyring()
        assert keyring.namespace_keys_within(ACME, 0.0) is None or keyring.holds(ACME)
        keys = keyring.namespace_keys_within(ACME, 5.0)
        assert keys is not None
        assert keyring.namespace_keys_within(ACME, 0.0) is keys

    def test_a_failure_is_told_to_whoever_waits_and_not_remembered(
        self, deployment: KeyDeployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keyring = deployment.keyring()
        with monkeypatch.context() as patch:
            patch.setattr("kvcustody.sealing.roots.RootKeys.wrap", _away)
            patch.setattr("kvcustody.sealing.roots.RootKeys.unwrap", _away)
            with pytest.raises(UnavailableError):
                keyring.namespace_keys_within(ACME, 5.0)
        assert keyring.namespace_keys_within(ACME, 5.0) is not None

    def test_a_closed_key_ring_holds_no_key(self, deployment: KeyDeployment) -> None:
        keyring = deployment.keyring()
        keys = keyring.namespace_keys(ACME)
        secrets = [keys._naming_key, current(keys).secret]
        keyring.close()
        assert not any(secret._material for secret in secrets)

    def test_the_longest_unused_goes_when_there_are_too_many(
        self, deployment: KeyDeployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kvcustody.sealing.keyring._MOST_HELD", 2)
        keyring = deployment.keyring()
        third = replace(ACME, model_revision="revision-3")
        ours, theirs = keyring.namespace_keys(ACME), keyring.namespace_keys(GLOBEX)
        keyring.namespace_keys(ACME)
        keyring.namespace_keys(third)
        assert (ours.current is None, theirs.current is None) == (False, True)
        assert [keyring.holds(each) for each in (ACME, GLOBEX, third)] == [True, False, True]


def _away(*_: object) -> None:
    raise UnavailableError("the provider is away")


@pytest.mark.unit
def test_nothing_is_sealed_or_named_with_a_wiped_key() -> None:
    key = DataKey(b"k" * 16, b"\x01" * 32)
    sealed = bytearray(sealed_size(len(PLAINTEXT)))
    identity = BlockIdentity(b"n" * 16, b"b" * 32, b"l" * 32)
    assert seal_into(memoryview(sealed), PLAINTEXT, identity, key, created=0, expires=9)
    key.secret.wipe()
    untouched = bytearray(sealed_size(len(PLAINTEXT)))
    assert not seal_into(memoryview(untouched), PLAINTEXT, identity, key, created=0, expires=9)
    assert not any(untouched)
    assert key.secret.digest(b"block") is None
    destination = memoryview(bytearray(b"\xaa" * len(PLAINTEXT)))
    failure = open_into(destination, memoryview(sealed), identity, lambda _: key, now=5)
    assert failure is OpenFailure.KEY_UNAVAILABLE
    assert bytes(destination) == bytes(len(PLAINTEXT))
