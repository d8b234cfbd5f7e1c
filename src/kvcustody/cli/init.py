"""`kvcustody init`: a working deployment below one folder."""

from pathlib import Path
from typing import Annotated

import typer

from kvcustody.cli.common import JsonOption, console, print_json
from kvcustody.deployment import init_deployment


def init(
    directory: Annotated[
        Path, typer.Argument(help="Folder to write to; made if missing.")
    ] = Path(),
    json_: JsonOption = False,
) -> None:
    """Write a working custody.yaml, policies, a root key and two API keys; overwrites nothing."""
    config = directory.absolute() / "custody.yaml"
    minted = init_deployment(config)
    keys = [
        {
            "id": key.record.id,
            "tenant": key.record.principal.tenant,
            "workload": key.record.principal.workload,
            "key": key.key,
        }
        for key in minted
    ]
    if json_:
        print_json({"config": str(config), "api_keys": keys})
        return
    console.print(f"Wrote {config}\n\nAPI keys (shown once, stored hashed):")
    for key in keys:
        console.print(f"  {key['tenant']:<8} {key['key']}")
    console.print(f"\nNext: kvcustody serve MODEL --config {config}", soft_wrap=True)
