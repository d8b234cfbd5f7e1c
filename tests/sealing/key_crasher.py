"""Kill rotate, destroy and rewrap at every one of their database statements, as a program.

usage: key_crasher.py FOLDER rotate|destroy|rewrap
Each round begins with the same registry; a child of this process is killed (SIGKILL) just before
or after its k-th statement, then the registry is looked at, and the operation run again to its end.
Prints what was found, as JSON.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from kvcustody.namespace import Namespace, Scope
from kvcustody.registry import Registry, open_registry
from kvcustody.sealing import Keyring, KeyTable, OpenFailure, RootKeys, ServiceKey
from kvcustody.sealing.inventory import NamespaceRecord, Selection, list_namespaces
from kvcustody.sealing.providers import LocalKeyProvider, create_key_file
from kvcustody.sealing.rewrap import count_pending, rewrap

NAMESPACES = [
    Namespace(Scope("local", "acme", workload), "revision-1", "ab" * 32) for workload in "abc"
]
BYSTANDER = replace(NAMESPACES[0], scope=Scope("local", "globex"))


class Site:
    """A registry with its root keys.

    Args:
        folder: where it lies.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def registry(self) -> Registry:
        """The registry."""
        return open_registry(f"sqlite:///{self.folder / 'registry.sqlite'}")

    def roots(self) -> RootKeys:
        """The new root key, with the old one as a previous one."""
        new, old = (LocalKeyProvider(self.folder / name) for name in ("new.key", "old.key"))
        return RootKeys(new, [old])

    def prepare(self) -> None:
        """Make a registry in use, wrapped by the old root key."""
        for name in ("old.key", "new.key"):
            create_key_file(self.folder / name)
        old = RootKeys(LocalKeyProvider(self.folder / "old.key"))
        with closing(self.registry()) as registry:
            keyring = Keyring(KeyTable(registry, old), old)
            for namespace in (*NAMESPACES, BYSTANDER):
                keyring.namespace_keys(namespace)
            for purpose in ServiceKey:
                keyring.service_key(purpose)

    def namespaces(self) -> list[NamespaceRecord]:
        """What the registry holds."""
        with closing(self.registry()) as registry:
            return list_namespaces(registry, Selection())

    def wrapped(self) -> set[bytes]:
        """Wrapped keys of the tenant that the operations are about."""
        with closing(self.registry()) as registry:
            table = KeyTable(registry, self.roots())
            found = [
                table.read(bytes.fromhex(record.identifier))
                for record in self.namespaces()
                if record.tenant == "acme"
            ]
        keys = [
            key
            for stored in found
            if stored is not None
            for key in (stored.naming_key, *(epoch.wrapped for epoch in stored.epochs))
        ]
        return {key.ciphertext for key in keys if key is not None}


def rotate(site: Site) -> None:
    """What `kvcustody keys rotate --tenant acme` does."""
    with closing(site.registry()) as registry:
        table = KeyTable(registry, site.roots())
        for record in list_namespaces(registry, Selection(tenant="acme")):
            stored = table.read(bytes.fromhex(record.identifier))
            assert stored is not None
            table.add_epoch(stored, "command")


def destroy(site: Site) -> None:
    """What `kvcustody keys destroy --tenant acme --execute` does."""
    with closing(site.registry()) as registry:
        found = list_namespaces(registry, Selection(tenant="acme"))
        KeyTable(registry, site.roots()).destroy([each.identifier for each in found], "command")


def rewrap_all(site: Site) -> None:
    """What `kvcustody keys rewrap` does."""
    with closing(site.registry()) as registry:
        rewrap(registry, site.roots())


def check_usable(site: Site) -> None:
    """All living keys unwrap; a namespace has one current epoch, or is wholly destroyed."""
    roots = site.roots()
    with closing(site.registry()) as registry:
        table = KeyTable(registry, roots)
        for purpose in ServiceKey:
            table.service_key(purpose)
        for record in list_namespaces(registry, Selection()):
            numbers = [epoch.number for epoch in record.epochs]
            assert numbers == list(range(1, len(numbers) + 1)), "no epoch is missing"
            living = [epoch for epoch in record.epochs if epoch.destroyed is None]
            assert len(living) in {0, len(numbers)}, "half destroyed"
            assert (record.destroyed is None) == bool(living), "half destroyed"
            current = [epoch for epoch in living if epoch.retired is None]
            assert len(current) == bool(living), "one current epoch"
            for epoch in living:
                found = table.data_key(
                    bytes.fromhex(record.identifier), bytes.fromhex(epoch.key_id)
                )
                assert not isinstance(found, OpenFailure)


def after_rotate(site: Site, _before: set[bytes]) -> None:
    """Each namespace has a newer epoch."""
    counts = {record.tenant: len(record.epochs) for record in site.namespaces()}
    assert counts["acme"] >= 2
    assert counts["globex"] == 1


def after_destroy(site: Site, before: set[bytes]) -> None:
    """The tenant has no key, also not in the database's files, and the other tenant has its own."""
    for record in site.namespaces():
        assert record.living_keys == (record.tenant == "globex")
    content = b"".join(path.read_bytes() for path in site.folder.glob("registry.sqlite*"))
    assert not any(key in content for key in before)


def after_rewrap(site: Site, _before: set[bytes]) -> None:
    """The new root key alone is enough."""
    with closing(site.registry()) as registry:
        new = RootKeys(LocalKeyProvider(site.folder / "new.key"))
        assert count_pending(registry, new) == 0
        table = KeyTable(registry, new)
        for purpose in ServiceKey:
            table.service_key(purpose)


OPERATIONS: dict[str, tuple[Callable[[Site], None], Callable[[Site, set[bytes]], None]]] = {
    "rotate": (rotate, after_rotate),
    "destroy": (destroy, after_destroy),
    "rewrap": (rewrap_all, after_rewrap),
}


def killed(site: Site, operation: Callable[[Site], None], at: int) -> bool:
    """Run an operation in a child that kills itself at its k-th statement; whether it got there."""
    child = os.fork()
    if child == 0:
        left = at

        def count(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, moment, count)
        operation(site)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def main() -> None:
    """Try all points."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    operation, check_finished = OPERATIONS[name]
    pristine = folder / "pristine"
    pristine.mkdir()
    Site(pristine).prepare()
    before = Site(pristine).wrapped()
    assert before
    at = 1
    while True:
        site = Site(Path(shutil.copytree(pristine, folder / str(at))))
        was_killed = killed(site, operation, at)
        check_usable(site)
        operation(site)
        check_usable(site)
        check_finished(site, before)
        shutil.rmtree(site.folder)
        if not was_killed:
            break
        at += 1
    print(json.dumps({"points": at - 1}))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
