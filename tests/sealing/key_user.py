"""An engine's use of keys, as a program: many threads that use many new namespaces at once.

usage: key_user.py REGISTRY_URL KEY_FILE THREADS NAMESPACES
Waits for a line on standard input, then prints what keys each namespace has, as JSON.
"""

import hashlib
import json
import random
import sys
import threading
from collections import defaultdict
from pathlib import Path

from kvcustody.errors import UnavailableError
from kvcustody.namespace import Namespace, Scope
from kvcustody.registry import open_registry
from kvcustody.sealing import Keyring, KeyTable, NamespaceKeys, RootKeys
from kvcustody.sealing.providers import LocalKeyProvider


def main() -> None:
    """Use the namespaces and tell what came of it."""
    url, key_file, threads, namespaces = sys.argv[1:]
    roots = RootKeys(LocalKeyProvider(Path(key_file)))
    keyring = Keyring(KeyTable(open_registry(url), roots), roots)
    sys.stdin.readline()
    seen: dict[str, set[str]] = defaultdict(set)
    retries = 0

    def use(seed: int) -> None:
        nonlocal retries
        order = list(range(int(namespaces)))
        random.Random(seed).shuffle(order)  # noqa: S311 - only an order
        for number in order:
            namespace = Namespace(Scope("local", f"tenant-{number}"), "revision", "ab" * 32)
            while True:
                try:
                    keys = keyring.namespace_keys(namespace)
                except UnavailableError:
                    retries += 1  # the registry was busy; an engine would recompute this once
                else:
                    break
            seen[str(number)].add(digest(keys))

    workers = [threading.Thread(target=use, args=[seed]) for seed in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"retries": retries, "keys": {n: sorted(k) for n, k in seen.items()}}))  # noqa: T201 - its result


def digest(keys: NamespaceKeys) -> str:
    """What tells keys apart and nothing else of them."""
    key = keys.current
    assert key is not None
    proof = key.secret.digest(b"test")
    name = keys.name(b"test")
    assert proof is not None
    assert name is not None
    return hashlib.sha256(keys.identifier + key.key_id + proof + name).hexdigest()


if __name__ == "__main__":
    main()
