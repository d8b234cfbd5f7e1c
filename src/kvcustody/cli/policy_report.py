"""`kvcustody policy report`: what `audit-only` let through."""

from typing import Annotated

import typer

from kvcustody.audit import find_unenforced, read_events
from kvcustody.cli.common import ConfigOption, JsonOption, print_json, print_line, print_table
from kvcustody.cli.operator import ALL_TENANTS, check_allowed
from kvcustody.config import load_settings
from kvcustody.policy import Action


def report(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Count what enforcement would have refused, from the audit trail."""
    settings = load_settings(config)
    check_allowed(settings, Action.AUDIT_READ, [ALL_TENANTS if tenant is None else tenant])
    found = [
        each
        for each in find_unenforced(read_events(settings.audit.path))
        if tenant in {None, each.use.tenant}
    ]
    if json_:
        print_json(
            [
                {
                    **each.use._asdict(),
                    "requests": each.requests,
                    "first": each.first,
                    "last": each.last,
                }
                for each in found
            ]
        )
        return
    if not found:
        print_line("Nothing: no request was let do what the policy denies.")
        return
    columns = ["requests", "who", "action", "tier", "denied by", "policy", "first", "last"]
    print_table(
        columns,
        [
            [
                str(each.requests),
                f"{each.use.tenant}/{each.use.workload}",
                each.use.action,
                each.use.tier,
                each.use.rule or "no rule allows it",
                each.use.policy_version,
                each.first[:19],
                each.last[:19],
            ]
            for each in found
        ],
    )
