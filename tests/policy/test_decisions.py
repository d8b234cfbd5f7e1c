import threading
from pathlib import Path

import pytest

from kvcustody.identity.principal import Principal
from kvcustody.policy import Decision, Decisions, TierDecision
from policy_loading import ACME, load

pytestmark = pytest.mark.unit


def answers(decisions: Decisions, principal: Principal = ACME) -> dict[str, str]:
    """What is allowed, by tier, such as `{"host": "store load", "disk": ""}`."""
    return {
        tier: " ".join(
            action
            for action, decision in (("store", found.store), ("load", found.load))
            if decision.allowed
        )
        for tier, found in decisions.decide(principal).items()
    }


def test_what_no_rule_allows_is_denied(tmp_path: Path) -> None:
    denied = Decision(allowed=False, rule=None, max_classification="restricted")
    assert load(tmp_path).decide(ACME) == {
        "host": TierDecision(denied, denied),
        "disk": TierDecision(denied, denied),
    }


@pytest.mark.parametrize(
    ("tier", "action", "expected"),
    [
        ("*", "*", {"host": "store load", "disk": "store load"}),
        ("disk", "*", {"host": "", "disk": "store load"}),
        ("*", "load", {"host": "load", "disk": "load"}),
        ("host", "store", {"host": "store", "disk": ""}),
    ],
)
def test_an_allow_counts_for_its_tier_and_action(
    tmp_path: Path, tier: str, action: str, expected: dict[str, str]
) -> None:
    assert answers(load(tmp_path, f"p, acme, local, {tier}, {action}, allow")) == expected


def test_an_allow_for_all_deployments_counts_here(tmp_path: Path) -> None:
    assert answers(load(tmp_path, "p, acme, *, disk, load, allow"))["disk"] == "load"


def test_an_allow_counts_for_nobody_else(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, acme, local, *, *, allow")
    for other in ("globex", "acm", "acme2", "Acme", "acme/support", "*"):
        assert answers(decisions, Principal(other, "support")) == {"host": "", "disk": ""}


def test_a_rule_for_a_workload_counts_for_no_other_workload(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, acme/support, local, *, *, allow")
    assert answers(decisions)["disk"] == "store load"
    for other in (
        Principal("acme", "sales"),
        Principal("globex", "support"),
        Principal("support", "acme"),
    ):
        assert answers(decisions, other)["disk"] == ""


def test_a_subject_changes_no_decision(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, acme, local, *, *, allow")
    assert decisions.decide(Principal("acme", "support", "alice")) == decisions.decide(ACME)


def test_members_have_what_their_role_has(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, offloaders, local, *, *, allow",
        "p, readers, local, *, load, allow",
        "g, acme, offloaders, local",
        "g, globex/search, readers, local",
    )
    assert answers(decisions)["disk"] == "store load"
    assert answers(decisions, Principal("globex", "search"))["disk"] == "load"
    assert answers(decisions, Principal("globex", "support"))["disk"] == ""


def test_a_role_may_be_a_member_of_a_role(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, everybody, local, *, load, allow",
        "g, offloaders, everybody, local",
        "g, acme, offloaders, local",
    )
    assert answers(decisions)["disk"] == "load"


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "denial",
    [
        "p, acme, local, disk, store, deny",
        "p, acme/support, local, disk, store, deny",
        "p, offloaders, *, disk, store, deny",
    ],
)
def test_a_deny_wins_over_every_allow_whatever_their_order(
    tmp_path: Path, denial: str, order: int
) -> None:
    lines = ["p, acme, local, *, *, allow", "p, acme/support, local, disk, store, allow", denial]
    decisions = load(tmp_path, "g, acme, offloaders, local", *lines[::order])
    assert answers(decisions) == {"host": "store load", "disk": "load"}


def test_a_decision_names_the_rule_behind_it(tmp_path: Path) -> None:
    decided = load(
        tmp_path,
        "# comment",
        "p, acme, local, *, *, allow",
        "p, acme, local, disk, store, deny",
    ).decide(ACME)
    found = (decided["host"].store, decided["disk"].load, decided["disk"].store)
    assert [(decision.allowed, decision.rule) for decision in found] == [
        (True, "policy.csv:2"),
        (True, "policy.csv:2"),
        (False, "policy.csv:3"),
    ]


def test_a_rule_written_twice_is_named_by_its_first_line(tmp_path: Path) -> None:
    line = "p, acme, local, *, *, allow"
    decided = load(tmp_path, line, line).decide(ACME)
    assert decided["disk"].load.rule == "policy.csv:1"


def test_a_principal_is_decided_once_whatever_its_subject(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, acme, local, *, *, allow")
    first = decisions.decide(ACME)
    assert decisions.decide(Principal("acme", "support", "another subject")) is first
    assert decisions.decide(Principal("acme", "sales")) is not first


def test_a_decision_can_not_be_changed_by_whoever_got_it(tmp_path: Path) -> None:
    decided = load(tmp_path).decide(ACME)
    with pytest.raises(TypeError):
        decided["host"] = TierDecision(Decision(True, None), Decision(True, None))  # type: ignore[index]  # on purpose


def test_threads_that_ask_at_once_get_the_same_answers(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, acme, local, *, load, allow")
    together = threading.Barrier(4)
    found: list[dict[str, str]] = []

    def ask() -> None:
        together.wait(5)
        found.extend(
            answers(decisions, Principal("acme", f"workload-{number}")) for number in range(10)
        )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [{"host": "load", "disk": "load"}] * 40
