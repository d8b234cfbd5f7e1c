"""Rules that can't mean what their author meant are refused, each with what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError
from kvcustody.policy import Decisions, Rule
from kvcustody.policy.checking import find_errors
from kvcustody.policy.facts import TenantFacts
from kvcustody.policy.loading import policy_errors
from kvcustody.policy.roles import MOST_LEVELS
from kvcustody.policy.rules import read_rules
from policy_loading import ACME, FACTS, HIGHEST, load

pytestmark = pytest.mark.unit

ALLOW = "p, acme, local, disk, load, allow"


def refusal(folder: Path, *lines: str) -> ConfigurationError:
    """What is said of a policy whose last line is wrong."""
    with pytest.raises(ConfigurationError) as caught:
        load(folder, *lines)
    assert caught.value.line == len(lines)
    assert caught.value.file == folder / "policy.csv"
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("action", ["erase", "rotate", "audit-read", "policy-write"])
@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_nobody_rules_for_everybody_on_administrative_actions(
    tmp_path: Path, action: str, effect: str
) -> None:
    error = refusal(tmp_path, ALLOW, f"p, *, local, *, {action}, {effect}")
    assert (error.field, error.message) == ("who", f"'{action}' for everybody; name who may")


@pytest.mark.parametrize(
    ("tier", "action", "field"),
    [
        ("disk", "erase", "tenant"),
        ("manuals", "audit-read", "tenant"),
        ("disk", "share", "sharing group"),
        ("acme", "share", "sharing group"),
        ("acme", "store", "tier"),
        ("manuals", "load", "tier"),
        ("kind:tape", "load", "tier"),
        ("label:slow", "load", "tier"),
        ("label:", "load", "tier"),
        ("kind:", "store", "tier"),
        ("filesystem", "store", "tier"),
        ("acme", "*", "tier"),
    ],
)
def test_what_an_action_is_about_must_be_of_its_kind(
    tmp_path: Path, tier: str, action: str, field: str
) -> None:
    error = refusal(tmp_path, ALLOW, f"p, acme, local, {tier}, {action}, allow")
    assert error.field == field
    assert error.message.startswith(f"unknown {field} '{tier}'")


@pytest.mark.parametrize(
    ("tier", "action"),
    [
        ("globex", "erase"),
        ("*", "policy-write"),
        ("manuals", "share"),
        ("*", "share"),
        ("kind:filesystem", "store"),
        ("kind:memory", "serve-peer"),
        ("label:fast", "load"),
        ("manuals", "*"),
    ],
)
def test_what_an_action_is_about_may_be_all_of_its_kind(
    tmp_path: Path, tier: str, action: str
) -> None:
    assert load(tmp_path, f"p, acme, local, {tier}, {action}, allow").version


@pytest.mark.parametrize("who", ["user:", "user:ann smith", "user:-x", "user:a/b", "User:ann"])
def test_an_operator_has_a_name_that_the_operating_system_could_give(
    tmp_path: Path, who: str
) -> None:
    assert refusal(tmp_path, f"p, {who}, local, *, erase, allow").field == "who"


@pytest.mark.parametrize("who", ["user:ann", "user:_backup", "user:a.b-c", f"user:{'x' * 64}"])
def test_an_operator_may_have_rules(tmp_path: Path, who: str) -> None:
    assert load(tmp_path, f"p, {who}, local, *, erase, allow").version


@pytest.mark.parametrize("role", ["acme", "globex", "*", "user:ann"])
def test_what_is_somebody_can_not_be_a_role(tmp_path: Path, role: str) -> None:
    """Else who has the role had what the other one has."""
    error = refusal(tmp_path, f"g, acme, {role}, local")
    assert error.field == "role"
    tenant = role in {"acme", "globex"}
    assert error.message == (
        f"'{role}' is a tenant, not a role; nobody may have what it has"
        if tenant
        else f"'{role}' can't be a role"
    )


def test_a_role_counts_in_this_deployment_alone(tmp_path: Path) -> None:
    error = refusal(tmp_path, "g, acme, readers, elsewhere")
    assert error.field == "deployment"


def test_a_circle_of_roles_is_refused_with_its_line(tmp_path: Path) -> None:
    error = refusal(tmp_path, "g, acme, a, local", "g, a, b, local", "g, b, a, local")
    assert error.message == "roles in a circle: a → b → a"


def test_roles_that_are_nested_too_deep_are_refused(tmp_path: Path) -> None:
    deep = [f"g, r{level}, r{level + 1}, local" for level in range(MOST_LEVELS)]
    assert load(tmp_path, *deep[1:], "g, acme, r1, local").version
    error = refusal(tmp_path, *deep, "g, acme, r0, local")
    assert error.message == f"'acme' has roles nested more than {MOST_LEVELS} deep"


def test_a_wrong_membership_makes_no_circle_and_gives_no_role() -> None:
    rules = load_rules("g, acme, a, local", "g, a, b, local", "g, b, a, elsewhere")
    assert [error.line for error in find_errors(rules, FACTS)] == [3]


def load_rules(*lines: str) -> list[Rule]:
    found = []
    for number, line in enumerate(lines, start=1):
        kind, *fields = line.split(", ")
        found.append(Rule(kind, tuple(fields), Path("policy.csv"), number))
    return found


@pytest.mark.parametrize("action", ["share", "erase", "audit-read"])
@pytest.mark.parametrize("term", ["model=a", "revision!=a", "lora=none"])
def test_only_actions_on_tiers_know_the_model(tmp_path: Path, action: str, term: str) -> None:
    error = refusal(tmp_path, f"p, acme, local, *, {action}, allow, {term}")
    assert (error.field, error.message) == ("terms", f"'{action}' doesn't depend on the model")


@pytest.mark.parametrize("action", ["store", "load", "serve-peer", "*"])
def test_actions_on_tiers_may_ask_for_the_model(tmp_path: Path, action: str) -> None:
    assert load(tmp_path, f"p, acme, local, *, {action}, allow, model=a lora=none").version


@pytest.mark.parametrize("limit", ["ttl<=1h", "quota<=1GiB"])
@pytest.mark.parametrize(
    ("action", "effect"),
    [
        ("load", "allow"),
        ("serve-peer", "allow"),
        ("share", "allow"),
        ("erase", "allow"),
        ("store", "deny"),
        ("*", "deny"),
    ],
)
def test_only_a_permission_to_store_has_limits(
    tmp_path: Path, action: str, effect: str, limit: str
) -> None:
    error = refusal(tmp_path, f"p, acme, local, *, {action}, {effect}, {limit}")
    assert (error.field, error.message) == ("terms", "a limit belongs to a permission to store")


def test_terms_that_can_not_be_read_are_named_on_each_line_that_has_them(tmp_path: Path) -> None:
    line = "p, acme, local, *, load, allow, nonsense"
    assert refusal(tmp_path, ALLOW, line).field == "terms"
    errors = list(find_errors(load_rules(line, line, line.replace("acme", "globex")), FACTS))
    assert [error.line for error in errors] == [1, 2, 3]


def test_the_first_of_several_mistakes_is_the_one_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, ALLOW, "p, acme, local, tape, load, allow", "nonsense", "g, a, b, local")
    assert caught.value.line == 2


def test_all_mistakes_are_found_where_all_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    wrong = ["p, nobody, local, *, load, allow"] * 50
    file.write_text("\n".join([*wrong, "nonsense"]))
    rule_set = read_rules(file)
    errors = policy_errors(rule_set, FACTS)
    assert [error.line for error in errors] == list(range(1, 52))
    assert [error.line for error in policy_errors(rule_set, FACTS, most=2)] == [1, 2, 51]


def test_a_mistake_is_found_whatever_was_right_before(tmp_path: Path) -> None:
    assert refusal(tmp_path, ALLOW, ALLOW.replace("acme", "acmee")).field == "who"
    assert refusal(tmp_path, ALLOW, ALLOW.replace("load", "lod")).field == "action"


def test_rules_that_stand_twice_are_no_mistake(tmp_path: Path) -> None:
    lines = [ALLOW, ALLOW, "g, acme, readers, local", "g, acme, readers, local"]
    assert load(tmp_path, *lines).decide(ACME)["disk"].load.rule == "policy.csv:1"


def test_a_rule_for_a_tenant_that_was_deleted_is_refused(tmp_path: Path) -> None:
    """It may be a denial that another tenant of that name would need."""
    left = replace(FACTS, tenants={"globex": TenantFacts(HIGHEST)})
    with pytest.raises(ConfigurationError, match="nobody is 'acme'") as caught:
        load(tmp_path, ALLOW, facts=left)
    assert caught.value.line == 1


@pytest.mark.parametrize("who", ["acm*", "*/chat", "acme/*", "acme*", "?cme", "**"])
def test_a_tenant_has_no_wildcards_beside_the_star_for_all(tmp_path: Path, who: str) -> None:
    assert f"nobody is '{who}'" in refusal(tmp_path, f"p, {who}, local, *, load, deny").message


def test_the_star_is_no_member_and_no_workload(tmp_path: Path) -> None:
    assert refusal(tmp_path, "g, *, readers, local").field == "who"


@pytest.mark.parametrize(
    "who",
    ["аcme", "ａcme"],  # noqa: RUF001 - look-alikes
    ids=["cyrillic", "full-width"],
)
def test_a_name_that_only_looks_like_a_tenants_is_nobodys(tmp_path: Path, who: str) -> None:
    assert refusal(tmp_path, ALLOW, f"p, {who}, local, *, load, deny").field == "who"


@pytest.mark.parametrize("word", ["lоad", "ｌoad"])  # noqa: RUF001 - look-alikes
def test_a_word_that_only_looks_like_an_action_is_none(tmp_path: Path, word: str) -> None:
    assert refusal(tmp_path, f"p, acme, local, *, {word}, deny").field == "action"


def test_a_name_that_is_almost_right_is_suggested(tmp_path: Path) -> None:
    assert "(did you mean 'acme'?)" in refusal(tmp_path, ALLOW.replace("acme", "acmee")).message
    assert "(did you mean 'disk'?)" in refusal(tmp_path, ALLOW.replace("disk", "dsk")).message


def test_of_many_tenants_a_few_are_listed(tmp_path: Path) -> None:
    many = replace(FACTS, tenants={f"t{number}": TenantFacts(0) for number in range(1200)})
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, ALLOW, facts=many)
    assert "(t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 1190 more)" in caught.value.message


def test_decisions_of_rules_that_were_not_checked_still_say_what_is_wrong_with_terms() -> None:
    with pytest.raises(ValueError, match="'nonsense' is no term"):
        Decisions(load_rules(f"{ALLOW}, nonsense"), FACTS, "version")


@pytest.mark.parametrize("role", ["acme/chat", "team/readers", "*", "user:ann"])
def test_a_role_is_not_named_like_somebody(tmp_path: Path, role: str) -> None:
    error = refusal(tmp_path, ALLOW, f"g, globex, {role}, local")
    assert (error.field, error.message) == ("role", f"'{role}' can't be a role")
