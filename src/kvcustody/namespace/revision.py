"""Model revision: a fingerprint of the files that decide what a model computes.

Retrained weights at the same path must not find the old weights' cache, so the fingerprint covers
contents. Digests of unchanged files are remembered, so a restart doesn't read them again.
"""

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvcustody.errors import ConfigurationError

# Notes and pictures beside a model change nothing that it computes.
_IRRELEVANT_SUFFIXES = frozenset({".md", ".txt~", ".png", ".jpg", ".jpeg", ".gif", ".lock"})
_READ_BYTES = 1 << 20
_HASHING_THREADS = 4

Progress = Callable[[int, int], None]
"""Called with bytes hashed so far and bytes in all."""


@dataclass(frozen=True)
class ModelRevision:
    """A model's revision and what it is made of.

    Args:
        revision: hex digest over all inputs.
        inputs: hex digest of each file, by its path relative to the model's folder.

    """

    revision: str
    inputs: dict[str, str]


def fingerprint_model(
    folder: Path, cache: Path | None = None, progress: Progress | None = None
) -> ModelRevision:
    """Fingerprint a model's folder.

    Args:
        folder: holds configuration, weights and tokenizer.
        cache: JSON file that remembers digests of unchanged files; `None` reads everything.
        progress: told how far the hashing is.

    Raises:
        ConfigurationError: the folder can't be read or holds no files.

    """
    try:
        paths = sorted(path for path in folder.rglob("*") if _counts(path, folder))
        stats = {path: path.stat() for path in paths}
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", folder) from None
    if not paths:
        raise ConfigurationError("holds no model files", folder)
    known = _read_cache(cache)
    identities = {path: _identity(path, stats[path]) for path in paths}
    total = sum(stat.st_size for stat in stats.values())
    digests: dict[str, str] = {}
    done = 0
    with ThreadPoolExecutor(_HASHING_THREADS, "kvcustody-fingerprint") as pool:
        hashed = pool.map(lambda path: known.get(identities[path]) or _hash_file(path), paths)
        for path, digest in zip(paths, hashed, strict=True):
            digests[identities[path]] = digest
            done += stats[path].st_size
            if progress is not None:
                progress(done, total)
    _write_cache(cache, known | digests)
    inputs = {str(path.relative_to(folder)): digests[identities[path]] for path in paths}
    encoded = json.dumps(inputs, sort_keys=True).encode()
    return ModelRevision(hashlib.sha256(encoded).hexdigest(), inputs)


def _counts(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() not in _IRRELEVANT_SUFFIXES and path.is_file()


def _identity(path: Path, stat: os.stat_result) -> str:
    # ctime can't be set by hand, so weights replaced under the same name, size and mtime show.
    numbers = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return ":".join([str(path.absolute()), *map(str, numbers)])


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None
    return digest.hexdigest()


def _read_cache(cache: Path | None) -> dict[str, str]:
    try:
        known = json.loads(cache.read_text()) if cache is not None else {}
    except (OSError, ValueError):
        return {}  # it only saves time
    return known if isinstance(known, dict) else {}


def _write_cache(cache: Path | None, digests: dict[str, str]) -> None:
    if cache is None:
        return
    temporary = cache.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(digests))
        temporary.replace(cache)
    except OSError:
        temporary.unlink(missing_ok=True)  # the next start hashes again
