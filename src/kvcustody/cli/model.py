"""`kvcustody model`: what a model revision is made of."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from kvcustody.cli.common import JsonOption, console, print_json, print_table
from kvcustody.namespace import fingerprint_model

app = typer.Typer(help="Model revisions.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Model revisions."""


@app.command()
def fingerprint(
    path: Annotated[Path, typer.Argument(help="The model's folder.")], json_: JsonOption = False
) -> None:
    """Print the revision of a model, and the files that it covers."""
    columns = (TextColumn("hashing"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=json_) as progress:
        task = progress.add_task("hashing", total=None)
        found = fingerprint_model(
            path, progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if json_:
        print_json({"revision": found.revision, "inputs": found.inputs})
        return
    print_table(["file", "sha256"], [[name, digest] for name, digest in found.inputs.items()])
    console.print(f"\nrevision {found.revision}", soft_wrap=True)
