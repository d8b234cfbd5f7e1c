"""The demo's model folders: built once for each recipe, then taken from the user's cache."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from kvcustody.errors import ConfigurationError, UnavailableError

Kind = Literal["tiny", "smollm2"]

# Raise it when `kvcustody.demo.build_model` makes other folders than before: caches are rebuilt.
_RECIPE_VERSION = 1
_DIGEST_CHARACTERS = 12

# A process of its own, so that torch's memory is given back before the server starts.
_BUILDER = (sys.executable, "-m", "kvcustody.demo.build_model")


def build_model(kind: Kind, document: str, *, builder: Sequence[str] = _BUILDER) -> Path:
    """Give a model folder that vLLM serves offline, building it if the cache has none.

    The folder appears complete or not at all, also when two processes build it at once.

    Args:
        kind: `tiny` is random and quick; `smollm2` is SmolLM2-135M-Instruct from its package.
        document: what the tiny model's tokenizer is trained on.
        builder: command that is given kind, document file and target folder, and fills the target.

    Raises:
        ConfigurationError: the cache can't be written.
        UnavailableError: the builder failed; the text ends with the last thing it said.

    """
    folder = _cache() / _name(kind, document)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        workspace = TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.")
    except OSError as error:
        raise ConfigurationError(
            f"can't be written: {error.strerror}; set XDG_CACHE_HOME to a folder that can",
            folder.parent,
        ) from None
    with workspace as name:
        target = Path(name) / "model"
        document_file = Path(name) / "document.txt"
        document_file.write_text(document, encoding="utf-8")
        _run([*builder, kind, str(document_file), str(target)], kind)
        _move(target, folder)
    return folder


def _cache() -> Path:
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a relative path.
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "kvcustody" / "models"


def _name(kind: Kind, document: str) -> str:
    recipe = f"{_RECIPE_VERSION}\n{kind}\n"
    if kind == "tiny":
        recipe += document
    return f"{kind}-{hashlib.sha256(recipe.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


def _run(command: Sequence[str], kind: Kind) -> None:
    try:
        result = subprocess.run(  # noqa: S603 - our own command
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
    except OSError as error:
        raise UnavailableError(f"can't build the {kind} model: {error}") from None
    if result.returncode != 0:
        said = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        raise UnavailableError(
            f"can't build the {kind} model (exit code {result.returncode}): "
            + (said[-1] if said else "it said nothing")
        )


def _move(target: Path, folder: Path) -> None:
    try:
        # On one file system this happens at once, and never onto a folder that has files.
        target.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise UnavailableError(f"can't keep the model: {error}") from None
        # Another process was quicker; its folder was made by the same recipe.
