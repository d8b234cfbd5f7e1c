"""Rules that are said to have no effect have none, and finding them takes one pass."""

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kvcustody.policy import Decisions, Facts, Question, Rule
from kvcustody.policy.facts import TenantFacts, TierFacts
from kvcustody.policy.terms import TermsReader
from kvcustody.policy.tooling.reach import Reach
from kvcustody.policy.tooling.subsumption import UselessRules
from policy_loading import FACTS, rules_of
from random_policies import policies, questions

pytestmark = pytest.mark.unit


def finder_of(rules: list[Rule], facts: Facts) -> UselessRules:
    return UselessRules(facts, Reach(rules, facts), TermsReader(facts.classifications))


def useless(*lines: str, facts: Facts = FACTS) -> dict[int, int]:
    """Lines without effect, and those that leave them none."""
    rules = rules_of(*lines)
    found = finder_of(rules, facts).find(rules)
    return {rule.line: other.line for rule, other in found}


@settings(max_examples=150)
@given(policies(), st.lists(questions, min_size=20, max_size=20))
def test_answers_stay_without_what_is_called_useless(
    policy: tuple[Facts, list[Rule]], asked: list[Question]
) -> None:
    facts, rules = policy
    found = {each.rule.line for each in finder_of(rules, facts).find(rules)}
    note(f"useless: {sorted(found)}")
    note("\n".join(f"{rule.line}: {rule.text}" for rule in rules))
    whole = Decisions(rules, facts, "version")
    rest = Decisions([rule for rule in rules if rule.line not in found], facts, "version")
    for question in asked:
        one, other = whole.answer(question), rest.answer(question)
        assert (one.allowed, one.limits) == (other.allowed, other.limits), question


def test_random_policies_have_useless_rules() -> None:
    """Else the property above would hold of nothing."""
    kinds: set[tuple[str, str]] = set()

    @settings(max_examples=100, database=None, derandomize=True)
    @given(policies())
    def look(policy: tuple[Facts, list[Rule]]) -> None:
        facts, rules = policy
        for rule, other in finder_of(rules, facts).find(rules):
            if rule.kind == "p" and rule.fields != other.fields:
                kinds.add((rule.fields[4], other.fields[4]))

    look()
    assert kinds == {("allow", "deny"), ("allow", "allow"), ("deny", "deny")}


ALLOW = "p, acme, local, disk, store, allow"


@pytest.mark.parametrize(
    "denial",
    [
        "p, acme, local, disk, store, deny",
        "p, *, *, disk, store, deny",
        "p, acme, local, *, *, deny",
        "p, acme, local, kind:filesystem, store, deny",
        "p, acme, local, label:fast, *, deny",
    ],
)
def test_an_allow_that_a_denial_covers_has_no_effect(denial: str) -> None:
    assert useless(ALLOW, denial) == {1: 2}
    assert useless(denial, ALLOW) == {2: 1}


@pytest.mark.parametrize(
    "denial",
    [
        "p, acme/chat, local, disk, store, deny",
        "p, globex, local, disk, store, deny",
        "p, acme, local, disk, load, deny",
        "p, acme, local, host, store, deny",
        "p, acme, local, kind:memory, store, deny",
        "p, acme, local, disk, store, deny, model=llama*",
        "p, acme, local, disk, store, deny, region=eu-*",
    ],
)
def test_an_allow_that_a_denial_covers_in_part_is_left_alone(denial: str) -> None:
    assert useless(ALLOW, denial) == {}


def test_a_rule_of_a_role_covers_its_members_rules() -> None:
    roles = ("g, acme, readers, local", "g, readers, everybody, local")
    broad = "p, everybody, local, *, *, allow"
    assert useless(*roles, broad, "p, acme, local, disk, load, allow") == {4: 3}
    assert useless(*roles, broad, "p, acme/chat, local, disk, load, allow") == {4: 3}
    assert useless(*roles, broad, "p, globex, local, disk, load, allow") == {}


def test_a_members_rule_does_not_cover_its_roles() -> None:
    roles = ("g, acme, readers, local", "g, globex, readers, local")
    lines = ("p, readers, local, disk, load, allow", "p, acme, local, *, *, allow")
    assert useless(*roles, *lines) == {}


def test_of_rules_that_say_the_same_the_first_stays() -> None:
    assert useless(ALLOW, ALLOW.replace("local", "*"), ALLOW) == {2: 1, 3: 1}


def test_a_stricter_limit_is_an_effect() -> None:
    broad = "p, acme, local, *, *, allow, ttl<=2h"
    assert useless(broad, f"{ALLOW}, ttl<=1h") == {}
    assert useless(broad, f"{ALLOW}, ttl<=2h quota<=1GiB") == {}
    assert useless(broad, f"{ALLOW}, ttl<=3h") == {2: 1}
    # A limit holds however many other rules allow the same without one.
    assert useless(ALLOW, broad) == {1: 2}


def test_a_rule_with_the_same_condition_covers_and_one_with_another_does_not() -> None:
    broad = "p, *, local, *, *, deny, model=llama* lora=any"
    assert useless(broad, f"{ALLOW}, lora=any ttl<=1h model=llama*") == {2: 1}
    assert useless(broad, f"{ALLOW}, lora=any") == {}


def test_a_group_written_twice_has_no_effect() -> None:
    assert useless("g, acme, readers, local", "g, acme, readers, local") == {2: 1}


def test_work_grows_with_the_number_of_rules_and_not_its_square() -> None:
    def work(tenants: int) -> int:
        names = [f"t{number}" for number in range(tenants)]
        facts = Facts(
            "local", {"host": TierFacts("memory", 0)}, {name: TenantFacts(0) for name in names}
        )
        lines = [f"g, {name}, role{number % 50}, local" for number, name in enumerate(names)]
        lines += [f"p, role{number}, local, host, load, allow" for number in range(50)]
        lines += [
            f"p, {name}, local, host, *, allow, ttl<={n + 1}h" for n, name in enumerate(names)
        ]
        lines += [f"p, {name}, local, host, store, deny, model={name}-*" for name in names]
        lines += [f"p, *, local, host, store, deny, lora={name}" for name in names]
        rules = rules_of(*lines)
        finder = finder_of(rules, facts)
        list(finder.find(rules))
        return finder.looked_up

    assert work(4_000) < 5 * work(1_000)
