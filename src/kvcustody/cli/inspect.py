"""`kvcustody inspect`: the header of a sealed block, which anyone may read; with keys, the rest."""

import re
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, NoReturn

import typer

from kvcustody.cli.block_source import read_block
from kvcustody.cli.common import ConfigOption, JsonOption, console, print_json, print_table
from kvcustody.config import load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.sealing import HEADER_BYTES, BlockIdentity, Header, OpenFailure, open_into
from kvcustody.sealing.inventory import Selection, list_namespaces
from kvcustody.wiring import Keys, open_keys

Fields = dict[str, str | int | bool | None]

_ADDRESS = re.compile(r"(?:^|/)([0-9a-f]{32})/[0-9a-f]{2}/([0-9a-f]{64})\.kvb$")


def inspect(
    source: Annotated[
        str, typer.Argument(help="A sealed block: a file, or s3://BUCKET/KEY.", metavar="BLOCK")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Open it with the deployment's keys, too.")
    ] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Print a sealed block's header; without --verify, no key is needed and nothing is proved.

    With --verify all checks of a load are made, and the exit code is 1 if one fails.
    """
    sealed = read_block(source, None if verify else HEADER_BYTES)
    header = Header.parse(sealed)
    if isinstance(header, OpenFailure):
        if verify:
            _tell_failure(header, {"verified": False, "failure": header.value}, json_=json_)
        raise ConfigurationError(
            f"not a sealed block of a known format ({header.value})", Path(source)
        )
    fields = _describe(header)
    failure: OpenFailure | None = None
    if verify:
        with closing(open_keys(load_settings(config))) as keys:
            failure = _verify(header, sealed, source, keys)
            fields |= {"tenant": _tenant(header, keys)}
        fields |= {"verified": failure is None, "failure": failure and failure.value}
    if failure is not None:
        _tell_failure(failure, fields, json_=json_)
    _tell(fields, json_=json_)


def _tell(fields: Fields, *, json_: bool) -> None:
    if json_:
        print_json(fields)
    else:
        print_table(["field", "value"], [[name, _text(value)] for name, value in fields.items()])


def _tell_failure(failure: OpenFailure, fields: Fields, *, json_: bool) -> NoReturn:
    _tell(fields, json_=json_)
    if not json_:
        console.print(f"\nNOT usable: the check '{failure.value}' failed", markup=False)
    raise typer.Exit(1)


def _verify(header: Header, sealed: bytes, source: str, keys: Keys) -> OpenFailure | None:
    """Make the checks of a load; the address, if the source has one, says what is expected."""
    expected = BlockIdentity(header.namespace, header.name, header.layout)
    address = _ADDRESS.search(PurePosixPath(source).as_posix())
    if address is not None:
        namespace, name = map(bytes.fromhex, address.groups())
        expected = replace(expected, namespace=namespace, name=name)
    if header.plaintext_bytes > len(sealed):
        return OpenFailure.TRUNCATED  # and no reason to set that much memory aside
    plaintext = bytearray(header.plaintext_bytes)
    return open_into(
        memoryview(plaintext),
        memoryview(sealed),
        expected,
        lambda key_id: keys.table.data_key(header.namespace, key_id),
        now=int(time.time() * 1000),
    )


def _tenant(header: Header, keys: Keys) -> str | None:
    found = list_namespaces(keys.registry, Selection(namespace=header.namespace.hex()))
    return found[0].tenant if found else None


def _describe(header: Header) -> Fields:
    return {
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


def _text(value: str | int | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _time(milliseconds: int) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"  # a header may claim anything
    return moment.isoformat("T", "milliseconds")
