"""Folders that are their owner's alone: tiers, keys, registry and audit trail lie in such."""

import os
import stat
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, each with mode 0700.

    `Path.mkdir(mode=0o700, parents=True)` makes the ones above with the umask's mode instead.

    Raises:
        OSError: it can't be made, or something else has its name.

    """
    try:
        path.mkdir(mode=0o700)
    except FileNotFoundError:
        if path.parent.is_dir():
            raise  # a file system, such as /proc, that lets nobody make folders
        make_private_folder(path.parent)
        make_private_folder(path)
    except FileExistsError:
        if not path.is_dir():
            raise


def what_is_open_to_others(path: Path | int, *, readable: bool) -> str | None:
    """Why a file or folder is not its owner's alone, and what to do; `None` if it is.

    Args:
        path: what to look at; a descriptor, where what is read must be what was looked at.
        readable: whether others may read it.

    Raises:
        OSError: it can't be looked at.

    """
    status = os.stat(path)  # noqa: PTH116 - a path has no descriptor
    if status.st_uid not in {os.geteuid(), 0}:
        return "owned by another user; choose one of your own, or chown it"
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o022 if readable else 0o077):
        what = "may write to it" if readable else "may read it"
        wanted = mode & (0o755 if readable else 0o700)
        return f"others {what} (mode {mode:04o}); run chmod {wanted:o} on it"
    return None
