"""Model revision: a fingerprint of the files that decide what a model computes.

Retrained weights at the same path must not find the old weights' cache, so the fingerprint covers
contents. Digests of unchanged files are remembered, so a restart doesn't read them again; a file
that changes while it is read has no digest, and one that has only just changed is not remembered.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvcustody.errors import ConfigurationError

# Notes and pictures beside a model change nothing that it computes.
_IRRELEVANT_SUFFIXES = frozenset({".md", ".txt~", ".png", ".jpg", ".jpeg", ".gif", ".lock"})
_PART_OF_SEVERAL = re.compile(r"-\d{5}-of-\d{5}(?=\.[^.]+$)")
_READ_BYTES = 1 << 20
_HASHING_THREADS = 4
# File systems keep time in ticks, of up to two seconds: a second change in one tick doesn't show.
_TICK_NANOSECONDS = 2_000_000_000

Progress = Callable[[int, int], None]
"""Called with bytes hashed so far and bytes in all."""

Identities = dict[str, str]
"""What the file system says of each file that counts, by its path relative to the model's."""


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
    path: Path,
    cache: Path | None = None,
    progress: Progress | None = None,
    *,
    threads: int = _HASHING_THREADS,
) -> ModelRevision:
    """Fingerprint a model.

    Args:
        path: a folder with configuration, weights and tokenizer, or a single file (GGUF).
        cache: JSON file that remembers digests of unchanged files; `None` reads everything.
        progress: told how far the hashing is.
        threads: how many hash; with one it is the caller's own.

    Raises:
        ConfigurationError: the model can't be read, holds no files, or changes meanwhile.

    """
    files = _find(path)
    stats = _stat(files.values(), path)
    meter = _Meter(sum(stat.st_size for stat in stats.values()), progress)
    known = _read_cache(cache)

    def digest(file: Path) -> str:
        remembered = known.get(str(file.absolute()))
        if remembered is not None and remembered[0] == _identity(stats[file]):
            meter.add(stats[file].st_size)
            return remembered[1]
        return _hash_file(file, _identity(stats[file]), meter)

    if threads == 1:
        digests = list(map(digest, files.values()))
    else:
        with ThreadPoolExecutor(threads, "kvcustody-fingerprint") as pool:
            digests = list(pool.map(digest, files.values()))
    inputs = dict(zip(files, digests, strict=True))
    settled = time.time_ns() - _TICK_NANOSECONDS
    for name, file in files.items():
        if stats[file].st_ctime_ns < settled:
            known[str(file.absolute())] = (_identity(stats[file]), inputs[name])
    _write_cache(cache, known)
    encoded = json.dumps(inputs, sort_keys=True).encode()
    return ModelRevision(hashlib.sha256(encoded).hexdigest(), inputs)


def file_identities(path: Path) -> Identities:
    """What the file system says of a model's files, without reading them.

    While this stays the same, so does the fingerprint: no change of contents leaves ctime as it
    was, unless it comes within a tick of the one before.

    Raises:
        ConfigurationError: the model can't be read or holds no files.

    """
    files = _find(path)
    stats = _stat(files.values(), path)
    return {name: _identity(stats[file]) for name, file in files.items()}


def _find(path: Path) -> dict[str, Path]:
    """The files that count, by name, in order."""
    try:
        found = {name: file for name, file in _walk(path) if _counts(name)}
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None
    if not found:
        raise ConfigurationError("holds no model files", path)
    return dict(sorted(found.items()))


def _walk(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        # The parts of one model have one name, up to their number.
        whole = _PART_OF_SEVERAL.sub("", path.name)
        for file in path.parent.iterdir():
            if _PART_OF_SEVERAL.sub("", file.name) == whole and file.is_file():
                yield file.name, file
        return
    seen: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(path, followlinks=True):
        stat = Path(folder).stat()
        if (stat.st_dev, stat.st_ino) in seen:
            subfolders.clear()  # a link that leads back
            continue
        seen.add((stat.st_dev, stat.st_ino))
        subfolders.sort()  # of two links to one folder, always the same gives the names
        for name in names:
            file = Path(folder, name)
            if file.is_file():
                yield file.relative_to(path).as_posix(), file


def _counts(name: str) -> bool:
    path = Path(name)
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.suffix.lower() not in _IRRELEVANT_SUFFIXES


def _stat(files: Iterable[Path], model: Path) -> dict[Path, os.stat_result]:
    try:
        return {file: file.stat() for file in files}
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", model) from None


def _identity(stat: os.stat_result) -> str:
    # ctime can't be set by hand, so weights replaced under the same name, size and mtime show.
    numbers = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return ":".join(map(str, numbers))


class _Meter:
    """Adds up what several threads have hashed.

    Args:
        total: bytes in all.
        progress: told of each step.

    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        # Guards `_done`, and keeps reports in order.
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Report `count` more bytes."""
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._done, self._total)


def _hash_file(path: Path, identity: str, meter: _Meter) -> str:
    """The digest of a file that is, before and after, the one that `identity` describes."""
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            opened = _identity(os.fstat(file.fileno()))
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
                meter.add(len(piece))
            read = _identity(os.fstat(file.fileno()))
        now = _identity(path.stat())
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None
    if {opened, read, now} != {identity}:
        raise ConfigurationError("changes while it is read; wait until it is complete", path)
    return digest.hexdigest()


def _read_cache(cache: Path | None) -> dict[str, tuple[str, str]]:
    """Identity and digest of each file, by its absolute path; damaged entries are left out."""
    try:
        known = json.loads(cache.read_bytes()) if cache is not None else {}
    except (OSError, ValueError):
        return {}  # it only saves time
    if not isinstance(known, dict):
        return {}
    return {
        path: (entry[0], entry[1])
        for path, entry in known.items()
        if isinstance(entry, list) and len(entry) == len(("identity", "digest"))
    }


def _write_cache(cache: Path | None, digests: dict[str, tuple[str, str]]) -> None:
    if cache is None:
        return
    temporary = cache.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(digests), encoding="ascii")
        temporary.replace(cache)
    except OSError:
        temporary.unlink(missing_ok=True)  # the next start hashes again
