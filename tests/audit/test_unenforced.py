from typing import Any

import pytest

from kvcustody.audit import find_unenforced

pytestmark = pytest.mark.unit

DISK = {"tier": "disk", "action": "store", "rule": "policy.csv:3"}
HOST = {"tier": "host", "action": "load", "rule": None}


def admitted(time: str, *uses: object, tenant: str = "acme") -> dict[str, Any]:
    return {
        "event": "request.admitted",
        "time": time,
        "tenant": tenant,
        "workload": "chat",
        "policy_version": "v1",
        "unenforced": list(uses),
    }


def test_uses_are_counted_with_their_rule_and_times_the_most_frequent_first() -> None:
    found = find_unenforced(
        [
            admitted("2026-12-02T10:00:00Z", DISK, HOST),
            admitted("2026-12-02T12:00:00Z", DISK),
            admitted("2026-12-02T11:00:00Z", DISK),
            admitted("2026-12-02T11:00:00Z"),
        ]
    )
    assert [(each.requests, each.use.tier, each.use.action, each.use.rule) for each in found] == [
        (3, "disk", "store", "policy.csv:3"),
        (1, "host", "load", None),
    ]
    assert (found[0].first, found[0].last) == ("2026-12-02T10:00:00Z", "2026-12-02T12:00:00Z")


def test_tenants_and_versions_are_told_apart() -> None:
    other = admitted("2026-12-02T10:00:00Z", DISK, tenant="globex")
    newer = admitted("2026-12-02T10:00:00Z", DISK) | {"policy_version": "v2"}
    assert len(find_unenforced([admitted("2026-12-02T10:00:00Z", DISK), other, newer])) == 3


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"event": "request.refused", "unenforced": [DISK], "time": "2026-12-02T10:00:00Z"},
        admitted("2026-12-02T10:00:00Z", "disk:store", None, 7),
        admitted("2026-12-02T10:00:00Z") | {"unenforced": "disk"},
        admitted("2026-12-02T10:00:00Z", DISK) | {"time": None},
    ],
)
def test_other_events_and_damaged_ones_are_left_out(event: dict[str, Any]) -> None:
    assert find_unenforced([event]) == []
