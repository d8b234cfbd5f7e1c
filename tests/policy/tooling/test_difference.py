"""Which answers change between two policies, and which follow from others."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcustody.policy import Action, Decisions, Facts, ModelFacts, Question, Rule
from kvcustody.policy.decisions import TIER_ACTIONS
from kvcustody.policy.facts import Context, TenantFacts, TierFacts
from kvcustody.policy.terms import parse_terms
from kvcustody.policy.tooling.answers import Answer, Answers, Deployed
from kvcustody.policy.tooling.difference import Change, Difference, find_difference
from kvcustody.policy.tooling.model_samples import sample_models
from policy_loading import FACTS, load
from random_policies import policies, without_errors

pytestmark = pytest.mark.unit

ALL = frozenset({"acme", "globex"})


def answers(
    folder: Path,
    *lines: str,
    facts: Facts = FACTS,
    members: frozenset[str] = ALL,
    unenforced: frozenset[str] = frozenset(),
    tier_ttl: float = 3600,
) -> Answers:
    deployed = Deployed({}, {"disk": tier_ttl}, {"manuals": members}, unenforced)
    return Answers(load(folder, *lines, facts=facts), deployed)


def between(folder: Path, old: tuple[str, ...], new: tuple[str, ...]) -> Difference:
    return find_difference(answers(folder, *old), answers(folder, *new))


def shown(changes: list[Change]) -> list[str]:
    found = []
    for change in changes:
        who, tier, action, model = change.question
        words = [who, action.value, tier, *(value for value in model if value is not None)]
        found.append(f"{' '.join(words)}: {change.old.word} → {change.new.word}")
    return found


HOST = "p, *, local, host, *, allow"
ACME = "p, acme, local, disk, load, allow"


def test_the_same_policy_has_no_difference(tmp_path: Path) -> None:
    assert between(tmp_path, (HOST, ACME), (HOST, ACME)) == Difference()


def test_other_lines_that_say_the_same_are_no_difference(tmp_path: Path) -> None:
    role = ("p, readers, *, disk, load, allow", "g, acme, readers, local")
    assert between(tmp_path, (HOST, ACME), (*role, HOST)) == Difference()


def test_a_change_names_both_answers_and_their_rules(tmp_path: Path) -> None:
    (change,) = between(tmp_path, (HOST,), (HOST, ACME)).changes
    assert (change.question.who, change.question.tier) == ("acme", "disk")
    assert (change.old.allowed, change.old.rule) == (False, None)
    assert (change.new.allowed, change.new.rule) == (True, "policy.csv:2")


def test_a_rule_for_everybody_changes_every_tenants_answers(tmp_path: Path) -> None:
    found = between(tmp_path, (HOST,), (HOST, "p, *, local, disk, load, allow"))
    assert shown(found.changes) == [
        "acme load disk: deny → allow",
        "globex load disk: deny → allow",
    ]


def test_a_workloads_change_that_is_its_tenants_is_left_out(tmp_path: Path) -> None:
    workload = "p, acme/chat, local, host, load, allow"
    found = between(tmp_path, (HOST, workload), (HOST, workload, ACME))
    assert shown(found.changes) == ["acme load disk: deny → allow"]
    assert found.exceptions == []


def test_a_workloads_own_change_is_named(tmp_path: Path) -> None:
    workload = "p, acme/chat, local, disk, load, deny"
    found = between(tmp_path, (HOST, ACME), (HOST, ACME, workload))
    assert shown(found.changes) == ["acme/chat load disk: allow → deny"]


def test_a_workload_that_keeps_what_its_tenant_loses_is_an_exception(tmp_path: Path) -> None:
    workload = "p, acme/chat, local, disk, load, allow"
    found = between(tmp_path, (HOST, ACME, workload), (HOST, workload))
    assert shown(found.changes) == ["acme load disk: allow → deny"]
    assert shown(found.exceptions) == ["acme/chat load disk: allow → allow"]


def test_models_that_rules_tell_apart_are_asked_about(tmp_path: Path) -> None:
    old = (HOST, "p, acme, local, disk, load, allow, model=llama-*|qwen")
    new = (HOST, "p, acme, local, disk, load, allow, model=llama-* lora=none")
    assert shown(between(tmp_path, old, new).changes) == ["acme load disk qwen: allow → deny"]
    adapters = (HOST, "p, acme, local, disk, load, allow, model=llama-*|qwen lora=any|none")
    assert shown(between(tmp_path, new, adapters).changes) == [
        "acme load disk llama-x x: deny → allow",
        "acme load disk qwen: deny → allow",
        "acme load disk qwen x: deny → allow",
    ]


def test_a_model_that_stays_denied_when_others_are_allowed_is_an_exception(tmp_path: Path) -> None:
    denial = "p, acme, local, disk, *, deny, lora=any"
    found = between(tmp_path, (HOST, denial), (HOST, denial, ACME))
    assert shown(found.changes) == ["acme load disk: deny → allow"]
    assert shown(found.exceptions) == ["acme load disk x: deny → deny"]


def test_a_limit_that_changes_is_a_change_of_what_is_stored(tmp_path: Path) -> None:
    rule = "p, acme, local, disk, *, allow, ttl<={} quota<=1GiB"
    found = between(tmp_path, (HOST, rule.format("30m")), (HOST, rule.format("10m")))
    (change,) = found.changes
    assert change.question.action == Action.STORE
    assert (change.old.obligations.ttl, change.new.obligations.ttl) == (1800, 600)
    # The tier's own hour is shorter than both.
    assert between(tmp_path, (HOST, rule.format("2h")), (HOST, rule.format("3h"))) == Difference()


def test_operators_rights_are_compared_for_all_tenants_and_for_those_named(tmp_path: Path) -> None:
    old = (HOST, "p, user:ann, local, *, erase, allow")
    new = (HOST, "p, user:ann, local, acme, *, deny", "p, user:ann, local, globex, erase, allow")
    found = between(tmp_path, old, (new[0], new[2]))
    assert shown(found.changes) == ["user:ann erase *: allow → deny"]
    assert shown(found.exceptions) == ["user:ann erase globex: allow → allow"]


def test_operators_of_a_role_are_compared(tmp_path: Path) -> None:
    new = (HOST, "p, ops, local, *, rotate, allow", "g, user:ann, ops, local")
    assert shown(between(tmp_path, (HOST,), new).changes) == ["user:ann rotate *: deny → allow"]


def test_sharing_needs_the_group_and_the_policy(tmp_path: Path) -> None:
    rules = (HOST, "p, *, local, manuals, share, allow")
    old = answers(tmp_path, *rules)
    new = answers(tmp_path, *rules, members=frozenset({"globex"}))
    assert shown(find_difference(old, new).changes) == ["acme share manuals: allow → deny"]


def test_denials_that_are_no_longer_enforced_are_changes(tmp_path: Path) -> None:
    old = answers(tmp_path, HOST)
    new = answers(tmp_path, HOST, unenforced=frozenset({"acme"}))
    found = find_difference(old, new).changes
    assert {each.question.who for each in found} == {"acme"}
    assert {(each.old.enforced, each.new.enforced) for each in found} == {(True, False)}
    assert ("disk", "load") in {(each.question.tier, each.question.action) for each in found}


def test_who_and_what_only_one_side_knows_is_denied_on_the_other(tmp_path: Path) -> None:
    rule = "p, *, local, *, load, allow"
    facts = Facts(
        "local",
        {**FACTS.tiers, "tape": TierFacts("filesystem", 3)},
        {"acme": TenantFacts(3), "initech": TenantFacts(3)},
    )
    old, new = answers(tmp_path, rule), answers(tmp_path, rule, facts=facts)
    assert shown(find_difference(old, new).changes) == [
        "acme load tape: deny → allow",
        "globex load host: allow → deny",
        "globex load disk: allow → deny",
        "initech load host: deny → allow",
        "initech load disk: deny → allow",
        "initech load tape: deny → allow",
    ]


def test_a_tiers_life_that_changes_is_a_change(tmp_path: Path) -> None:
    old = answers(tmp_path, "p, acme, local, *, *, allow")
    new = answers(tmp_path, "p, acme, local, *, *, allow", tier_ttl=60)
    (change,) = find_difference(old, new).changes
    assert (change.question.tier, change.new.obligations.ttl) == ("disk", 60)


def test_samples_match_the_patterns_that_they_stand_for() -> None:
    terms = [parse_terms("model=a?-*|b[cd]e|f[!g] lora!=any|none", ("public",))]
    models, complete = sample_models(terms)
    assert complete
    assert {model.name for model in models} == {None, "ax-x", "b[cd]e", "f[!g]"}
    assert {model.lora for model in models} == {None, "x"}


def test_samples_that_are_not_complete_say_so() -> None:
    bracketed = parse_terms("model=[!~]", ("public",))
    assert sample_models([bracketed]) == ((ModelFacts("[!~]"),), True)
    assert bracketed.unmet(Context(None, None, ModelFacts("[!~]"))) is None
    many = parse_terms(
        f"model={'|'.join(f'm{n}' for n in range(20))} revision={'|'.join('abcdefgh')}", ("public",)
    )
    models, complete = sample_models([many])
    assert not complete
    assert len(models) == 28


def test_most_tenants_are_not_asked_about_when_one_tenants_rules_change(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(300)]
    facts = Facts("local", dict(FACTS.tiers), {name: TenantFacts(3) for name in names})
    rules = [f"p, {name}, local, *, load, allow" for name in names]
    old = answers(tmp_path, *rules, facts=facts)
    new = answers(tmp_path, *rules, "p, t7, local, disk, load, deny", facts=facts)
    asked = []

    class Counting(Answers):
        def answer(self, question: Question) -> Answer:
            asked.append(question.who)
            return super().answer(question)

    counting = Counting(new.decisions, new.deployed)
    assert shown(find_difference(old, counting).changes) == ["t7 load disk: allow → deny"]
    assert set(asked) == {"t7"}


@settings(max_examples=100)
@given(policies(), st.data())
def test_what_is_listed_is_what_changes(
    policy: tuple[Facts, list[Rule]], data: st.DataObject
) -> None:
    facts, rules = policy
    dropped = data.draw(st.sets(st.sampled_from([rule.line for rule in rules])))
    kept = without_errors([rule for rule in rules if rule.line not in dropped], facts)
    deployed = Deployed({}, {}, {"manuals": frozenset(facts.tenants)}, frozenset())
    old = Answers(Decisions(rules, facts, "old"), deployed)
    new = Answers(Decisions(kept, facts, "new"), deployed)
    listed = {change.question for change in find_difference(old, new).changes}
    for who, tier, action in product(facts.tenants, facts.tiers, sorted(TIER_ACTIONS)):
        question = Question(who, tier, action)
        before, after = old.answer(question), new.answer(question)
        changes = before.allowed != after.allowed
        changes |= action == Action.STORE and before.obligations != after.obligations
        assert (question in listed) == changes
    for question in listed:
        assert old.answer(question) != new.answer(question)
