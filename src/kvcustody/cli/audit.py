"""`kvcustody audit`: read the trail, and verify that nobody changed it."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from kvcustody.audit import read_events, verify_directory
from kvcustody.audit.events import CHAIN_FIELDS
from kvcustody.cli.common import ConfigOption, JsonOption, console, print_json
from kvcustody.cli.operator import ALL_TENANTS, check_allowed
from kvcustody.config import load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.policy import Action
from kvcustody.wiring import audit_signing_key, open_keys

app = typer.Typer(help="The audit trail.", no_args_is_help=True)

_NOT_SHOWN = frozenset({*CHAIN_FIELDS, "policy_version", "signature"})


@app.command()
def verify(
    config: ConfigOption = None,
    directory: Annotated[
        Path | None, typer.Option(help="A copy of the trail, instead of custody.yaml's.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="PEM file of `audit public-key`; then no keys are needed.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Check that no record was altered, dropped or added; exit code 1 if one was."""
    if directory is None or public_key is None:
        settings = load_settings(config)
        directory = directory or settings.audit.path
        key = _own_public_key(config) if public_key is None else _read_public_key(public_key)
    else:
        key = _read_public_key(public_key)
    report = verify_directory(directory, key)
    findings = [
        {"kind": found.kind, "file": str(found.file), "line": found.line, "seq": found.seq}
        for found in report.findings
    ]
    if json_:
        print_json(
            {
                "ok": report.ok,
                "records": report.records,
                "findings": findings,
                "notes": [str(note) for note in report.notes],
            }
        )
    else:
        for found in findings:
            console.print(
                f"{found['file']}:{found['line']}: {found['kind']} (seq {found['seq']})",
                soft_wrap=True,
                markup=False,
            )
        for note in report.notes:
            console.print(f"note: {note}", soft_wrap=True, markup=False)
        verdict = "intact" if report.ok else f"NOT intact: {len(findings)} findings"
        console.print(f"{report.records} records, {verdict}")
    if not report.ok:
        raise typer.Exit(1)


@app.command("public-key")
def public_key_(config: ConfigOption = None) -> None:
    """Print the public key that verifies the trail, for a reviewer who gets no secrets."""
    pem = _own_public_key(config).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    typer.echo(pem.decode(), nl=False)


@app.command()
def tail(
    config: ConfigOption = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many events.")] = 20,
    json_: JsonOption = False,
) -> None:
    """Print the newest events of all streams."""
    settings = load_settings(config)
    check_allowed(settings, Action.AUDIT_READ, [ALL_TENANTS])
    events = sorted(read_events(settings.audit.path), key=lambda event: str(event.get("time")))
    _print_events(events[-lines:], json_=json_)


@app.command()
def query(
    config: ConfigOption = None,
    tenant: Annotated[str | None, typer.Option()] = None,
    event: Annotated[str | None, typer.Option(help="Such as block.rejected.")] = None,
    outcome: Annotated[str | None, typer.Option()] = None,
    reason: Annotated[str | None, typer.Option()] = None,
    request_id: Annotated[str | None, typer.Option()] = None,
    json_: JsonOption = False,
) -> None:
    """Print the events that match all given fields, one a line."""
    settings = load_settings(config)
    check_allowed(settings, Action.AUDIT_READ, [ALL_TENANTS if tenant is None else tenant])
    wanted = {
        "tenant": tenant,
        "event": event,
        "outcome": outcome,
        "reason": reason,
        "request_id": request_id,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    matching = [
        found
        for found in read_events(settings.audit.path)
        if all(found.get(name) == value for name, value in given.items())
    ]
    matching.sort(key=lambda found: str(found.get("time")))
    _print_events(matching, json_=json_)


def _print_events(events: list[dict[str, Any]], *, json_: bool) -> None:
    for event in events:
        if json_:
            typer.echo(json_line(event))
            continue
        shown = " ".join(
            f"{name}={json_line(value)}"
            for name, value in event.items()
            if value is not None and name not in _NOT_SHOWN
        )
        when, what = (json_line(event.get(name)).strip('"') for name in ("time", "event"))
        typer.echo(f"{when} {what} {shown}")


def json_line(value: Any) -> str:
    """A value as JSON on one line, safe for a terminal: control characters stay escaped."""
    return json.dumps(value, ensure_ascii=True)


def _own_public_key(config: Path | None) -> Ed25519PublicKey:
    with closing(open_keys(load_settings(config))) as keys:
        return audit_signing_key(keys.keyring).public_key()


def _read_public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError("not a PEM public key", path) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError("not an Ed25519 key; use the output of `audit public-key`", path)
    return key
