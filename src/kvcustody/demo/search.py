"""Search tier files for plaintext: the host tier's KV bytes, and words that must not be there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_WORD_BYTES = 8
# A run of 32 equal bytes holds three whole words at multiples of eight, wherever it starts.
_WORDS_IN_RUN = 3


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
        words: texts that must not be found, such as tenant names.

    """
    host_words = np.unique(np.frombuffer(host_memory[: len(host_memory) // 8 * 8], np.uint64))
    findings: list[str] = []
    total = count = 0
    for path in sorted(path for path in tier.rglob("*") if path.is_file()):
        content = path.read_bytes()
        count += 1
        total += len(content)
        name = str(path.relative_to(tier))
        findings += [f"{name}: '{word}'" for word in words if word.encode() in content]
        findings += [f"file name {name}: '{word}'" for word in words if word in name]
        if _shares_run(content, host_words):
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


def _shares_run(content: bytes, host_words: "np.ndarray[tuple[int], np.dtype[np.uint64]]") -> bool:
    for shift in range(_WORD_BYTES):
        words = np.frombuffer(
            content[shift : shift + (len(content) - shift) // _WORD_BYTES * _WORD_BYTES], np.uint64
        )
        if len(words) < _WORDS_IN_RUN or not len(host_words):
            continue
        places = np.minimum(np.searchsorted(host_words, words), len(host_words) - 1)
        found = host_words[places] == words
        if np.any(found[:-2] & found[1:-1] & found[2:]):
            return True
    return False
