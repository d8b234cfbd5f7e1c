"""`kvcustody keys`: the keys of namespaces, and the root key that wraps them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kvcustody.cli.common import ConfigOption, JsonOption, console, print_json, print_table
from kvcustody.cli.common import show_time as when
from kvcustody.cli.operator import ALL_TENANTS, check_allowed
from kvcustody.cli.session import AuditedKeys
from kvcustody.config import Settings, load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.policy import Action
from kvcustody.sealing.inventory import NamespaceRecord, Selection, list_namespaces
from kvcustody.sealing.maintenance import REFRESH_SECONDS
from kvcustody.sealing.providers import blamed_field, create_root, open_provider
from kvcustody.sealing.rewrap import count_pending, rewrap
from kvcustody.wiring import open_keys

app = typer.Typer(help="Keys of namespaces, and the root key above them.", no_args_is_help=True)

TenantOption = Annotated[str | None, typer.Option(help="All namespaces of this tenant.")]
WorkloadOption = Annotated[str | None, typer.Option(help="Only those of this workload.")]
SubjectOption = Annotated[str | None, typer.Option(help="Only those of this data subject.")]
NamespaceOption = Annotated[
    str | None, typer.Option(help="One namespace, as `keys list` shows it.")
]


@app.command("list")
def list_(
    tenant: TenantOption = None,
    workload: WorkloadOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """List namespaces with the epochs of their keys; nothing secret is shown."""
    with closing(open_keys(load_settings(config))) as keys:
        found = list_namespaces(keys.registry, Selection(tenant=tenant, workload=workload))
    if json_:
        print_json([_describe(record) for record in found])
        return
    columns = ["namespace", "whose", "model", "adapter", "epoch", "began", "living keys", "state"]
    print_table(columns, [_row(record) for record in found])


@app.command()
def rotate(
    tenant: TenantOption = None,
    namespace: NamespaceOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Every namespace.")] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Begin a new epoch: new blocks get a new key, old ones stay readable until they expire."""
    settings = load_settings(config)
    if sum((tenant is not None, namespace is not None, all_)) != 1:
        raise ConfigurationError("name one of --tenant, --namespace and --all")
    _check_known(settings, tenant)
    rotated = []
    with AuditedKeys(settings) as session:
        table = session.keys.table
        found = list_namespaces(session.keys.registry, Selection(namespace, tenant))
        _check_found(found, namespace)
        concerned = _whose(found) if namespace else [tenant or ALL_TENANTS]
        check_allowed(settings, Action.ROTATE, concerned)
        living = [record for record in found if record.destroyed is None]
        with _progress("rotating", len(living), shown=not json_) as advance:
            for record in living:
                stored = table.read(bytes.fromhex(record.identifier))
                if stored is not None and table.add_epoch(stored, "command"):
                    rotated.append(record.identifier)
                advance(len(rotated))
    if json_:
        print_json({"rotated": len(rotated), "namespaces": rotated})
    else:
        console.print(
            f"{len(rotated)} namespaces began a new epoch; engines that run take it over within "
            f"{REFRESH_SECONDS:g} s.",
            soft_wrap=True,
        )


@app.command()
def destroy(
    tenant: TenantOption = None,
    workload: WorkloadOption = None,
    subject: SubjectOption = None,
    namespace: NamespaceOption = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it, instead of a dry run.")
    ] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Destroy keys, which erases all blocks that they sealed, wherever copies lie.

    There is no way back. A dry run unless --execute is given.
    """
    settings = load_settings(config)
    if (tenant is None) == (namespace is None):
        raise ConfigurationError("name either --tenant or --namespace")
    if namespace is not None and (workload or subject):
        raise ConfigurationError("--workload and --subject go with --tenant")
    _check_known(settings, tenant)
    which = Selection(namespace, tenant, workload, subject)
    with AuditedKeys(settings) as session:
        found = list_namespaces(session.keys.registry, which)
        _check_found(found, namespace)
        keys = sum(record.living_keys for record in found)
        if execute:
            check_allowed(settings, Action.ERASE, [tenant] if tenant else _whose(found))
            identifiers = [record.identifier for record in found]
            keys = len(session.keys.table.destroy(identifiers, "command"))
    if json_:
        print_json({"executed": execute, "namespaces": len(found), "keys": keys})
    elif not found:
        console.print("No namespace matches; there is nothing to destroy.")
    elif execute:
        console.print(
            f"Destroyed {keys} keys of {len(found)} namespaces. Engines that run let go of them "
            f"within {REFRESH_SECONDS:g} s; a namespace that is used again gets new keys.",
            soft_wrap=True,
        )
    else:
        console.print(
            f"Would destroy {keys} keys of {len(found)} namespaces, and with them every block that "
            "they sealed. Nothing was done; add --execute to do it.",
            soft_wrap=True,
        )


@app.command("rewrap")
def rewrap_(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Wrap all keys under the root key of `keys`, after a change of it; blocks stay as they are.

    The old root key has to be listed under keys.previous until this is done.
    """
    settings = load_settings(config)
    check_allowed(settings, Action.ROTATE, [ALL_TENANTS])
    with AuditedKeys(settings) as session:
        keys = session.keys
        total = count_pending(keys.registry, keys.roots)
        with _progress("wrapping", total, shown=not json_) as advance:
            done = rewrap(keys.registry, keys.roots, advance)
        root = keys.roots.current
        session.audit.record(
            "keys.rewrapped",
            action="rewrap",
            outcome="partial" if done.failed else "ok",
            keys=done.keys,
            failed=done.failed,
            root=root,
        )
    if json_:
        print_json({"rewrapped": done.keys, "failed": done.failed, "root": root})
    else:
        console.print(f"{done.keys} keys are newly wrapped by {root}.", soft_wrap=True)
    if done.failed:
        typer.echo(
            f"kvcustody: {done.failed} keys are unwrapped by no root key that custody.yaml lists; "
            "add theirs under keys.previous and run this again (a damaged key: restore the "
            "registry, or destroy its namespace)",
            err=True,
        )
        raise typer.Exit(1)


@app.command("new-root")
def new_root(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Make the root key that `keys` in custody.yaml describes; one that is there is kept."""
    settings = load_settings(config)
    with settings.places.blame("keys", blamed_field(settings.keys)):
        create_root(settings.keys)
        with closing(open_provider(settings.keys)) as provider:
            root = provider.root
    if json_:
        print_json({"root": root})
    else:
        console.print(f"Made the root key {root}.", soft_wrap=True)


@contextmanager
def _progress(what: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not (shown and total and console.is_terminal),
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _check_known(settings: Settings, tenant: str | None) -> None:
    if tenant is not None and tenant not in settings.tenants:
        raise ConfigurationError(
            f"unknown tenant; custody.yaml has {', '.join(settings.tenants)} (a tenant that was "
            "taken out of it: use --namespace with what `keys list` shows)",
            field="--tenant",
        )


def _check_found(found: Sequence[NamespaceRecord], namespace: str | None) -> None:
    if namespace is not None and not found:
        raise ConfigurationError(
            "no such namespace; see `kvcustody keys list`", field="--namespace"
        )


def _whose(found: Sequence[NamespaceRecord]) -> list[str]:
    """Tenants whose namespaces these are; a sharing group's is everybody's."""
    return [record.tenant or ALL_TENANTS for record in found]


def _row(record: NamespaceRecord) -> list[str]:
    newest = record.epochs[-1] if record.epochs else None
    names = (record.tenant, record.workload, record.subject, record.sharing_group)
    return [
        record.identifier,
        "/".join(name for name in names if name is not None),
        record.model_revision[:12],
        (record.adapter or "")[:12],
        str(newest.number) if newest else "",
        when(newest.created) if newest else "",
        str(record.living_keys),
        "destroyed" if record.destroyed else "in use",
    ]


def _describe(record: NamespaceRecord) -> dict[str, Any]:
    described = asdict(record)
    described["namespace"] = described.pop("identifier")
    for times in (described, *described["epochs"]):
        for name in {"created", "retired", "destroyed"} & times.keys():
            times[name] = None if times[name] is None else when(times[name])
    for epoch in described["epochs"]:
        epoch["epoch"] = epoch.pop("number")
    return described
