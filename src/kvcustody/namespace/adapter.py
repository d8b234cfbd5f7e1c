"""Adapter revisions: which content a LoRA adapter has, for the namespace of its blocks.

The engine knows an adapter by a number, loads its files when a request first needs them, drops them
when it needs the room, and reads them again from the same path. A number therefore stands for one
content only while the files stay as they were when we first saw it. The rules:

1. The first request with a number has the adapter's files fingerprinted.
2. Each later one has their identities compared (device, inode, size, mtime, ctime). A number whose
   files have changed is refused from then on: nobody knows what the engine still holds. Loading
   the adapter again gives it a new number, and with it custody.
3. So is a number that came with two names or paths, one whose files couldn't be identified at first
   sight, and one that the engine reloads in place (its files may change under a request).
4. Only local folders count: what a hub's name stands for is the hub's to change.

Files are touched by a worker, never by the caller, who waits a moment for the answer and no longer.

One window remains: files replaced between our look at them and the engine's load go unnoticed by
the requests that come before the next look. The first look follows the first request, and the
engine may have loaded the adapter earlier, when it was registered. So write an adapter's files
before you register it, and a new version to a new path.
"""

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from kvcustody.errors import ConfigurationError
from kvcustody.namespace.revision import Identities, file_identities, fingerprint_model
from kvcustody.workers import WorkerPool

# Time for a look at a few local files and for hashing a small adapter; the scheduler waits for it.
_PATIENCE_SECONDS = 0.1
_CLOSE_SECONDS = 1.0


class AdapterFailure(StrEnum):
    """Why the content of a request's adapter is not known, so that the request has no custody."""

    PENDING = "lora-pending"
    CHANGED = "lora-changed"
    UNREADABLE = "lora-unreadable"
    IN_PLACE = "lora-in-place"
    MEDIA = "lora-media"
    """The engine's cache of encoded media knows the adapter by its name only."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter as a request names it.

    Args:
        number: what the engine knows it by.
        name: its public name.
        path: where its files are.
        fused: whether its weights have the fused layout for experts, which reads them otherwise.

    """

    number: int
    name: str
    path: str
    fused: bool = False


@dataclass(slots=True)
class _Record:
    """What is known of an adapter's number; the worker writes it until it sets `idle`.

    Args:
        adapter: what the number stood for at first.

    """

    adapter: Adapter
    identities: Identities | None = None
    revision: str | None = None
    # Whether the last look failed, which may pass; what is in `refused` stays.
    unreadable: bool = False
    refused: AdapterFailure | None = None
    idle: threading.Event = field(default_factory=threading.Event)

    def answer(self) -> str | AdapterFailure:
        """What the last look found."""
        if self.refused is not None:
            return self.refused
        if self.unreadable or self.revision is None:
            return AdapterFailure.UNREADABLE
        return self.revision


class AdapterRevisions:
    """The content of each adapter that requests use.

    Args:
        cache: JSON file that remembers digests of unchanged files over restarts.
        patience: seconds that a caller waits for an answer.

    """

    def __init__(self, cache: Path | None, patience: float = _PATIENCE_SECONDS) -> None:
        self._cache = cache
        self._patience = patience
        self._worker = WorkerPool("kvcustody-adapters", 1)
        self._records: dict[int, _Record] = {}

    def find(self, adapter: Adapter, *, in_place: bool = False) -> str | AdapterFailure:
        """The revision of an adapter, a hex digest, or why it isn't known; never raises.

        Args:
            adapter: the adapter of a request that is about to be scheduled.
            in_place: whether the request has the engine load the adapter again.

        """
        record = self._records.get(adapter.number)
        if record is None:
            record = self._records[adapter.number] = _Record(adapter)
            record.idle.set()
        if in_place:
            record.refused = AdapterFailure.IN_PLACE
        elif record.adapter != adapter:
            record.refused = record.refused or AdapterFailure.CHANGED
        if record.refused is not None:
            return record.refused
        # Who comes while an answer is due has waited enough: a file server hangs for all of them.
        if not record.idle.is_set():
            return AdapterFailure.PENDING
        record.idle.clear()
        self._worker.submit(partial(self._look, record))
        if not record.idle.wait(self._patience):
            return AdapterFailure.PENDING
        return record.answer()

    def close(self) -> bool:
        """Stop the worker; false when it hangs on a file."""
        return self._worker.close(_CLOSE_SECONDS)

    def _look(self, record: _Record) -> None:
        first = record.revision is None
        record.unreadable = True
        try:
            with suppress(ConfigurationError, OSError, ValueError):
                self._look_first(record) if first else _look_again(record)
                record.unreadable = False
        finally:
            if first and record.unreadable:
                record.refused = AdapterFailure.UNREADABLE
            record.idle.set()

    def _look_first(self, record: _Record) -> None:
        folder = _folder(record.adapter)
        record.identities = file_identities(folder)
        # The interpreter waits for other threads than the worker's, even for one that hangs.
        found = fingerprint_model(folder, self._cache, threads=1)
        if file_identities(folder) != record.identities:
            raise ConfigurationError("changes while it is read", folder)
        content = f"{found.revision} {record.adapter.fused}"
        record.revision = hashlib.sha256(content.encode()).hexdigest()


def _look_again(record: _Record) -> None:
    if file_identities(_folder(record.adapter)) != record.identities:
        record.refused = AdapterFailure.CHANGED


def _folder(adapter: Adapter) -> Path:
    """Where the engine reads the files (vllm/lora/utils.py, get_adapter_absolute_path)."""
    folder = Path(adapter.path).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigurationError("is no local folder", folder)
    return folder
