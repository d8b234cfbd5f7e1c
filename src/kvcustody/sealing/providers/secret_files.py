"""Small files that hold a secret: only their owner's, and read without leaving copies in memory.

Python's `bytes` and `str` can't be wiped, so a secret passes through `bytearray` alone.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvcustody.errors import ConfigurationError
from kvcustody.private_folders import what_is_open_to_others
from kvcustody.sealing.secret import wipe

_LARGEST_BYTES = 4096
_LARGEST_PASSPHRASE_BYTES = 1024


@contextmanager
def secret_content(path: Path, what: str, *, missing: str) -> Iterator[bytearray]:
    """What a secret file holds, at most its first 4096 bytes; wiped afterwards.

    Args:
        path: the file; a link is not followed.
        what: what to call it, such as `key file`.
        missing: what to do if there is no such file.

    Raises:
        ConfigurationError: it is missing, not a regular file, open to others, or can't be read.

    """
    content = bytearray()
    try:
        content = _read(path, what)
        yield content
    except FileNotFoundError:
        raise ConfigurationError(f"no such {what}; {missing}", path) from None
    except OSError as error:
        raise ConfigurationError(f"the {what} can't be read: {error.strerror}", path) from None
    finally:
        wipe(content)


def _read(path: Path, what: str) -> bytearray:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError("not a regular file", path)
        if (problem := what_is_open_to_others(descriptor, readable=False)) is not None:
            raise ConfigurationError(problem, path)
        # Of the final size at once: a buffer that grows leaves copies behind.
        content = bytearray(min(status.st_size, _LARGEST_BYTES))
        if content and os.readv(descriptor, [content]) != len(content):
            wipe(content)
            raise ConfigurationError(f"the {what} changed while it was read; try again", path)
        return content
    finally:
        os.close(descriptor)


@contextmanager
def passphrase_in(path: Path, what: str = "passphrase") -> Iterator[memoryview]:
    """The passphrase or PIN in a file, without the line break at its end; wiped afterwards.

    Args:
        path: the file, as private as a key file.
        what: what it holds.

    Raises:
        ConfigurationError: the file is not one that `secret_content` reads, or holds none.

    """
    with secret_content(path, f"{what} file", missing=f"put the {what} into it, mode 0600") as text:
        size = len(text)
        while size and text[size - 1] in b"\r\n":
            size -= 1
        if size == 0:
            raise ConfigurationError(f"the {what} file is empty; put the {what} into it", path)
        if size > _LARGEST_PASSPHRASE_BYTES:
            raise ConfigurationError(
                f"more than {_LARGEST_PASSPHRASE_BYTES} bytes; that is no {what} file", path
            )
        with memoryview(text)[:size] as passphrase:
            yield passphrase


def create_secret_file(path: Path, content: bytearray) -> None:
    """Write a new file, 0600; nothing is overwritten, and nothing half written is left.

    Raises:
        ConfigurationError: the file exists already or can't be written.

    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ConfigurationError("a key file exists already; it is kept", path) from None
    except OSError as error:
        raise ConfigurationError(f"can't be written: {error.strerror}", path) from None
    try:
        _write(descriptor, content)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigurationError(f"can't be written: {error.strerror}", path) from None


def _write(descriptor: int, content: bytearray) -> None:
    # Unbuffered: a buffer would keep a copy.
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
