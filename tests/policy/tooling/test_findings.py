"""What `policy check` warns of."""

from pathlib import Path

import pytest

from kvcustody.config.places import Places
from kvcustody.policy import Facts
from kvcustody.policy.decisions import Mismatch
from kvcustody.policy.facts import TenantFacts, TierFacts
from kvcustody.policy.loading import policy_errors
from kvcustody.policy.rules import read_rules
from kvcustody.policy.tooling.findings import Finding, FindingKind, find_warnings
from policy_loading import FACTS

pytestmark = pytest.mark.unit

PLACES = Places(
    Path("custody.yaml"),
    {("tenants", "acme"): 11, ("tenants", "globex"): 12, ("host",): 3, ("tiers", 0): 5},
)
EVERYTHING = "p, *, local, *, *, allow"


def warnings(folder: Path, *lines: str, facts: Facts = FACTS) -> list[Finding]:
    policy = folder / "policy.csv"
    policy.write_text("\n".join(lines), encoding="utf-8")
    rule_set = read_rules(policy)
    assert policy_errors(rule_set, facts) == []
    return find_warnings(rule_set.rules, facts, PLACES)


def kinds(folder: Path, *lines: str, facts: Facts = FACTS) -> list[tuple[FindingKind, int]]:
    return [(each.kind, each.line) for each in warnings(folder, *lines, facts=facts)]


def test_nothing_is_said_of_a_policy_in_which_every_rule_counts(tmp_path: Path) -> None:
    lines = ("p, all, local, *, *, allow", "g, acme, all, local", "g, globex, all, local")
    assert warnings(tmp_path, *lines, "p, acme, local, disk, *, deny, lora=any") == []


def test_a_line_written_twice_names_the_first(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, EVERYTHING, "# comment", EVERYTHING)
    policy = tmp_path / "policy.csv"
    assert str(found) == f"{policy}:3: is written on line 1, too"
    assert found.kind == FindingKind.REPEATED


def test_a_rule_without_effect_names_the_one_that_leaves_it_none(tmp_path: Path) -> None:
    denial = "p, acme, local, disk, *, deny"
    (found,) = warnings(tmp_path, EVERYTHING, denial, "p, acme, local, disk, load, allow")
    assert (found.kind, found.line) == (FindingKind.NO_EFFECT, 3)
    assert found.message == f"never has an effect: policy.csv:2 denies all of it ({denial})"


def test_a_role_that_no_permission_is_about_is_found(tmp_path: Path) -> None:
    lines = (EVERYTHING, "g, acme, lost, local", "g, lost, nowhere, local")
    unused = FindingKind.UNUSED_ROLE
    assert kinds(tmp_path, *lines) == [(unused, 2), (unused, 3)]
    assert kinds(tmp_path, *lines, "p, nowhere, local, disk, load, deny") == []


def test_a_tenant_that_no_rule_is_about_is_found_where_it_stands(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, "p, acme, local, *, *, allow")
    assert found.kind == FindingKind.TENANT_WITHOUT_RULE
    assert str(found).startswith("custody.yaml:12: no rule is about tenant 'globex'")
    workload = "p, globex/chat, local, *, *, allow"
    assert warnings(tmp_path, "p, acme, local, *, *, allow", workload) == []


@pytest.mark.parametrize(
    "lines",
    [
        ("p, *, local, host, *, allow",),
        (EVERYTHING, "p, *, local, disk, *, deny"),
        (EVERYTHING, "p, *, local, label:fast, *, deny, region=eu-*"),
        ("p, *, local, host, *, allow", "p, *, local, disk, *, allow, region=us-*"),
    ],
)
def test_a_tier_that_nobody_may_use_is_found_where_it_stands(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    found = warnings(tmp_path, *lines)[-1]
    assert str(found) == "custody.yaml:5: nobody may store or load on tier 'disk'"


def test_a_tier_that_a_workload_alone_may_use_is_used(tmp_path: Path) -> None:
    lines = ("p, *, local, host, *, allow", "p, acme/chat, local, disk, load, allow")
    assert warnings(tmp_path, *lines) == []
    denied = "p, *, local, disk, *, deny, model=llama*"
    assert warnings(tmp_path, EVERYTHING, denied) == []


def test_host_memory_that_nobody_may_use_is_found(tmp_path: Path) -> None:
    found = warnings(tmp_path, "p, *, local, disk, *, allow")
    assert [(each.kind, each.file, each.line) for each in found] == [
        (FindingKind.TIER_WITHOUT_HOST, tmp_path / "policy.csv", 1),
        (FindingKind.UNUSED_TIER, Path("custody.yaml"), 3),
    ]
    assert "acme, globex may not do it on 'host'" in found[0].message


def test_a_tenant_who_may_use_a_tier_but_not_host_memory_is_named(tmp_path: Path) -> None:
    lines = ("p, *, local, disk, *, allow", "p, globex, local, host, *, allow")
    (found,) = warnings(tmp_path, *lines, "p, acme, local, host, load, allow")
    assert (found.kind, found.line) == (FindingKind.TIER_WITHOUT_HOST, 1)
    assert "'disk', and acme may not" in found.message


def test_a_permission_on_a_tier_that_data_may_not_lie_on_is_found(tmp_path: Path) -> None:
    tiers = {
        "host": TierFacts("memory", 3),
        "disk": TierFacts("filesystem", 1, region="us-east-1"),
        "vault": TierFacts("filesystem", 3, region="eu-west-1"),
    }
    tenants = {"acme": TenantFacts(3), "globex": TenantFacts(0, ("eu-*",))}
    facts = Facts("local", tiers, tenants)
    roles = ("g, acme, all, local", "g, globex, all, local")
    general = (EVERYTHING, *roles)
    found = warnings(tmp_path, *general, "p, all, local, kind:filesystem, load, allow", facts=facts)
    # The role's rule has no effect beside the one for everybody, which leaves it to clearances.
    wider = [each.message for each in found if each.kind == FindingKind.WIDER_THAN_CLEARANCE]
    assert wider == [
        f"'acme' may not use 'disk' all the same: {Mismatch.CLASSIFICATION.value}",
        f"'globex' may not use 'disk' all the same: {Mismatch.RESIDENCY.value}",
    ]
    level = "p, all, local, disk, load, allow, classification<=internal region=eu-*"
    assert FindingKind.WIDER_THAN_CLEARANCE not in {
        each.kind for each in warnings(tmp_path, *general, level, facts=facts)
    }


def test_quotas_are_said_not_to_be_enforced_once(tmp_path: Path) -> None:
    quota = "p, {}, local, disk, store, allow, quota<={}GiB"
    lines = (
        "p, *, local, *, *, allow, ttl<=1h",
        quota.format("acme", 1),
        quota.format("globex", 2),
    )
    assert kinds(tmp_path, *lines) == [(FindingKind.QUOTA, 2)]


def test_a_policy_of_ten_megabytes_is_checked(tmp_path: Path) -> None:
    lines = [f"p, acme/w{n}, local, disk, load, allow, model=some-model-{n}" for n in range(10_000)]
    text = "\n".join([EVERYTHING, *lines, "# " + "x" * 10_000_000])
    found = kinds(tmp_path, text)
    assert found == [(FindingKind.NO_EFFECT, line) for line in range(2, 10_002)]
