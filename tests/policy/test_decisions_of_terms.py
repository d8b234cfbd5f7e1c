"""Decisions by more than names: limits, clearance, regions, labels, operators, modes."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvcustody.identity.principal import Principal
from kvcustody.policy import Action, Decision, Decisions, Facts, Limits, ModelFacts, Question, Rule
from kvcustody.policy import decisions as decisions_module
from kvcustody.policy.decisions import Mismatch
from kvcustody.policy.facts import TenantFacts, TierFacts
from policy_loading import ACME, FACTS, load

pytestmark = pytest.mark.unit

LEVELS = ("public", "internal", "secret")
EU, US = "eu-central-1", "us-east-1"
PLACES = Facts(
    "local",
    {
        "host": TierFacts("memory", 2),
        "disk": TierFacts("filesystem", 1, frozenset({"fast", "own"}), EU),
        "bucket": TierFacts("s3", 0, frozenset({"cheap"}), US),
        "attic": TierFacts("s3", 2, frozenset({"own"}), None),
    },
    {
        "open": TenantFacts(0),
        "inner": TenantFacts(1),
        "closed": TenantFacts(2),
        "european": TenantFacts(0, ("eu-*",)),
        "somewhere": TenantFacts(0, ("us-west-*", "us-east-?")),
    },
    ("manuals",),
    LEVELS,
)
EVERYTHING = "p, *, *, *, *, allow"


def decided(decisions: Decisions, tenant: str, model: ModelFacts | None = None) -> str:
    """Where the tenant may load, such as `host disk`."""
    asked = (Principal(tenant, "chat"),) if model is None else (Principal(tenant, "chat"), model)
    return " ".join(tier for tier, each in decisions.decide(*asked).items() if each.load.allowed)


def answer(decisions: Decisions, who: str, tier: str, action: str) -> Decision:
    return decisions.answer(Question(who, tier, Action(action)))


@pytest.mark.parametrize(
    ("tenant", "where"),
    [
        ("open", "host disk bucket attic"),
        ("inner", "host disk attic"),
        ("closed", "host attic"),
        ("european", "disk"),
        ("somewhere", "bucket"),
    ],
)
def test_no_rule_allows_what_clearance_and_residency_do_not(
    tmp_path: Path, tenant: str, where: str
) -> None:
    decisions = load(tmp_path, EVERYTHING, facts=PLACES)
    assert decided(decisions, tenant) == where


def test_data_that_may_not_lie_there_is_denied_for_want_of_a_rule(tmp_path: Path) -> None:
    decisions = load(tmp_path, EVERYTHING, facts=PLACES)
    for action in ("store", "load", "serve-peer"):
        denied = answer(decisions, "closed/chat", "bucket", action)
        assert denied == Decision(False, None, max_classification="public")


def test_a_denial_counts_where_the_data_may_not_lie_anyway(tmp_path: Path) -> None:
    decisions = load(tmp_path, EVERYTHING, "p, closed, *, bucket, load, deny", facts=PLACES)
    assert answer(decisions, "closed", "bucket", "load") == Decision(
        False, "policy.csv:2", max_classification="public"
    )


def test_clearance_and_residency_are_of_tiers_alone(tmp_path: Path) -> None:
    decisions = load(tmp_path, EVERYTHING, "p, european, *, european, erase, allow", facts=PLACES)
    assert decisions.may_share(Principal("european", "chat"), "manuals").allowed
    erased = answer(decisions, "european", "european", "erase")
    assert erased == Decision(True, "policy.csv:2", max_classification=None)


def test_a_tier_named_like_a_tenant_has_no_clearance_for_administrative_actions() -> None:
    facts = replace(PLACES, tenants={"bucket": TenantFacts(2), "closed": TenantFacts(2)})
    rules = [Rule("p", ("closed", "*", "bucket", "erase", "allow", "*"), Path("x"), 1)]
    assert Decisions(rules, facts, "v").answer(Question("closed", "bucket", Action.ERASE)).allowed


def test_a_decision_says_how_sensitive_data_may_be_on_the_tier(tmp_path: Path) -> None:
    found = load(tmp_path, "p, open, *, host, load, allow", facts=PLACES).decide(
        Principal("open", "chat")
    )
    levels = {tier: each.load.max_classification for tier, each in found.items()}
    assert levels == {"host": "secret", "disk": "internal", "bucket": "public", "attic": "secret"}


@pytest.mark.parametrize(
    ("selector", "where"),
    [
        ("kind:s3", "bucket attic"),
        ("kind:memory", "host"),
        ("kind:filesystem", "disk"),
        ("label:own", "disk attic"),
        ("label:fast", "disk"),
        ("attic", "attic"),
        ("*", "host disk bucket attic"),
    ],
)
def test_a_rule_counts_for_the_tiers_of_its_selector(
    tmp_path: Path, selector: str, where: str
) -> None:
    allowing = load(tmp_path, f"p, open, *, {selector}, load, allow", facts=PLACES)
    assert decided(allowing, "open") == where
    denying = load(tmp_path, EVERYTHING, f"p, open, *, {selector}, load, deny", facts=PLACES)
    others = [tier for tier in PLACES.tiers if tier not in where.split()]
    assert decided(denying, "open").split() == others


def test_a_selector_is_no_label_of_another_kind() -> None:
    tier = TierFacts("s3", 0, frozenset({"memory"}))
    assert tier.selectors() == ("kind:s3", "label:memory")
    for selector in ("kind:memory", "label:s3", "s3", "memory", "other:s3", "other:memory", ":"):
        assert not tier.is_selected_by(selector)
    assert all(tier.is_selected_by(selector) for selector in tier.selectors())


def test_the_strictest_limits_of_all_permissions_that_count_apply(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, acme, local, *, store, allow, ttl<=2h quota<=1GiB",
        "p, acme, local, disk, *, allow, ttl<=1h",
        "p, *, local, disk, store, allow, quota<=2GiB",
        "p, globex, local, *, store, allow, ttl<=1s",
        "p, acme, local, *, store, allow, ttl<=1m model=llama-*",
    )
    found = decisions.decide(ACME)
    assert found["disk"].store == Decision(
        True, "policy.csv:1", Limits(3600.0, 2**30), "restricted"
    )
    assert found["host"].store.limits == Limits(7200.0, 2**30)
    llama = decisions.decide(ACME, ModelFacts("llama-8b"))
    assert llama["disk"].store.limits == Limits(60.0, 2**30)


def test_a_denied_decision_has_no_limits(tmp_path: Path) -> None:
    lines = ["p, acme, local, *, store, allow, ttl<=2h", "p, acme, local, disk, *, deny"]
    denied = load(tmp_path, *lines).decide(ACME)["disk"].store
    assert denied == Decision(False, "policy.csv:2", Limits(), "restricted")


def test_a_condition_decides_by_the_request_it_is_about(tmp_path: Path) -> None:
    lines = ["p, open, *, *, load, allow, model=llama-* region!=us-*"]
    decisions = load(tmp_path, *lines, facts=PLACES)
    assert decided(decisions, "open", ModelFacts("llama-8b")) == "host disk attic"
    assert decided(decisions, "open", ModelFacts("qwen")) == ""
    assert decided(decisions, "open") == "", "no model is known"
    classified = load(
        tmp_path, "p, *, *, host, load, allow, classification>=internal", facts=PLACES
    )
    assert [decided(classified, who) for who in ("open", "inner", "closed")] == ["", "host", "host"]


def test_a_principal_is_decided_for_each_model(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, acme, *, *, *, allow, lora=none", "p, acme, *, host, *, allow")
    adapted = ModelFacts("llama", "r1", "mine")
    assert decisions.decide(ACME, adapted) is decisions.decide(ACME, adapted)
    assert not decisions.decide(ACME, adapted)["disk"].load.allowed
    assert decisions.decide(ACME, ModelFacts("llama", "r1"))["disk"].load.allowed


def test_a_star_means_no_administrative_action(tmp_path: Path) -> None:
    decisions = load(tmp_path, "p, *, *, *, *, allow", "p, acme, *, *, *, allow")
    found = {action: answer(decisions, "acme", "*", action).allowed for action in Action}
    assert {action for action, allowed in found.items() if allowed} == {
        Action.STORE,
        Action.LOAD,
        Action.SHARE,
        Action.SERVE_PEER,
    }


def test_an_operator_may_do_what_its_rules_and_roles_say(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, user:ann, local, acme, erase, allow",
        "p, auditors, local, *, audit-read, allow",
        "p, user:bob, local, globex, audit-read, deny",
        "g, user:bob, auditors, local",
    )
    assert answer(decisions, "user:ann", "acme", "erase").rule == "policy.csv:1"
    assert not answer(decisions, "user:ann", "globex", "erase").allowed
    assert not answer(decisions, "user:ann", "*", "erase").allowed
    assert not answer(decisions, "user:ann", "acme", "rotate").allowed
    assert not answer(decisions, "user:ann", "acme", "audit-read").allowed
    assert answer(decisions, "user:bob", "acme", "audit-read").allowed
    assert answer(decisions, "user:bob", "*", "audit-read").allowed
    assert not answer(decisions, "user:bob", "globex", "audit-read").allowed


def test_a_workload_has_what_its_tenant_has_and_not_the_other_way(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, acme, local, disk, load, allow",
        "p, acme/support, local, disk, store, allow",
        "g, acme/support, readers, local",
        "p, readers, local, host, load, allow",
    )
    assert answer(decisions, "acme/support", "disk", "load").allowed
    assert answer(decisions, "acme/support", "host", "load").allowed
    assert not answer(decisions, "acme", "disk", "store").allowed
    assert not answer(decisions, "acme", "host", "load").allowed
    assert not answer(decisions, "acme/support/more", "disk", "load").allowed


def test_a_workload_is_classified_as_its_tenant_is(tmp_path: Path) -> None:
    decisions = load(tmp_path, EVERYTHING, facts=PLACES)
    assert not answer(decisions, "closed/chat", "disk", "load").allowed
    assert answer(decisions, "inner/chat", "disk", "load").allowed


def test_where_a_tenant_is_not_enforced_denials_are_only_noted(tmp_path: Path) -> None:
    lines = ["p, *, local, host, *, allow, ttl<=1h", "p, acme, local, disk, store, deny"]
    decisions = load(tmp_path, *lines, unenforced={"acme"})
    found = decisions.decide(ACME)
    assert found["disk"].store == Decision(True, "policy.csv:2", Limits(), "restricted", True)
    assert found["disk"].load == Decision(True, None, Limits(), "restricted", True)
    assert found["host"].load == Decision(True, "policy.csv:1", Limits(3600.0), "restricted", False)
    shared = decisions.may_share(ACME, "manuals")
    assert (shared.allowed, shared.unenforced) == (False, False)
    other = decisions.decide(Principal("globex", "support"))
    assert not other["disk"].store.allowed
    assert not other["disk"].store.unenforced
    assert not answer(decisions, "acme/support", "disk", "store").allowed, "what the policy says"


def test_sharing_is_decided_once_for_a_workload(tmp_path: Path) -> None:
    lines = ["p, acme, *, manuals, share, allow", "p, acme/sales, *, manuals, share, deny"]
    decisions = load(tmp_path, *lines)
    first = decisions.may_share(ACME, "manuals")
    assert first == Decision(True, "policy.csv:1")
    assert decisions.may_share(Principal("acme", "support", "someone"), "manuals") is first
    assert decisions.may_share(Principal("acme", "sales"), "manuals").rule == "policy.csv:2"
    assert not decisions.may_share(Principal("globex", "support"), "manuals").allowed
    assert not decisions.may_share(ACME, "others").allowed


def test_the_first_of_several_rules_that_say_the_same_is_named(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "g, acme, readers, local",
        "p, acme, local, disk, store, allow",
        "p, *, *, disk, load, allow",
        "p, acme, local, disk, load, allow",
        "p, readers, local, disk, load, allow",
    )
    assert decisions.decide(ACME)["disk"].load.rule == "policy.csv:3"
    assert answer(decisions, "acme/support", "disk", "load").rule == "policy.csv:3"


def test_all_rules_about_who_asks_are_considered_each_with_its_reason(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, closed, *, bucket, store, allow",
        "p, closed/chat, *, disk, load, allow",
        "p, closed, *, bucket, load, allow, region=us-* model=llama-*",
        "p, closed, *, bucket, load, allow",
        "p, open, *, bucket, load, allow",
        "p, all, *, kind:s3, *, deny, region=us-*",
        "g, closed, all, local",
        "p, closed, *, label:fast, load, allow",
        facts=PLACES,
    )
    question = Question("closed/chat", "bucket", Action.LOAD)
    found = list(decisions.considered(question))
    assert [rule.rule.line for rule, _ in found] == [1, 2, 3, 4, 6, 8]
    assert [rule.order for rule, _ in found] == [0, 1, 2, 3, 5, 7]
    assert [rule.denies for rule, _ in found] == [False, False, False, False, True, False]
    assert [getattr(why, "text", why) for _, why in found] == [
        Mismatch.ACTION,
        Mismatch.TIER,
        "model=llama-*",
        Mismatch.CLASSIFICATION,
        None,
        Mismatch.TIER,
    ]
    abroad = Question("european", "bucket", Action.LOAD)
    everything = load(tmp_path, EVERYTHING, facts=PLACES)
    assert [why for _, why in everything.considered(abroad)] == [Mismatch.RESIDENCY]


def test_a_version_keeps_what_custody_yaml_said(tmp_path: Path) -> None:
    assert load(tmp_path).facts is FACTS
    assert Decisions([], FACTS, "seven").version == "seven"


def test_rules_that_differ_in_one_thing_all_count(tmp_path: Path) -> None:
    decisions = load(
        tmp_path,
        "p, acme, *, disk, load, allow",
        "p, acme, *, host, load, allow",
        "p, acme, *, host, store, allow",
        "p, acme, *, host, store, deny, lora=any",
        "p, acme, *, host, store, deny, model=qwen",
    )
    found = decisions.decide(ACME)
    assert [found[tier].load.rule for tier in ("host", "disk")] == ["policy.csv:2", "policy.csv:1"]
    assert found["host"].store.allowed
    assert decisions.decide(ACME, ModelFacts("qwen"))["host"].store.rule == "policy.csv:5"
    assert not decisions.decide(ACME, ModelFacts("llama", None, "mine"))["host"].store.allowed


def test_what_was_decided_is_not_worked_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decisions = load(tmp_path, EVERYTHING)
    found, shared = decisions.decide(ACME), decisions.may_share(ACME, "manuals")
    monkeypatch.delattr(Decisions, "_answer")
    assert decisions.decide(ACME) is found
    assert decisions.may_share(ACME, "manuals") is shared
    with pytest.raises(AttributeError):
        decisions.decide(Principal("globex", "support"))


def test_only_so_many_principals_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions_module, "_MOST_DECIDED", 3)
    decisions = load(tmp_path, EVERYTHING)
    names = ["a", "b", "c", "d"]
    decided_first = [decisions.decide(Principal("acme", name)) for name in names]
    decisions.may_share(ACME, "manuals")
    kept = [decisions.decide(Principal("acme", name)) for name in names[::-1]]
    assert [new is old for new, old in zip(kept, decided_first[::-1], strict=True)] == [
        True,
        True,
        True,
        False,
    ]


def test_the_parts_of_a_version_are_all_that_must_be_freed(tmp_path: Path) -> None:
    decisions = load(tmp_path, "g, acme, readers, local", "p, readers, *, *, load, allow")
    found = decisions.decide(ACME)
    parts = list(decisions.parts())
    assert any(part is found for part in parts)
    assert {"acme", "readers"} <= {part for part in parts if isinstance(part, str)}
    assert {"readers": 0} in parts, "who has which roles"
    assert {"readers": 1} in parts, "who has which permissions"


def test_the_long_work_pauses_for_others() -> None:
    paused: list[str] = []
    rules = [Rule("p", ("acme", "*", "*", "*", "allow", "*"), Path("x"), 1)]
    Decisions(rules, FACTS, "v", pause=lambda: paused.append("once"))
    assert len(paused) == 2, "for the roles and for the permissions"


def test_audit_only_overrides_rules_and_no_clearance(tmp_path: Path) -> None:
    tiers = {**FACTS.tiers, "low": TierFacts("filesystem", 0)}
    decided = load(
        tmp_path,
        "p, acme, local, disk, store, deny",
        facts=replace(FACTS, tiers=tiers),
        unenforced={"acme"},
    ).decide(ACME)
    assert (decided["disk"].store.allowed, decided["disk"].store.unenforced) == (True, True)
    assert (decided["low"].store.allowed, decided["low"].load.allowed) == (False, False)
