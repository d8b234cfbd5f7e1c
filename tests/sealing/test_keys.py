import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import insert, select, update

from kvcustody.errors import UnavailableError
from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.registry import Registry, open_registry
from kvcustody.registry.schema import data_keys, namespaces, service_keys
from kvcustody.sealing import (
    BlockIdentity,
    DataKey,
    Keyring,
    NamespaceKeys,
    OpenFailure,
    ServiceKey,
    open_into,
    seal_into,
    sealed_size,
)
from kvcustody.sealing.providers import (
    KeyContext,
    LocalKeyProvider,
    WrappedKeyError,
    create_key_file,
)

pytestmark = pytest.mark.unit

ACME = Namespace(Scope("local", "acme"), "revision-1", "ab" * 32)
GLOBEX = replace(ACME, scope=Scope("local", "globex"))
NOW = 1_700_000_000.0


class Deployment:
    """A deployment's registry and key file, which outlive the processes that use them."""

    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "root.key"
        self.registry_file = folder / "registry.sqlite"
        create_key_file(self.key_file)
        self._open: list[Registry] = []

    def registry(self) -> Registry:
        """The registry, as a process opens it."""
        registry = open_registry(f"sqlite:///{self.registry_file}")
        self._open.append(registry)
        return registry

    def provider(self) -> LocalKeyProvider:
        """The root key, as a process opens it."""
        return LocalKeyProvider(self.key_file)

    def keyring(self) -> Keyring:
        """The key ring of a process that has just started."""
        return Keyring(self.registry(), self.provider(), clock=lambda: NOW)

    def close(self) -> None:
        """Close what `registry` opened."""
        for registry in self._open:
            registry.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path)
    yield deployment
    deployment.close()


def keys_of(keyring: Keyring, namespace: Namespace) -> NamespaceKeys:
    keys = keyring.namespace_keys(namespace)
    assert isinstance(keys, NamespaceKeys)
    return keys


def material(keys: NamespaceKeys) -> tuple[bytes, bytes, DataKey]:
    return keys.identifier, keys.naming_key, keys.current


def test_a_namespace_gets_keys_of_32_bytes_on_first_use(deployment: Deployment) -> None:
    keys = keys_of(deployment.keyring(), ACME)
    assert len(keys.identifier) == len(keys.current.key_id) == 16
    assert len(keys.naming_key) == len(keys.current.secret) == 32
    assert keys.naming_key != keys.current.secret


@pytest.mark.parametrize(
    "other",
    [
        GLOBEX,
        replace(ACME, scope=Scope("local", "acme", "support")),
        replace(ACME, scope=Scope("local", "acme", "support", "alice")),
        replace(ACME, scope=Scope("elsewhere", "acme")),
        replace(ACME, model_revision="revision-2"),
        replace(ACME, layout="cd" * 32),
    ],
    ids=["tenant", "workload", "subject", "deployment", "model", "layout"],
)
def test_two_namespaces_share_no_identifier_and_no_key(
    deployment: Deployment, other: Namespace
) -> None:
    keyring = deployment.keyring()
    ours, theirs = keys_of(keyring, ACME), keys_of(keyring, other)
    assert ours.identifier != theirs.identifier
    assert ours.naming_key != theirs.naming_key
    assert ours.current.key_id != theirs.current.key_id
    assert ours.current.secret != theirs.current.secret


def test_a_namespace_finds_its_own_data_keys_only(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    ours, theirs = keys_of(keyring, ACME), keys_of(keyring, GLOBEX)
    assert ours.find(ours.current.key_id) == ours.current
    assert isinstance(ours.find(theirs.current.key_id), OpenFailure)
    assert isinstance(ours.find(bytes(16)), OpenFailure)


def test_a_block_of_one_tenant_opens_for_no_other(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    ours, theirs = keys_of(keyring, ACME), keys_of(keyring, GLOBEX)
    identity = BlockIdentity(ours.identifier, b"b" * 32, b"l" * 32)
    sealed = memoryview(bytearray(sealed_size(6)))
    seal_into(sealed, b"secret", identity, ours.current, created=0, expires=10)
    for header_says in (identity, replace(identity, namespace=theirs.identifier)):
        destination = bytearray(6)
        failure = open_into(memoryview(destination), sealed, header_says, theirs.find, now=5)
        assert failure is not None
        assert destination == bytes(6)
    destination = bytearray(6)
    assert open_into(memoryview(destination), sealed, identity, ours.find, now=5) is None
    assert destination == b"secret"


def test_a_restart_gives_the_same_keys(deployment: Deployment) -> None:
    before, after = deployment.keyring(), deployment.keyring()
    assert material(keys_of(before, ACME)) == material(keys_of(after, ACME))
    for purpose in ServiceKey:
        assert before.service_key(purpose) == after.service_key(purpose)


def test_a_second_use_asks_neither_registry_nor_provider(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    first = keys_of(keyring, ACME)
    deployment.close()
    deployment.registry_file.unlink()
    assert keys_of(keyring, ACME) is first


def test_processes_that_start_at_once_end_up_with_the_same_keys(deployment: Deployment) -> None:
    keyrings = [deployment.keyring() for _ in range(4)]
    together = threading.Barrier(len(keyrings))
    found: list[tuple[bytes, bytes, DataKey, bytes]] = []

    def start(keyring: Keyring) -> None:
        together.wait(5)
        found.append(
            (*material(keys_of(keyring, ACME)), keyring.service_key(ServiceKey.CACHE_SALT))
        )

    threads = [threading.Thread(target=start, args=[keyring]) for keyring in keyrings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == len(keyrings)
    assert len(set(found)) == 1


def test_service_keys_are_32_bytes_and_differ_by_purpose(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    keys = {keyring.service_key(purpose) for purpose in ServiceKey}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == len(ServiceKey)


def test_two_deployments_share_no_key(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        deployment = Deployment(tmp_path / name)
        keyring = deployment.keyring()
        found.append({keyring.service_key(ServiceKey.ASSERTION), *_secrets(keyring, ACME)})
        deployment.close()
    assert found[0].isdisjoint(found[1])


def test_the_registry_holds_no_usable_key(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    secrets = {
        *_secrets(keyring, ACME),
        *(keyring.service_key(purpose) for purpose in ServiceKey),
    }
    deployment.close()
    for path in deployment.registry_file.parent.glob("registry.sqlite*"):
        content = path.read_bytes()
        assert not any(secret in content for secret in secrets), path.name


def test_keys_show_the_namespace_and_never_a_secret(deployment: Deployment) -> None:
    keys = keys_of(deployment.keyring(), ACME)
    assert repr(keys) == f"NamespaceKeys(identifier={keys.identifier.hex()})"


def test_a_new_data_key_is_told_once(deployment: Deployment) -> None:
    told: list[tuple[str, str, int]] = []

    def on_created(namespace: str, key_id: str, epoch: int) -> None:
        told.append((namespace, key_id, epoch))

    for _ in range(2):
        keyring = Keyring(deployment.registry(), deployment.provider(), on_created=on_created)
        keys = keys_of(keyring, ACME)
        keys_of(keyring, ACME)
    assert told == [(keys.identifier.hex(), keys.current.key_id.hex(), 1)]


def test_the_registry_says_whose_a_namespace_is_and_since_when(deployment: Deployment) -> None:
    namespace = Namespace(Scope("local", "acme", "support", "alice"), "revision-1", "ab" * 32)
    keys = keys_of(deployment.keyring(), namespace)
    with deployment.registry().read() as connection:
        row = connection.execute(select(namespaces)).one()
    assert (row.id, row.tenant, row.workload, row.subject, row.model_revision, row.layout) == (
        keys.identifier.hex(),
        "acme",
        "support",
        "alice",
        "revision-1",
        "ab" * 32,
    )
    assert (row.created, row.destroyed) == (NOW, None)


@pytest.mark.parametrize("destroyed", ["naming key", "data key", "both"])
def test_a_destroyed_namespace_stays_destroyed(deployment: Deployment, destroyed: str) -> None:
    keys_of(deployment.keyring(), ACME)
    with deployment.registry().write() as connection:
        if destroyed != "data key":
            connection.execute(update(namespaces).values(wrapped_naming_key=None))
        if destroyed != "naming key":
            connection.execute(update(data_keys).values(wrapped=None))
    for _ in range(2):
        assert deployment.keyring().namespace_keys(ACME) is OpenFailure.KEY_DESTROYED


def test_destroying_one_namespace_leaves_the_others(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    ours, theirs = keys_of(keyring, ACME), keys_of(keyring, GLOBEX)
    with deployment.registry().write() as connection:
        connection.execute(
            update(data_keys)
            .where(data_keys.c.namespace == ours.identifier.hex())
            .values(wrapped=None)
        )
    restarted = deployment.keyring()
    assert restarted.namespace_keys(ACME) is OpenFailure.KEY_DESTROYED
    assert material(keys_of(restarted, GLOBEX)) == material(theirs)


def test_new_blocks_get_the_newest_epoch_and_old_ones_are_still_found(
    deployment: Deployment,
) -> None:
    first = keys_of(deployment.keyring(), ACME)
    newer = _add_epoch(deployment, first, epoch=2)
    keys = keys_of(deployment.keyring(), ACME)
    assert keys.current == newer
    assert keys.naming_key == first.naming_key
    assert keys.find(first.current.key_id) == first.current
    assert keys.find(newer.key_id) == newer


def test_a_destroyed_epoch_is_not_found_and_the_others_are(deployment: Deployment) -> None:
    first = keys_of(deployment.keyring(), ACME)
    newer = _add_epoch(deployment, first, epoch=2)
    with deployment.registry().write() as connection:
        connection.execute(update(data_keys).where(data_keys.c.epoch == 1).values(wrapped=None))
    keys = keys_of(deployment.keyring(), ACME)
    assert keys.current == newer
    assert keys.find(first.current.key_id) is OpenFailure.KEY_DESTROYED


def test_another_root_key_is_a_clear_error(deployment: Deployment, tmp_path: Path) -> None:
    keys_of(deployment.keyring(), ACME)
    create_key_file(tmp_path / "other.key")
    keyring = Keyring(deployment.registry(), LocalKeyProvider(tmp_path / "other.key"))
    with pytest.raises(WrappedKeyError, match=r"other\.key: this root key did not wrap"):
        keyring.service_key(ServiceKey.NAMESPACE)
    with pytest.raises(WrappedKeyError, match=r"other\.key: this root key did not wrap"):
        keyring.namespace_keys(ACME)


def test_wrapped_keys_swapped_in_the_registry_do_not_unwrap(deployment: Deployment) -> None:
    """Whoever can write to the registry can't make one tenant use another's key."""
    keyring = deployment.keyring()
    ours, theirs = keys_of(keyring, ACME), keys_of(keyring, GLOBEX)
    with deployment.registry().write() as connection:
        stolen = connection.scalar(
            select(namespaces.c.wrapped_naming_key).where(
                namespaces.c.id == theirs.identifier.hex()
            )
        )
        connection.execute(
            update(namespaces)
            .where(namespaces.c.id == ours.identifier.hex())
            .values(wrapped_naming_key=stolen)
        )
    with pytest.raises(WrappedKeyError):
        deployment.keyring().namespace_keys(ACME)


def test_service_keys_swapped_in_the_registry_do_not_unwrap(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    for purpose in (ServiceKey.ASSERTION, ServiceKey.CACHE_SALT):
        keyring.service_key(purpose)
    table = service_keys
    with deployment.registry().write() as connection:
        stolen = connection.scalar(
            select(table.c.wrapped).where(table.c.purpose == ServiceKey.CACHE_SALT.value)
        )
        connection.execute(
            update(table)
            .where(table.c.purpose == ServiceKey.ASSERTION.value)
            .values(wrapped=stolen)
        )
    with pytest.raises(WrappedKeyError):
        deployment.keyring().service_key(ServiceKey.ASSERTION)


def test_an_unreachable_registry_is_an_error_that_callers_know(deployment: Deployment) -> None:
    keyring = deployment.keyring()
    deployment.close()
    deployment.registry_file.unlink()
    deployment.registry_file.mkdir()
    with pytest.raises(UnavailableError):
        keyring.namespace_keys(ACME)


def _secrets(keyring: Keyring, namespace: Namespace) -> list[bytes]:
    keys = keys_of(keyring, namespace)
    return [keys.naming_key, keys.current.secret]


def _add_epoch(deployment: Deployment, keys: NamespaceKeys, *, epoch: int) -> DataKey:
    """What rotation does: a further data key for the namespace."""
    key = DataKey(b"\x09" * 16, b"\x0a" * 32)
    context = KeyContext("data key", f"{keys.identifier.hex()}/{key.key_id.hex()}")
    with deployment.registry().write() as connection:
        connection.execute(
            insert(data_keys).values(
                id=key.key_id.hex(),
                namespace=keys.identifier.hex(),
                epoch=epoch,
                wrapped=deployment.provider().wrap(key.secret, context),
                created=NOW,
            )
        )
    return key
