"""`kvcustody inspect`: the header of a sealed block, which anyone may read."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kvcustody.cli.common import JsonOption, print_json, print_table
from kvcustody.errors import ConfigurationError
from kvcustody.sealing import HEADER_BYTES, Header, OpenFailure


def inspect(
    path: Annotated[Path, typer.Argument(help="A sealed block's file.")], json_: JsonOption = False
) -> None:
    """Print a sealed block's header, without keys; nothing in it is verified."""
    try:
        with path.open("rb") as file:
            header = Header.parse(file.read(HEADER_BYTES))
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None
    if isinstance(header, OpenFailure):
        raise ConfigurationError(f"not a sealed block of a known format ({header.value})", path)
    fields: dict[str, str | int] = {
        "format": 1,
        "algorithm": "AES-256-GCM, HKDF-SHA256",
        "namespace": header.namespace.hex(),
        "name": header.name.hex(),
        "key_id": header.key_id.hex(),
        "created": _time(header.created),
        "expires": _time(header.expires),
        "plaintext_bytes": header.plaintext_bytes,
        "layout": header.layout.hex(),
    }
    if json_:
        print_json(fields)
    else:
        print_table(["field", "value"], [[name, str(value)] for name, value in fields.items()])


def _time(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # a header may claim anything
    return moment.isoformat("T", "milliseconds")
