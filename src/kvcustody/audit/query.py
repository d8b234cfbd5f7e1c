"""Read events back, for people and reports; see `verify` for whether to believe them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def segments(directory: Path) -> list[Path]:
    """The files of an audit trail, by name."""
    return sorted(path for path in directory.rglob("*.jsonl") if path.is_file())


def read_events(directory: Path) -> Iterator[dict[str, Any]]:
    """All events below a folder, stream by stream; what isn't an event is left to `verify`."""
    for segment in segments(directory):
        with segment.open("rb") as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    yield event
