"""What all commands share: their options, and output for people or for scripts."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="custody.yaml; default: $KVCUSTODY_CONFIG, else ./custody.yaml",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

_PIPE_COLUMNS = 1000

console = Console(highlight=False)


def show_time(seconds: float) -> str:
    """A time in seconds since 1970, as people and scripts read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat("T", "seconds")


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table for people."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    # Nothing is cut where a program or a file takes the output.
    target = console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)
    target.print(table)
