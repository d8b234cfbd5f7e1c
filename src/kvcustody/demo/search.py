"""Search tier files for plaintext: the host tier's KV bytes, and words that must not be there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvcustody.sealing.format import HEADER_BYTES

_WORD_BYTES = 8
# A run of 32 equal bytes holds three whole words at multiples of eight, wherever it starts.
_WORDS_IN_RUN = 3
# Random bytes spell any four letters once in 4 GiB, so with each twentieth 200 MiB.
_SURE_BYTES = 8
_TABLE_BITS = 28  # about ten times the words of a demo's host memory
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads neighbours

_Words = np.ndarray[tuple[int], np.dtype[np.uint64]]
_Found = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True)
class SearchResult:
    """What was searched and found.

    Args:
        files: how many files.
        searched_bytes: their bytes in all.
        host_bytes: bytes of host memory that they were compared with.
        findings: one line for each finding.

    """

    files: int
    searched_bytes: int
    host_bytes: int
    findings: tuple[str, ...]


def search_plaintext(tier: Path, host_memory: bytes, words: Sequence[str]) -> SearchResult:
    """Look for 32-byte runs of host memory, and for words, in a tier's files and file names.

    Args:
        tier: the tier's folder.
        host_memory: the host tier's bytes.
        words: texts that must not be found, such as tenant names; those of less than eight bytes
            are looked for in headers and file names.

    """
    words_of_host = _HostWords(host_memory)
    findings: list[str] = []
    total = count = 0
    for path in sorted(path for path in tier.rglob("*") if path.is_file()):
        content = path.read_bytes()
        count += 1
        total += len(content)
        name = str(path.relative_to(tier))
        findings += [f"{name}: '{word}'" for word in words if _holds(content, word.encode())]
        findings += [f"file name {name}: '{word}'" for word in words if word in name]
        if words_of_host.share_run(content):
            findings.append(f"{name}: a 32-byte run of host memory")
    return SearchResult(count, total, len(host_memory), tuple(findings))


def read_host_memory(processes: Iterable[int]) -> bytes:
    """The host tier's bytes, from the engine that has it open (its name is dropped by then).

    Args:
        processes: process ids to look at.

    """
    for process in processes:
        for descriptor in _descriptors(process):
            try:
                if "vllm_offload_" in str(descriptor.readlink()):
                    return descriptor.read_bytes()
            except OSError:
                continue  # closed meanwhile, or not ours to read
    return b""


def _descriptors(process: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return []


def _holds(content: bytes, word: bytes) -> bool:
    """Whether a word is in content; one so short that chance writes it, in the header only."""
    return word in (content if len(word) >= _SURE_BYTES else content[:HEADER_BYTES])


class _HostWords:
    """The eight-byte words of host memory, at multiples of eight."""

    def __init__(self, memory: bytes) -> None:
        words = np.frombuffer(memory, np.uint64, len(memory) // _WORD_BYTES)
        # Memory that was never written is zero; a run of zeros betrays nothing.
        self._words = np.unique(words[words != 0])
        # Most words are in no file: a table by hash says so at a tenth of a search's cost.
        self._table = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._table[_slots(self._words)] = True

    def share_run(self, content: bytes) -> bool:
        """Whether content and host memory share a run of 32 bytes, at any alignment in content."""
        return any(self._shares_run(content, shift) for shift in range(_WORD_BYTES))

    def _shares_run(self, content: bytes, shift: int) -> bool:
        count = (len(content) - shift) // _WORD_BYTES
        if count < _WORDS_IN_RUN or not len(self._words):
            return False
        words = np.frombuffer(content, np.uint64, count, shift)
        maybe = self._table[_slots(words)]
        starts = np.flatnonzero(maybe[:-2] & maybe[1:-1] & maybe[2:])
        return bool(
            np.any(
                self._contains(words[starts])
                & self._contains(words[starts + 1])
                & self._contains(words[starts + 2])
            )
        )

    def _contains(self, words: _Words) -> _Found:
        places = np.minimum(np.searchsorted(self._words, words), len(self._words) - 1)
        found: _Found = self._words[places] == words
        return found


def _slots(words: _Words) -> _Words:
    return (words * _HASH_MULTIPLIER) >> np.uint64(64 - _TABLE_BITS)
