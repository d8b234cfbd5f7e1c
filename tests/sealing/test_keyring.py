import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, update

from key_deployment import ACME, GLOBEX, NOW, KeyDeployment, current, secrets_of
from kvcustody.errors import UnavailableError
from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.registry.schema import namespaces, service_keys
from kvcustody.sealing import (
    BlockIdentity,
    KeyChange,
    Keyring,
    OpenFailure,
    RootKeys,
    ServiceKey,
    open_into,
    seal_into,
    sealed_size,
)
from kvcustody.sealing.providers import LocalKeyProvider, WrappedKeyError, create_key_file

pytestmark = pytest.mark.unit


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[KeyDeployment]:
    deployment = KeyDeployment(tmp_path)
    yield deployment
    deployment.close()


def test_a_namespace_gets_keys_of_32_bytes_on_first_use(deployment: KeyDeployment) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    assert len(keys.identifier) == len(current(keys).key_id) == 16
    naming_key, data_key = secrets_of(keys)
    assert len(naming_key) == len(data_key) == 32
    assert naming_key != data_key


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
    deployment: KeyDeployment, other: Namespace
) -> None:
    keyring = deployment.keyring()
    ours, theirs = keyring.namespace_keys(ACME), keyring.namespace_keys(other)
    assert ours.identifier != theirs.identifier
    assert current(ours).key_id != current(theirs).key_id
    assert set(secrets_of(ours)).isdisjoint(secrets_of(theirs))


def test_a_namespace_finds_its_own_data_keys_only(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    ours, theirs = keyring.namespace_keys(ACME), keyring.namespace_keys(GLOBEX)
    assert ours.find(current(ours).key_id) == current(ours)
    assert isinstance(ours.find(current(theirs).key_id), OpenFailure)
    assert isinstance(ours.find(bytes(16)), OpenFailure)


def test_a_block_of_one_tenant_opens_for_no_other(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    ours, theirs = keyring.namespace_keys(ACME), keyring.namespace_keys(GLOBEX)
    identity = BlockIdentity(ours.identifier, b"b" * 32, b"l" * 32)
    sealed = memoryview(bytearray(sealed_size(6)))
    seal_into(sealed, b"secret", identity, current(ours), created=0, expires=10)
    for header_says in (identity, replace(identity, namespace=theirs.identifier)):
        destination = bytearray(6)
        failure = open_into(memoryview(destination), sealed, header_says, theirs.find, now=5)
        assert failure is not None
        assert destination == bytes(6)
    destination = bytearray(6)
    assert open_into(memoryview(destination), sealed, identity, ours.find, now=5) is None
    assert destination == b"secret"


def test_a_restart_gives_the_same_keys(deployment: KeyDeployment) -> None:
    before, after = deployment.keyring(), deployment.keyring()
    ours, theirs = before.namespace_keys(ACME), after.namespace_keys(ACME)
    assert ours.identifier == theirs.identifier
    assert secrets_of(ours) == secrets_of(theirs)
    for purpose in ServiceKey:
        assert before.service_key(purpose) == after.service_key(purpose)


def test_a_second_use_asks_neither_registry_nor_provider(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    first = keyring.namespace_keys(ACME)
    deployment.close()
    deployment.registry_file.unlink()
    assert keyring.namespace_keys(ACME) is first


def test_processes_that_start_at_once_end_up_with_the_same_keys(deployment: KeyDeployment) -> None:
    keyrings = [deployment.keyring() for _ in range(4)]
    together = threading.Barrier(len(keyrings))
    found: list[tuple[bytes, ...]] = []

    def start(keyring: Keyring) -> None:
        together.wait(5)
        found.append(
            (
                *secrets_of(keyring.namespace_keys(ACME)),
                keyring.service_key(ServiceKey.CACHE_SALT),
            )
        )

    threads = [threading.Thread(target=start, args=[keyring]) for keyring in keyrings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == len(keyrings)
    assert len(set(found)) == 1


def test_service_keys_are_32_bytes_and_differ_by_purpose(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    keys = {keyring.service_key(purpose) for purpose in ServiceKey}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == len(ServiceKey)


def test_two_deployments_share_no_key(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        deployment = KeyDeployment(tmp_path / name)
        keyring = deployment.keyring()
        found.append(
            {keyring.service_key(ServiceKey.ASSERTION), *secrets_of(keyring.namespace_keys(ACME))}
        )
        deployment.close()
    assert found[0].isdisjoint(found[1])


def test_the_registry_holds_no_usable_key(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    secrets = {
        *secrets_of(keyring.namespace_keys(ACME)),
        *(keyring.service_key(purpose) for purpose in ServiceKey),
    }
    deployment.close()
    for path in deployment.registry_file.parent.glob("registry.sqlite*"):
        content = path.read_bytes()
        assert not any(secret in content for secret in secrets), path.name


def test_keys_show_the_namespace_and_never_a_secret(deployment: KeyDeployment) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    assert repr(keys) == f"NamespaceKeys(identifier={keys.identifier.hex()})"


def test_a_new_data_key_is_told_once(deployment: KeyDeployment) -> None:
    for _ in range(2):
        keyring = deployment.keyring()
        keys = keyring.namespace_keys(ACME)
        keyring.namespace_keys(ACME)
    key_id = current(keys).key_id.hex()
    assert deployment.changes == [
        KeyChange("create", keys.identifier.hex(), key_id, 1, "acme", "first use")
    ]


def test_the_registry_says_whose_a_namespace_is_and_since_when(deployment: KeyDeployment) -> None:
    namespace = Namespace(Scope("local", "acme", "support", "alice"), "revision-1", "ab" * 32)
    keys = deployment.keyring().namespace_keys(namespace)
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


def test_another_root_key_is_a_clear_error(deployment: KeyDeployment, tmp_path: Path) -> None:
    deployment.keyring().namespace_keys(ACME)
    create_key_file(tmp_path / "other.key")
    keyring = deployment.keyring(roots=RootKeys(LocalKeyProvider(tmp_path / "other.key")))
    for use in (
        lambda: keyring.service_key(ServiceKey.NAMESPACE),
        lambda: keyring.namespace_keys(ACME),
    ):
        with pytest.raises(WrappedKeyError, match=r"local:\w+, and custody.yaml has local:\w+"):
            use()


def test_wrapped_keys_swapped_in_the_registry_do_not_unwrap(deployment: KeyDeployment) -> None:
    """Whoever can write to the registry can't make one tenant use another's key."""
    keyring = deployment.keyring()
    ours, theirs = keyring.namespace_keys(ACME), keyring.namespace_keys(GLOBEX)
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


def test_service_keys_swapped_in_the_registry_do_not_unwrap(deployment: KeyDeployment) -> None:
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


def test_an_unreachable_registry_is_an_error_that_callers_know(deployment: KeyDeployment) -> None:
    keyring = deployment.keyring()
    deployment.close()
    deployment.registry_file.unlink()
    deployment.registry_file.mkdir()
    with pytest.raises(UnavailableError):
        keyring.namespace_keys(ACME)
