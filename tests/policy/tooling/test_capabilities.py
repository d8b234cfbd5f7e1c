"""What `policy check` takes for possible is possible, at least."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcustody.policy import Decisions, Facts, ModelFacts, Question, Rule
from kvcustody.policy.terms import TermsReader
from kvcustody.policy.tooling.capabilities import MOVES, Capabilities, Use
from kvcustody.policy.tooling.reach import Reach
from random_policies import TIERS, WHO, models, policies

pytestmark = pytest.mark.unit

some_models = st.lists(models, min_size=3, max_size=3)


def uses(facts: Facts, rules: list[Rule]) -> dict[str, set[Use]]:
    reader = TermsReader(facts.classifications)
    capabilities = Capabilities(rules, facts, Reach(rules, facts), reader)
    return {who: set(capabilities.uses(who)) for who in WHO}


@settings(max_examples=150)
@given(policies(), some_models)
def test_whoever_may_use_a_tier_is_known_to(
    policy: tuple[Facts, list[Rule]], asked: list[ModelFacts]
) -> None:
    facts, rules = policy
    found = uses(facts, rules)
    decisions = Decisions(rules, facts, "version")
    for who, tier, action, model in product(WHO, TIERS, MOVES, asked):
        if decisions.answer(Question(who, tier, action, model)).allowed:
            assert Use(tier, action) in found[who]


def test_random_policies_leave_out_some_and_not_all() -> None:
    """Else the property above would say nothing."""
    seen: set[bool] = set()

    @settings(max_examples=50, database=None, derandomize=True)
    @given(policies())
    def look(policy: tuple[Facts, list[Rule]]) -> None:
        facts, rules = policy
        for found in uses(facts, rules).values():
            seen.update(Use(tier, action) in found for tier, action in product(TIERS, MOVES))

    look()
    assert seen == {True, False}
