"""What a policy that isn't enforced yet would have denied, from the audit trail."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Use(NamedTuple):
    """What was done that the policy denies.

    Args:
        tenant: who did it.
        workload: for which workload.
        tier: on which tier, or in which sharing group.
        action: what.
        rule: name of the rule that denies it; `None`: no rule allows it.
        policy_version: version of the policy that said so.

    """

    tenant: str
    workload: str
    tier: str
    action: str
    rule: str | None
    policy_version: str


@dataclass(frozen=True, slots=True)
class UnenforcedUse:
    """How often something was done that the policy denies.

    Args:
        use: what.
        requests: how many requests.
        first: time of the first of them.
        last: time of the last of them.

    """

    use: Use
    requests: int
    first: str
    last: str


def find_unenforced(events: Iterable[dict[str, Any]]) -> list[UnenforcedUse]:
    """What enforcement would have denied, the most frequent first.

    Args:
        events: events of an audit trail, in any order; foreign or damaged ones are left out.

    """
    found: dict[Use, UnenforcedUse] = {}
    for event in events:
        time = event.get("time")
        for use in _uses(event):
            seen = found.get(use)
            if not isinstance(time, str):
                continue
            if seen is None:
                found[use] = UnenforcedUse(use, 1, time, time)
            else:
                first, last = min(seen.first, time), max(seen.last, time)
                found[use] = replace(seen, requests=seen.requests + 1, first=first, last=last)
    return sorted(found.values(), key=lambda each: (-each.requests, str(each.use)))


def _uses(event: dict[str, Any]) -> Iterable[Use]:
    if event.get("event") != "request.admitted":
        return
    entries = event.get("unenforced")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            yield Use(
                str(event.get("tenant")),
                str(event.get("workload")),
                str(entry.get("tier")),
                str(entry.get("action")),
                None if entry.get("rule") is None else str(entry["rule"]),
                str(event.get("policy_version")),
            )
