"""What sealing costs: seal-and-store and load-and-open beside the machine's own limits.

The contenders of a row move the same bytes by turns: a copy in memory, AES-256-GCM alone, a file
written and read without any of it, and what a tier does (`seal_into` and the filesystem store).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvcustody.bench.turns import Contender, Rate, Step, by_turns
from kvcustody.errors import ConfigurationError
from kvcustody.sealing import BlockIdentity, DataKey, open_into, seal_into, sealed_size
from kvcustody.stores import Address, FilesystemStore

MEBIBYTE = 2**20
_NONCE = bytes(12)
_TAG_BYTES = 16
_FOREVER = 2**62
_KEY = DataKey(b"k" * 16, b"\x01" * 32)
_LAYOUT = b"l" * 32
_NAMESPACE = b"n" * 16


@dataclass(frozen=True, slots=True)
class SealRow:
    """Rates for one block size and number of threads, in bytes per second.

    Args:
        block_bytes: size of a block's plaintext.
        threads: how many work at once.
        rates: by contender.
        openssl: what `openssl speed` says of AES-256-GCM; `None` without that program.

    """

    block_bytes: int
    threads: int
    rates: dict[str, Rate]
    openssl: float | None

    @property
    def ratios(self) -> dict[str, float]:
        """What a tier reaches of what the machine could do."""
        median = {name: rate.median for name, rate in self.rates.items()}
        both = 1 / (1 / median["read"] + 1 / median["decrypt"])
        return {
            "seal / encrypt": median["seal"] / median["encrypt"],
            "open / decrypt": median["open"] / median["decrypt"],
            "seal+write / write": median["seal+write"] / median["write"],
            "read+open / decrypt": median["read+open"] / median["decrypt"],
            "read+open / (read, then decrypt)": median["read+open"] / both,
        }


def bench_seal(
    folder: Path,
    *,
    sizes: tuple[int, ...],
    threads: tuple[int, ...],
    rounds: int,
    seconds: float,
    progress: Callable[[], None] = lambda: None,
) -> list[SealRow]:
    """Run the benchmark.

    Args:
        folder: where files go, on a tmpfs to leave disks out of it; removed afterwards.
        sizes: of blocks, in bytes.
        threads: numbers of threads.
        rounds: how often each contender has its turn.
        seconds: length of a turn.
        progress: told after each turn.

    Raises:
        ConfigurationError: the folder can't be used.

    """
    rows = []
    for size in sizes:
        for count in threads:
            try:
                with TemporaryDirectory(dir=folder, prefix="kvcustody-bench-") as place:
                    rates = by_turns(
                        contenders(Path(place), size),
                        step_bytes=size,
                        threads=count,
                        rounds=rounds,
                        seconds=seconds,
                        progress=progress,
                    )
            except OSError as error:
                raise ConfigurationError(f"can't be used: {error.strerror}", folder) from None
            rows.append(SealRow(size, count, rates, _openssl_speed(size, count)))
    return rows


def contenders(folder: Path, size: int) -> dict[str, Contender]:
    """The contenders for one block size, by name."""
    return _in_memory(size) | _in_files(FilesystemStore(folder / "tier"), size)


def _in_memory(size: int) -> dict[str, Contender]:
    def copy(_index: int) -> Step:
        source, target = _random(size), _random(size)

        def step() -> None:
            target[:] = source

        return step

    def encrypt(_index: int) -> Step:
        aead, source, target = AESGCM(bytes(32)), _random(size), _random(size + _TAG_BYTES)
        return lambda: aead.encrypt_into(_NONCE, source, None, target)

    def decrypt(_index: int) -> Step:
        aead, source, target = AESGCM(bytes(32)), _random(size + _TAG_BYTES), _random(size)
        aead.encrypt_into(_NONCE, target, None, source)
        return lambda: aead.decrypt_into(_NONCE, source, None, target)

    def seal(index: int) -> Step:
        source, sealed = _random(size), _random(sealed_size(size))
        return lambda: _seal(sealed, source, index)

    def open_(index: int) -> Step:
        source, sealed = _random(size), _random(sealed_size(size))
        _seal(sealed, source, index)
        return lambda: _open(source, sealed, index)

    return {
        "copy": copy,
        "encrypt": encrypt,
        "decrypt": decrypt,
        "seal": seal,
        "open": open_,
    }


def _in_files(store: FilesystemStore, size: int) -> dict[str, Contender]:
    def write(index: int) -> Step:
        source, address = _random(sealed_size(size)), _address(index + 1000)
        return lambda: store.put(address, source)

    def seal_and_write(index: int) -> Step:
        source, sealed, address = _random(size), _random(sealed_size(size)), _address(index)

        def step() -> None:
            _seal(sealed, source, index)
            store.put(address, sealed)

        return step

    def read(index: int) -> Step:
        target, address = _random(sealed_size(size)), _address(index + 2000)
        store.put(address, target)
        return lambda: store.get(address, target)

    def read_and_open(index: int) -> Step:
        target, sealed = _random(size), _random(sealed_size(size))
        address = _address(index + 3000)
        _seal(sealed, target, index + 3000)
        store.put(address, sealed)

        def step() -> None:
            store.get(address, sealed)
            _open(target, sealed, index + 3000)

        return step

    return {
        "write": write,
        "seal+write": seal_and_write,
        "read": read,
        "read+open": read_and_open,
    }


def _seal(sealed: memoryview, source: memoryview, index: int) -> None:
    seal_into(sealed, source, _identity(index), _KEY, created=0, expires=_FOREVER)


def _open(target: memoryview, sealed: memoryview, index: int) -> None:
    failure = open_into(target, sealed, _identity(index), lambda _: _KEY, now=0)
    if failure is not None:
        raise RuntimeError(f"a block of the benchmark doesn't open: {failure}")


def _identity(index: int) -> BlockIdentity:
    return BlockIdentity(_NAMESPACE, _address(index).name, _LAYOUT)


def _address(index: int) -> Address:
    return Address(_NAMESPACE, index.to_bytes(32))


def _random(size: int) -> memoryview:
    return memoryview(bytearray(os.urandom(size)))


def _openssl_speed(size: int, threads: int) -> float | None:
    """Bytes per second that OpenSSL's own benchmark reaches with AES-256-GCM."""
    program = shutil.which("openssl")
    if program is None:
        return None
    options = ["-evp", "aes-256-gcm", "-bytes", str(size), "-seconds", "1"]
    if threads > 1:
        options += ["-multi", str(threads)]
    finished = subprocess.run(  # noqa: S603 - fixed arguments
        [program, "speed", *options], capture_output=True, text=True, check=False
    )
    found = re.findall(r"(?im)^(?:evp|aes-256-gcm)\s+([\d.]+)k\s*$", finished.stdout)
    return float(found[-1]) * 1000 if found else None
