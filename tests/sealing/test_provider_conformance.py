"""What every key provider promises, whatever holds its root key."""

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from kvcustody.config import RootSettings
from kvcustody.errors import ConfigurationError, CustodyError
from kvcustody.sealing.providers import (
    KeyContext,
    KeyProvider,
    WrappedKeyError,
    create_root,
    key_file,
    open_provider,
)
from moto_server import REGION
from softhsm import MODULE, PIN

PASSPHRASE = b"correct horse battery staple"
SECRET = bytes(range(100, 132))
CONTEXT = KeyContext("data key", "one")
OTHER_CONTEXTS = [
    KeyContext("data key", "two"),
    KeyContext("naming key", "one"),
]
# What KMS and an HSM say of another key's work differs; see the tests of each.
WRONG_ROOT = (WrappedKeyError, ConfigurationError)


@dataclass
class Roots:
    """Makes root keys of one kind, and opens and closes their providers.

    Args:
        make: makes a new root key; its settings.
        secrets: what may be shown nowhere.

    """

    make: Callable[[], RootSettings]
    secrets: list[str] = field(default_factory=list)
    opened: list[KeyProvider] = field(default_factory=list)

    def open(self, root: RootSettings) -> KeyProvider:
        self.opened.append(open_provider(root))
        return self.opened[-1]


def _settings(**fields: Any) -> RootSettings:
    settings: RootSettings = TypeAdapter(RootSettings).validate_python(fields)
    return settings


def _private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def _local(request: pytest.FixtureRequest) -> Roots:
    folder: Path = request.getfixturevalue("tmp_path")

    def make() -> RootSettings:
        root = _settings(provider="local", path=folder / secrets.token_hex(4))
        create_root(root)
        return root

    return Roots(make)


def _local_with_passphrase(request: pytest.FixtureRequest) -> Roots:
    folder: Path = request.getfixturevalue("tmp_path")
    patch = request.getfixturevalue("monkeypatch")
    patch.setattr(key_file, "_COST", (16, 8, 1))
    patch.setattr(key_file, "_LEAST_N", 16)
    passphrase = _private(folder / "passphrase", PASSPHRASE)

    def make() -> RootSettings:
        path = folder / secrets.token_hex(4)
        root = _settings(provider="local", path=path, passphrase_file=passphrase)
        create_root(root)
        return root

    return Roots(make, [PASSPHRASE.decode()])


def _aws_kms(request: pytest.FixtureRequest) -> Roots:
    aws = request.getfixturevalue("aws")
    return Roots(
        lambda: _settings(
            provider="aws-kms", key_id=aws.create_key(), region=REGION, endpoint=aws.url
        )
    )


def _pkcs11(request: pytest.FixtureRequest) -> Roots:
    hsm = request.getfixturevalue("softhsm")
    token, pin_file = request.getfixturevalue("token_label"), hsm.pin_file()

    def make() -> RootSettings:
        root = _settings(
            provider="pkcs11",
            module=MODULE,
            token=token,
            label=f"root-{secrets.token_hex(4)}",
            pin_file=pin_file,
        )
        create_root(root)
        return root

    return Roots(make, [PIN])


@pytest.fixture(
    params=[
        pytest.param(_local, id="local", marks=pytest.mark.unit),
        pytest.param(_local_with_passphrase, id="local-passphrase", marks=pytest.mark.unit),
        pytest.param(_aws_kms, id="aws-kms", marks=pytest.mark.service),
        pytest.param(_pkcs11, id="pkcs11", marks=pytest.mark.service),
    ]
)
def roots(request: pytest.FixtureRequest) -> Iterator[Roots]:
    roots: Roots = request.param(request)
    yield roots
    for provider in roots.opened:
        provider.close()


def test_a_wrapped_key_unwraps_also_after_a_restart(roots: Roots) -> None:
    root = roots.make()
    wrapped = roots.open(root).wrap(bytearray(SECRET), CONTEXT)
    unwrapped = roots.open(root).unwrap(wrapped, CONTEXT)
    assert unwrapped == SECRET
    assert isinstance(unwrapped, bytearray), "its user wipes it"
    assert SECRET not in wrapped


def test_a_key_wraps_differently_each_time(roots: Roots) -> None:
    provider = roots.open(roots.make())
    assert provider.wrap(SECRET, CONTEXT) != provider.wrap(SECRET, CONTEXT)


def test_a_wrapped_key_unwraps_in_no_other_context(roots: Roots) -> None:
    provider = roots.open(roots.make())
    wrapped = provider.wrap(SECRET, CONTEXT)
    for context in OTHER_CONTEXTS:
        with pytest.raises(WrappedKeyError):
            provider.unwrap(wrapped, context)


def test_a_wrapped_key_unwraps_under_no_other_root_key(roots: Roots) -> None:
    wrapped = roots.open(roots.make()).wrap(SECRET, CONTEXT)
    with pytest.raises(WRONG_ROOT):
        roots.open(roots.make()).unwrap(wrapped, CONTEXT)


def test_no_altered_key_unwraps(roots: Roots) -> None:
    provider = roots.open(roots.make())
    wrapped = provider.wrap(SECRET, CONTEXT)
    altered = [wrapped[:-1], wrapped + b"\0", wrapped[: len(wrapped) // 2], b"", b"\0", b"x" * 200]
    for offset in range(0, len(wrapped), 5):
        flipped = bytearray(wrapped)
        flipped[offset] ^= 1
        altered.append(bytes(flipped))
    for foreign in altered:
        # moto says "access denied" where the name of the key, at the beginning, is altered.
        with pytest.raises(WRONG_ROOT):
            provider.unwrap(foreign, CONTEXT)
    assert provider.unwrap(wrapped, CONTEXT) == SECRET


def test_a_root_key_has_its_own_name_that_stays(roots: Roots) -> None:
    one, other = roots.make(), roots.make()
    first, again, second = (roots.open(root).root for root in (one, one, other))
    assert first == again
    assert first != second
    for root in (first, second):
        assert root.startswith(f"{one.provider}:")
        assert root.isprintable()
        assert len(root) <= 128


def test_nothing_secret_is_shown(roots: Roots, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    root = roots.make()
    provider = roots.open(root)
    shown = [repr(provider), str(provider), repr(root), provider.root]
    wrapped = provider.wrap(SECRET, CONTEXT)
    assert provider.unwrap(wrapped, CONTEXT) == SECRET
    with pytest.raises(WrappedKeyError) as caught:
        provider.unwrap(wrapped, OTHER_CONTEXTS[0])
    shown += [str(caught.value), repr(caught.value), repr(caught.value.__context__), caplog.text]
    for secret in (SECRET.decode("latin-1"), SECRET.hex(), "ZGVmZ2hpamts", *roots.secrets):
        assert not [text for text in shown if secret in text]
    assert "\n" not in str(caught.value)


def test_several_threads_share_a_provider(roots: Roots) -> None:
    provider = roots.open(roots.make())
    done: list[int] = []

    def work(number: int) -> None:
        context, secret = KeyContext("data key", str(number)), bytes([number]) * 32
        for _ in range(5):
            assert provider.unwrap(provider.wrap(secret, context), context) == secret
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == [0, 1, 2, 3]


def test_a_closed_provider_says_so(roots: Roots) -> None:
    provider = roots.open(roots.make())
    wrapped = provider.wrap(SECRET, CONTEXT)
    provider.close()
    provider.close()
    for use in (lambda: provider.wrap(SECRET, CONTEXT), lambda: provider.unwrap(wrapped, CONTEXT)):
        with pytest.raises(CustodyError, match="closed; open it anew"):
            use()
