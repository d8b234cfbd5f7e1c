"""Sharing groups: members only, no data subjects where they are kept apart, and by the policy."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvcustody.identity.principal import Principal
from kvcustody.policy import Decisions, Sharing, SharingRefusal
from policy_loading import ACME, FACTS, load

pytestmark = pytest.mark.unit

GROUPS = {"manuals": frozenset({"acme", "globex"}), "other": frozenset({"globex"})}


def sharing(folder: Path, *lines: str, subject_tenants: frozenset[str] = frozenset()) -> Sharing:
    return Sharing(GROUPS, subject_tenants, load_sharing(folder, *lines).may_share)


def load_sharing(folder: Path, *lines: str) -> Decisions:
    return load(folder, *lines, facts=replace(FACTS, groups=tuple(GROUPS)))


def test_a_member_shares_if_the_policy_allows_it(tmp_path: Path) -> None:
    allowed = sharing(tmp_path, "p, acme, local, manuals, share, allow")
    assert allowed.refusal(ACME, "manuals") is None
    assert sharing(tmp_path).refusal(ACME, "manuals") is SharingRefusal.POLICY_DENIED


def test_a_tenant_that_is_no_member_shares_in_nothing(tmp_path: Path) -> None:
    everything = sharing(tmp_path, "p, acme, *, *, *, allow")
    assert everything.refusal(ACME, "other") is SharingRefusal.NOT_A_MEMBER
    assert everything.refusal(ACME, "unheard-of") is SharingRefusal.UNKNOWN_GROUP
    assert everything.refusal(ACME, "manuals") is None


@pytest.mark.parametrize(
    "rule",
    [
        "p, acme, local, other, share, allow",
        "p, acme, local, *, store, allow",
        "p, acme, local, host, *, allow",
        "p, globex, local, manuals, share, allow",
        "p, acme/sales, local, manuals, share, allow",
    ],
)
def test_a_rule_for_something_else_allows_no_sharing(tmp_path: Path, rule: str) -> None:
    assert sharing(tmp_path, rule).refusal(ACME, "manuals") is SharingRefusal.POLICY_DENIED


def test_a_deny_wins(tmp_path: Path) -> None:
    rules = ("p, acme, local, manuals, share, allow", "p, acme/support, local, *, share, deny")
    denied = sharing(tmp_path, *rules)
    assert denied.refusal(ACME, "manuals") is SharingRefusal.POLICY_DENIED
    assert denied.refusal(Principal("acme", "sales"), "manuals") is None


def test_to_share_is_not_to_store_nor_to_load(tmp_path: Path) -> None:
    decisions = load_sharing(tmp_path, "p, acme, local, *, share, allow")
    assert decisions.may_share(ACME, "manuals").allowed
    for tier in decisions.decide(ACME).values():
        assert not tier.store.allowed
        assert not tier.load.allowed


def test_a_data_subjects_request_shares_nothing_where_subjects_are_kept_apart(
    tmp_path: Path,
) -> None:
    rule = "p, acme, local, manuals, share, allow"
    apart = sharing(tmp_path, rule, subject_tenants=frozenset({"acme"}))
    anna = Principal("acme", "support", "anna")
    assert apart.refusal(anna, "manuals") is SharingRefusal.DATA_SUBJECT
    assert apart.refusal(ACME, "manuals") is None
    assert sharing(tmp_path, rule).refusal(anna, "manuals") is None
