"""Read events back, for people and reports; see `verify` for whether to believe them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvcustody.errors import ConfigurationError


def segments(directory: Path) -> list[Path]:
    """The files of an audit trail, by name."""
    return sorted(
        path for path in directory.rglob("*.jsonl") if path.is_file() and not path.is_symlink()
    )


def read_events(directory: Path) -> Iterator[dict[str, Any]]:
    """All events below a folder, stream by stream; what isn't an event is left to `verify`.

    Raises:
        ConfigurationError: a segment can't be read.

    """
    for segment in segments(directory):
        try:
            with segment.open("rb") as lines:
                yield from filter(None, map(_event, lines))
        except OSError as error:
            raise ConfigurationError(f"can't be read: {error.strerror}", segment) from None


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
