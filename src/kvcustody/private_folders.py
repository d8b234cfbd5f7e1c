"""Folders that only their owner may enter: tiers, keys, registry and audit trail lie in such."""

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
        make_private_folder(path.parent)
        make_private_folder(path)
    except FileExistsError:
        if not path.is_dir():
            raise
