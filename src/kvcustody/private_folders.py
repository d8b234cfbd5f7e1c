"""Folders that are their owner's alone: tiers, keys, registry and audit trail lie in such."""

import os
import stat
import struct
from pathlib import Path

# Of acl(5), as the kernel keeps it: a version, then tag, permissions and id of each entry.
_ACL = "system.posix_acl_access"
_ACL_VERSION_BYTES = 4
_ACL_ENTRY = struct.Struct("<HHI")
_USER, _OWNING_GROUP, _GROUP, _MASK = 0x02, 0x04, 0x08, 0x10


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, each with mode 0700.

    `Path.mkdir(mode=0o700, parents=True)` makes the ones above with the umask's mode instead.

    Raises:
        OSError: it can't be made, or something else has its name.

    """
    try:
        _make_folder(path)
    except FileNotFoundError:
        # Somebody else may be making the one above at this moment.
        if not path.parent.is_dir():
            make_private_folder(path.parent)
        _make_folder(path)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
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
    mode = _effective_mode(path, stat.S_IMODE(status.st_mode))
    if mode & (0o022 if readable else 0o077):
        what = "may write to it" if readable else "may read it"
        wanted = mode & (0o755 if readable else 0o700)
        return f"others {what} (mode {mode:04o}); run chmod {wanted:o} on it"
    return None


def _effective_mode(path: Path | int, mode: int) -> int:
    """The mode, its group bits being what others than this user get.

    Where there is an access control list, the group bits are only its upper bound. systemd gives a
    service its credentials so: root's, closed, and readable for the service's user by such a list.
    """
    if not mode & 0o070:
        return mode
    try:
        entries = os.getxattr(path, _ACL)[_ACL_VERSION_BYTES:]
    except OSError:
        return mode  # none, or a file system without
    granted, bound = 0, 0o7
    for tag, permissions, identifier in _ACL_ENTRY.iter_unpack(entries):
        if tag == _MASK:
            bound = permissions
        elif tag in {_OWNING_GROUP, _GROUP} or (
            tag == _USER and identifier not in {os.geteuid(), 0}
        ):
            granted |= permissions
    return mode & ~0o070 | (granted & bound) << 3
