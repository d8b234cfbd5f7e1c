"""Rotation of the root key: the registry's keys get a new wrapping, and nothing else changes."""

from pathlib import Path

import pytest
from sqlalchemy import update

from key_deployment import ACME, GLOBEX, KeyDeployment, secrets_of
from kvcustody.registry.schema import data_keys, namespaces
from kvcustody.sealing import NamespaceKeys, RootKeys, ServiceKey
from kvcustody.sealing.providers import LocalKeyProvider, WrappedKeyError, create_key_file
from kvcustody.sealing.rewrap import Rewrapped, count_pending, rewrap


@pytest.fixture
def new_key(tmp_path: Path) -> Path:
    path = tmp_path / "new.key"
    create_key_file(path)
    return path


def both(deployment: KeyDeployment, new_key: Path) -> RootKeys:
    """What custody.yaml says during the change: the new key, and the old one as a previous one."""
    return RootKeys(LocalKeyProvider(new_key), [LocalKeyProvider(deployment.key_file)])


def only(key_file: Path) -> RootKeys:
    return RootKeys(LocalKeyProvider(key_file))


def use(deployment: KeyDeployment, roots: RootKeys | None = None) -> list[bytes]:
    """All keys, as a process that has just started gets them."""
    keyring = deployment.keyring(roots=roots)
    found: list[NamespaceKeys] = [keyring.namespace_keys(who) for who in (ACME, GLOBEX)]
    service = [keyring.service_key(purpose) for purpose in ServiceKey]
    return [*(secret for keys in found for secret in secrets_of(keys)), *service]


def test_after_a_rewrap_the_new_root_key_gives_the_same_keys_and_the_old_one_none(
    deployment: KeyDeployment, new_key: Path
) -> None:
    keys = use(deployment)
    roots = both(deployment, new_key)
    # Two namespaces with a naming and a data key each, and the service keys.
    assert count_pending(deployment.registry(), roots) == 4 + len(ServiceKey)
    seen: list[int] = []
    done = rewrap(deployment.registry(), roots, seen.append)
    assert done == Rewrapped(4 + len(ServiceKey), 0)
    assert seen[-1] == done.keys
    assert count_pending(deployment.registry(), roots) == 0
    assert use(deployment, only(new_key)) == keys
    with pytest.raises(WrappedKeyError):
        use(deployment)


def test_while_both_root_keys_are_listed_everything_works_before_during_and_after(
    deployment: KeyDeployment, new_key: Path
) -> None:
    keys = use(deployment)
    assert use(deployment, both(deployment, new_key)) == keys
    rewrap(deployment.registry(), both(deployment, new_key))
    assert use(deployment, both(deployment, new_key)) == keys


def test_a_rewrap_that_was_cut_short_goes_on_where_it_was(
    deployment: KeyDeployment, new_key: Path
) -> None:
    keys = use(deployment)

    class CutShortError(Exception):
        pass

    def cut_short(_done: int) -> None:
        raise CutShortError

    with pytest.raises(CutShortError):
        rewrap(deployment.registry(), both(deployment, new_key), cut_short)
    left = count_pending(deployment.registry(), both(deployment, new_key))
    assert 0 < left < 4 + len(ServiceKey)
    assert use(deployment, both(deployment, new_key)) == keys
    assert rewrap(deployment.registry(), both(deployment, new_key)) == Rewrapped(left, 0)
    assert use(deployment, only(new_key)) == keys


def test_keys_that_an_engine_wraps_with_the_old_root_key_meanwhile_are_not_left_behind(
    deployment: KeyDeployment, new_key: Path
) -> None:
    engine = deployment.keyring()
    engine.namespace_keys(ACME)
    late = [GLOBEX]

    def use_more(_done: int) -> None:
        if late:
            engine.namespace_keys(late.pop())

    done = rewrap(deployment.registry(), both(deployment, new_key), use_more)
    assert done.failed == 0
    assert count_pending(deployment.registry(), only(new_key)) == 0


def test_a_second_rewrap_has_nothing_to_do(deployment: KeyDeployment, new_key: Path) -> None:
    use(deployment)
    rewrap(deployment.registry(), both(deployment, new_key))
    assert rewrap(deployment.registry(), both(deployment, new_key)) == Rewrapped(0, 0)


def test_keys_of_a_root_key_that_is_not_listed_are_left_as_they_are(
    deployment: KeyDeployment, new_key: Path
) -> None:
    keys = use(deployment)
    assert rewrap(deployment.registry(), only(new_key)) == Rewrapped(0, 4 + len(ServiceKey))
    assert use(deployment) == keys


def test_a_key_that_is_destroyed_meanwhile_stays_destroyed(
    deployment: KeyDeployment, new_key: Path
) -> None:
    keys = deployment.keyring().namespace_keys(ACME)
    table = deployment.table()
    roots = both(deployment, new_key)
    unwrap, identifiers = roots.unwrap, [keys.identifier.hex()]

    def unwrap_and_destroy(*arguments: object) -> bytearray:
        secret = unwrap(*arguments)  # type: ignore[arg-type]  # passed through
        if identifiers:
            table.destroy([identifiers.pop()], "command")
        return secret

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roots, "unwrap", unwrap_and_destroy)
        rewrap(deployment.registry(), roots)
    stored = table.read(keys.identifier)
    assert stored is not None
    assert (stored.naming_key, stored.current) == (None, None)


def test_keys_from_before_root_keys_were_recorded_are_wrapped_anew_too(
    deployment: KeyDeployment, new_key: Path
) -> None:
    keys = use(deployment)
    with deployment.registry().write() as connection:
        for table in (namespaces, data_keys):
            connection.execute(update(table).values(root=None))
    assert use(deployment, both(deployment, new_key)) == keys
    assert rewrap(deployment.registry(), both(deployment, new_key)).failed == 0
    assert use(deployment, only(new_key)) == keys


@pytest.mark.unit
def test_the_old_wrappings_are_gone_from_the_registrys_files(
    in_files: KeyDeployment, new_key: Path
) -> None:
    identifier = in_files.keyring().namespace_keys(ACME).identifier
    before = in_files.table().read(identifier)
    assert before is not None
    assert before.naming_key is not None
    rewrap(in_files.registry(), both(in_files, new_key))
    after = in_files.table().read(identifier)
    assert after is not None
    assert after.naming_key is not None
    files = list(in_files.registry_file.parent.glob("registry.sqlite*"))
    content = b"".join(path.read_bytes() for path in files)
    assert after.naming_key.ciphertext in content
    assert before.naming_key.ciphertext not in content
