"""`kvcustody token`: API keys for the gateway."""

import time
import unicodedata
from contextlib import closing
from typing import Annotated

import typer

from kvcustody.audit import AuditLog
from kvcustody.cli.common import (
    ConfigOption,
    JsonOption,
    console,
    print_json,
    print_table,
    show_time,
)
from kvcustody.cli.session import AuditedKeys
from kvcustody.config import Settings, TenantSettings, load_settings
from kvcustody.config.values import NAME_FORM, is_name, parse_duration
from kvcustody.errors import ConfigurationError
from kvcustody.identity.authenticator import REMEMBERED_SECONDS
from kvcustody.identity.principal import Principal, is_canonical
from kvcustody.identity.tokens import ApiKey, KeyStore, key_id_of
from kvcustody.wiring import open_keys

app = typer.Typer(help="API keys for the gateway.", no_args_is_help=True)


@app.command()
def mint(
    tenant: Annotated[str, typer.Option(help="A tenant of custody.yaml.")],
    workload: Annotated[str, typer.Option(help="What the key is used for.")] = "default",
    subject: Annotated[str | None, typer.Option(help="Data subject the key acts for.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="Life of the key, such as 90d; for ever if left out.")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Let the key use the server's administrative routes.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Sharing group whose cache the key's requests use.")
    ] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Make an API key; it is shown once and stored hashed."""
    settings = load_settings(config)
    if tenant not in settings.tenants:
        raise ConfigurationError(
            f"unknown tenant '{tenant}'; custody.yaml has {', '.join(settings.tenants)}",
            field="--tenant",
        )
    for field, name in (("--tenant", tenant), ("--workload", workload)):
        if not is_name(name):
            raise ConfigurationError(f"'{name}' is no name; {NAME_FORM}", field=field)
    if subject is not None:
        subject = unicodedata.normalize("NFC", subject)
        if not is_canonical(subject):
            raise ConfigurationError("use 1 to 256 printable characters", field="--subject")
    if subject is None and _needs_subject(settings.tenants[tenant], workload):
        raise ConfigurationError(
            f"'{tenant}' keeps a cache for each data subject; name this key's, or list its "
            "workload in act_for_subjects",
            field="--subject",
        )
    if group is not None:
        _check_group(settings, tenant, group)
    try:
        end = None if expires is None else time.time() + parse_duration(expires)
    except ValueError as error:
        raise ConfigurationError(str(error), field="--expires") from None
    with AuditedKeys(settings) as session:
        minted = KeyStore(session.keys.registry).mint(
            Principal(tenant, workload, subject), expires=end, admin=admin, group=group
        )
        _audit(session.audit, "token.minted", "mint", minted.record, admin=admin, group=group)
    if json_:
        print_json({**_describe(minted.record), "key": minted.key})
    else:
        typer.echo(minted.key)
        typer.echo(f"Shown once; stored hashed as {minted.record.id}.", err=True)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `token list` shows it.")],
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Make an API key useless at once."""
    with AuditedKeys(load_settings(config)) as session:
        store = KeyStore(session.keys.registry)
        key_id = key_id_of(key_id) or key_id
        record = next((record for record in store.list() if record.id == key_id), None)
        if record is None:
            # Not repeated here: it may be a mistyped key.
            raise ConfigurationError("no key has this id; see `kvcustody token list`")
        if not store.revoke(key_id):
            raise ConfigurationError(f"'{key_id}' is revoked already")
        _audit(session.audit, "token.revoked", "revoke", record)
    # So that it is true when it is said: a gateway may have looked just before.
    time.sleep(REMEMBERED_SECONDS)
    if json_:
        print_json({"id": key_id, "revoked": True})
    else:
        console.print(f"{key_id} is revoked.")


@app.command("list")
def list_(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """List API keys, without their secrets."""
    with closing(open_keys(load_settings(config))) as keys:
        records = KeyStore(keys.registry).list()
    now = time.time()
    if json_:
        print_json([_describe_stored(record, now) for record in records])
        return
    print_table(
        [
            *("id", "tenant", "workload", "subject", "created", "expires", "last used"),
            *("state", "admin", "group"),
        ],
        [
            [
                record.id,
                record.principal.tenant,
                record.principal.workload,
                record.principal.subject or "",
                show_time(record.created),
                _time(record.expires) or "never",
                _time(record.last_used) or "never",
                record.state(now),
                "yes" if record.admin else "",
                record.group or "",
            ]
            for record in records
        ],
    )


def _needs_subject(tenant: TenantSettings, workload: str) -> bool:
    """Whether a key without subject would have no cache: no request with it may name one."""
    return tenant.scope == "subject" and {"*", workload}.isdisjoint(tenant.act_for_subjects)


def _check_group(settings: Settings, tenant: str, group: str) -> None:
    groups = {entry.group: entry.tenants for entry in settings.sharing}
    if group not in groups:
        known = f"has {', '.join(groups)}" if groups else "has none"
        raise ConfigurationError(
            f"unknown group '{group}'; `sharing` in custody.yaml {known}", field="--group"
        )
    if tenant not in groups[group]:
        raise ConfigurationError(
            f"'{tenant}' is not in '{group}'; it is for {', '.join(groups[group])}", field="--group"
        )


def _audit(
    audit: AuditLog, event: str, action: str, record: ApiKey, **rights: str | bool | None
) -> None:
    audit.record(
        event,
        tenant=record.principal.tenant,
        workload=record.principal.workload,
        action=action,
        outcome="ok",
        key_id=record.id,
        **rights,
    )


def _describe(record: ApiKey) -> dict[str, str | bool | None]:
    return {
        "id": record.id,
        "tenant": record.principal.tenant,
        "workload": record.principal.workload,
        "subject": record.principal.subject,
        "expires": _time(record.expires),
        "admin": record.admin,
        "group": record.group,
    }


def _describe_stored(record: ApiKey, now: float) -> dict[str, str | bool | None]:
    return {
        **_describe(record),
        "state": record.state(now),
        "created": show_time(record.created),
        "last_used": _time(record.last_used),
        "revoked": _time(record.revoked),
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else show_time(seconds)
