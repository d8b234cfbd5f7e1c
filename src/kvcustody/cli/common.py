"""What all commands share: their options, and output for people or for scripts."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def printable(text: str) -> str:
    """A text whose control characters are shown, not obeyed: names may hold escape sequences."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def print_line(text: str, *, to_errors: bool = False) -> None:
    """Print a text on a line of its own, whatever it holds."""
    typer.echo(printable(text), err=to_errors)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # JSON itself lets some control characters stand as they are.
    typer.echo(
        "".join(
            each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
        )
    )


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print a table for people."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        # Not as markup: a pattern such as [ab]* is no style.
        table.add_row(*(Text(printable(cell)) for cell in row))
    # Nothing is cut where a program or a file takes the output.
    target = console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)
    target.print(table)
