"""Sealed blocks as files: NAMESPACE/NA/NAME.kvb below a folder that only this user may enter."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kvcustody.errors import ConfigurationError, StoreError
from kvcustody.namespace.namespace import BLOCK_NAME_BYTES, NAMESPACE_ID_BYTES
from kvcustody.private_folders import make_private_folder, what_is_open_to_others
from kvcustody.stores.base import Address

SUFFIX = ".kvb"
_INCOMING = ".incoming"
# A block is written in well under a second; what is older was left by a process that died.
_LEFTOVER_SECONDS = 3600.0


class FilesystemStore:
    """Keeps blocks in a folder, safe for several processes (and hosts) at once.

    A block is written under a temporary name and renamed into place, so no lock is needed.
    Reading copies into a buffer instead of mapping the file: a mapped file that somebody cuts
    short kills the process that touches it.

    Args:
        root: the folder; created 0700 if it is missing.
        min_free: share of the file system that `put` leaves free, 0 to 1.

    Raises:
        ConfigurationError: the folder can't be used, or others may write to it.

    """

    def __init__(self, root: Path, *, min_free: float = 0.0) -> None:
        self._root = root
        self._min_free = min_free
        self._incoming = root / _INCOMING
        _prepare(root, self._incoming)

    def put(self, address: Address, sealed: memoryview) -> None:
        """Keep a sealed block; readers see all of it or none of it."""
        path = self._path(address)
        temporary = self._incoming / f"{os.getpid()}-{os.urandom(8).hex()}"
        try:
            self._check_free(len(sealed))
            _write(temporary, sealed)
            try:
                temporary.replace(path)
            except FileNotFoundError:
                make_private_folder(path.parent)
                temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(f"put failed: {error.strerror}") from error

    def get(self, address: Address, buffer: memoryview) -> int | None:
        """Read a sealed block into `buffer`; bytes read, or `None` without a block."""
        try:
            # Non-blocking: a FIFO put in a block's place must not hang the reader.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(self._path(address), flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"open failed: {error.strerror}") from error
        try:
            return _read(descriptor, buffer)
        except OSError as error:
            raise StoreError(f"read failed: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def exists(self, address: Address) -> bool:
        """Whether a block lies at the address."""
        try:
            return stat.S_ISREG(os.lstat(self._path(address)).st_mode)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"stat failed: {error.strerror}") from error

    def delete(self, address: Address) -> bool:
        """Remove a block; whether there was one."""
        try:
            self._path(address).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"delete failed: {error.strerror}") from error
        return True

    def addresses(self) -> Iterator[Address]:
        """All blocks; files with foreign names are passed over."""
        try:
            for folder in os.scandir(self._root):
                namespace = _unhex(folder.name, NAMESPACE_ID_BYTES)
                if namespace is None or not folder.is_dir(follow_symlinks=False):
                    continue
                for shard in os.scandir(folder.path):
                    if shard.is_dir(follow_symlinks=False):
                        yield from _blocks(namespace, shard.path)
        except OSError as error:
            raise StoreError(f"listing failed: {error.strerror}") from error

    def _path(self, address: Address) -> Path:
        name = address.name.hex()
        # 256 shards keep folders small enough for file systems that search them linearly.
        return self._root / address.namespace.hex() / name[:2] / f"{name}{SUFFIX}"

    def _check_free(self, size: int) -> None:
        status = os.statvfs(self._root)
        free = status.f_bavail * status.f_frsize - size
        if free < self._min_free * status.f_blocks * status.f_frsize:
            raise StoreError("not stored: the file system's free space is below min_free")


def _prepare(root: Path, incoming: Path) -> None:
    try:
        make_private_folder(root)
        if (problem := what_is_open_to_others(root, readable=True)) is not None:
            raise ConfigurationError(problem, root)
        make_private_folder(incoming)
        probe = incoming / f"probe-{os.getpid()}-{os.urandom(8).hex()}"
        _write(probe, memoryview(b"probe"))
        probe.unlink()
        for leftover in os.scandir(incoming):
            with suppress(FileNotFoundError):
                if time.time() - leftover.stat(follow_symlinks=False).st_mtime > _LEFTOVER_SECONDS:
                    Path(leftover.path).unlink()
    except OSError as error:
        raise ConfigurationError(
            f"the tier's folder can't be written: {error.strerror}; check its path and permissions",
            root,
        ) from None


def _write(path: Path, content: memoryview) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def _read(descriptor: int, buffer: memoryview) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(0, "not a regular file")
    total = 0
    while total < len(buffer):
        count = os.readv(descriptor, [buffer[total:]])
        if count == 0:
            break
        total += count
    return total


def _blocks(namespace: bytes, shard: str) -> Iterator[Address]:
    for file in os.scandir(shard):
        name = _unhex(file.name.removesuffix(SUFFIX), BLOCK_NAME_BYTES)
        if name is not None and file.name.endswith(SUFFIX) and file.is_file(follow_symlinks=False):
            yield Address(namespace, name)


def _unhex(text: str, length: int) -> bytes | None:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        return None
    return value if len(value) == length and text == value.hex() else None
