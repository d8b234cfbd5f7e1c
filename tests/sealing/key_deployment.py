"""What tests of keys share: a deployment's registry and root key, which outlive its processes."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvcustody.namespace.namespace import Namespace, Scope
from kvcustody.registry import Registry, open_registry
from kvcustody.sealing import (
    DataKey,
    KeyChange,
    Keyring,
    KeyTable,
    NamespaceKeys,
    RootKeys,
)
from kvcustody.sealing.providers import LocalKeyProvider, create_key_file

ACME = Namespace(Scope("local", "acme"), "revision-1", "ab" * 32)
GLOBEX = replace(ACME, scope=Scope("local", "globex"))
NOW = 1_700_000_000.0


class Clock:
    """A clock that tests turn.

    Args:
        now: seconds.

    """

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class KeyDeployment:
    """A registry and a key file.

    Args:
        folder: where they lie.
        url: where the registry is instead.

    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.key_file = folder / "root.key"
        self.registry_file = folder / "registry.sqlite"
        self._url = url or f"sqlite:///{self.registry_file}"
        self.clock = Clock()
        self.changes: list[KeyChange] = []
        create_key_file(self.key_file)
        self._open: list[Registry] = []

    def registry(self) -> Registry:
        """The registry, as a process opens it."""
        registry = open_registry(self._url)
        self._open.append(registry)
        return registry

    def roots(self) -> RootKeys:
        """The root key, as a process opens it."""
        return RootKeys(LocalKeyProvider(self.key_file))

    def table(self, roots: RootKeys | None = None) -> KeyTable:
        """The wrapped keys, as a process that has just started sees them."""
        table = KeyTable(self.registry(), roots or self.roots(), clock=self.clock)
        table.on_change = self.changes.append
        return table

    def keyring(
        self,
        *,
        roots: RootKeys | None = None,
        rotate_every: float = float("inf"),
        cached_for: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Keyring:
        """The key ring of a process that has just started."""
        roots = roots or self.roots()
        return Keyring(
            self.table(roots),
            roots,
            rotate_every=rotate_every,
            cached_for=cached_for,
            clock=self.clock,
            monotonic=monotonic,
        )

    def close(self) -> None:
        """Close what `registry` opened."""
        for registry in self._open:
            registry.close()


@pytest.fixture
def deployment(tmp_path: Path, registry_url: str) -> Iterator[KeyDeployment]:
    """A deployment on each kind of database."""
    deployment = KeyDeployment(tmp_path, registry_url)
    yield deployment
    deployment.close()


@pytest.fixture
def in_files(tmp_path: Path) -> Iterator[KeyDeployment]:
    """A deployment whose registry is files that a test can read."""
    deployment = KeyDeployment(tmp_path)
    yield deployment
    deployment.close()


def current(keys: NamespaceKeys) -> DataKey:
    """The data key of the newest epoch."""
    assert keys.current is not None
    return keys.current


def secrets_of(keys: NamespaceKeys) -> list[bytes]:
    """The naming key and the current data key, which nothing but a test gets to see."""
    return [bytes(key._material) for key in (keys._naming_key, current(keys).secret)]
