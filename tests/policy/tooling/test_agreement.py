"""The sample of answers that `policy check` holds against Casbin's enforcer."""

import pytest

from kvcustody.policy import Action, Decisions, Facts, Question
from kvcustody.policy.facts import TenantFacts
from kvcustody.policy.tooling.agreement import MOST_QUESTIONS, disagreements, sample_questions
from policy_loading import FACTS, rules_of

pytestmark = pytest.mark.unit

RULES = rules_of(
    "p, readers, local, *, load, allow",
    "p, acme/chat, local, disk, load, deny",
    "g, acme, readers, local",
    "p, user:ann, local, *, erase, allow",
)


def test_a_small_deployment_is_asked_about_as_a_whole() -> None:
    asked = sample_questions(RULES, FACTS)
    assert {question.who for question in asked} == {"acme", "globex", "acme/chat", "user:ann"}
    assert {question.tier for question in asked} == {*FACTS.tiers, *FACTS.tenants, "manuals", "*"}
    assert {question.action for question in asked} == set(Action)


def test_of_a_large_one_a_sample_has_every_tier_and_action() -> None:
    tenants = {f"t{number}": TenantFacts(0) for number in range(500)}
    facts = Facts("local", FACTS.tiers, tenants, ("manuals",))
    asked = sample_questions([], facts)
    assert 150 < len(asked) <= MOST_QUESTIONS
    assert {question.tier for question in asked} == {*FACTS.tiers, "manuals"}
    assert len({question.who for question in asked}) > 100


def test_answers_of_the_same_rules_agree() -> None:
    decisions = Decisions(RULES, FACTS, "version")
    assert disagreements(RULES, decisions, sample_questions(RULES, FACTS)) == []


def test_answers_of_other_rules_disagree() -> None:
    decisions = Decisions(RULES[1:], FACTS, "version")
    found = disagreements(RULES, decisions, sample_questions(RULES, FACTS))
    assert Question("acme", "host", Action.LOAD) in found
    assert Question("globex", "host", Action.LOAD) not in found
