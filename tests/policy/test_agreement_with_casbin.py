"""The compiled decisions answer what Casbin's plain enforcer answers."""

from pathlib import Path

import casbin
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kvcustody.identity.principal import Principal
from kvcustody.policy import Action, Decisions, Facts, ModelFacts, Question, Rule
from kvcustody.policy.facts import TenantFacts, TierFacts
from kvcustody.policy.model import casbin_request, plain_enforcer
from random_policies import WHO, models, policies, questions

pytestmark = pytest.mark.unit

EXAMPLES = 250
QUESTIONS = 12


@settings(max_examples=EXAMPLES)
@given(policies(), st.lists(questions, min_size=QUESTIONS, max_size=QUESTIONS))
def test_every_answer_is_casbins(policy: tuple[Facts, list[Rule]], asked: list[Question]) -> None:
    of, rules = policy
    note("\n".join(rule.text for rule in rules))
    decisions = Decisions(rules, of, "version")
    enforcer = plain_enforcer(rules, of)
    enforcer.add_named_grouping_policies(
        "g", [[who, who.partition("/")[0], "prod"] for who in [*WHO, "stranger/chat"] if "/" in who]
    )
    by_name = {rule.name: rule for rule in rules}
    for question in asked:
        decision = decisions.answer(question)
        note(f"{question} → {decision}")
        assert decision.allowed == enforcer.enforce(*casbin_request(question, of))
        if decision.rule is not None:
            assert by_name[decision.rule].fields[4] == ("allow" if decision.allowed else "deny")


@settings(max_examples=EXAMPLES)
@given(policies(), st.sampled_from([who for who in WHO if "/" in who]), models)
def test_what_is_decided_at_once_is_what_is_answered_one_by_one(
    policy: tuple[Facts, list[Rule]], who: str, model: ModelFacts
) -> None:
    of, rules = policy
    note("\n".join(rule.text for rule in rules))
    decisions = Decisions(rules, of, "version")
    for tier, decided in decisions.decide(Principal(*who.split("/")), model).items():
        assert decided.store == decisions.answer(Question(who, tier, Action.STORE, model))
        assert decided.load == decisions.answer(Question(who, tier, Action.LOAD, model))


def test_the_questions_have_both_answers_for_every_action() -> None:
    """Else the comparison above would compare nothing."""
    seen: set[tuple[Action, bool]] = set()

    @settings(max_examples=4 * EXAMPLES, database=None, derandomize=True)
    @given(policies(), st.lists(questions, min_size=QUESTIONS, max_size=QUESTIONS))
    def ask(policy: tuple[Facts, list[Rule]], asked: list[Question]) -> None:
        decisions = Decisions(policy[1], policy[0], "version")
        seen.update((each.action, decisions.answer(each).allowed) for each in asked)

    ask()
    assert seen == {(action, allowed) for action in Action for allowed in (True, False)}


def test_casbins_fast_enforcer_agrees_where_it_is_compared_in_the_benchmark() -> None:
    of = Facts("prod", {"host": TierFacts("memory", 0)}, {"acme": TenantFacts(0)}, (), ("public",))
    rules = [Rule("p", ("acme", "*", "host", "load", "allow", "*"), Path("policy.csv"), 1)]
    enforcer = plain_enforcer(rules, of, casbin.FastEnforcer)
    for action in ("store", "load"):
        question = Question("acme", "host", Action(action))
        assert enforcer.enforce(*casbin_request(question, of)) is (action == "load")
