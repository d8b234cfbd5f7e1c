"""Hold compiled answers against those of Casbin's own enforcer, which is the reference."""

from collections.abc import Iterator, Sequence
from itertools import islice, product

from kvcustody.operating_user import OPERATOR
from kvcustody.policy.decisions import (
    ADMINISTRATIVE_ACTIONS,
    TIER_ACTIONS,
    Action,
    Decisions,
    Question,
)
from kvcustody.policy.facts import Facts
from kvcustody.policy.model import casbin_request, plain_enforcer
from kvcustody.policy.rules import Rule

MOST_RULES = 2_000
"""With more, Casbin takes seconds."""
MOST_QUESTIONS = 200


def sample_questions(rules: Sequence[Rule], facts: Facts) -> list[Question]:
    """Questions about tenants, tiers and actions, spread evenly if there are too many for all."""
    names = {rule.fields[0]: None for rule in rules}
    operators = [name for name in names if name.startswith(OPERATOR)]
    workloads = [name for name in names if name.partition("/")[0] in facts.tenants]
    who = list(dict.fromkeys((*facts.tenants, *workloads)))
    total = len(who) * (len(facts.tiers) * len(TIER_ACTIONS) + len(facts.groups))
    total += len(operators) * len(ADMINISTRATIVE_ACTIONS) * (len(facts.tenants) + 1)
    step = -(-total // MOST_QUESTIONS) if total else 1
    # Not in step with the number of tiers or actions, or some would never be asked about.
    step += 1 - step % 2 if step > 1 else 0
    return list(islice(_questions(who, operators, facts), 0, None, step))


def disagreements(
    rules: Sequence[Rule], decisions: Decisions, questions: Sequence[Question]
) -> list[Question]:
    """Questions that Casbin's enforcer answers otherwise.

    Args:
        rules: the policy's rules, checked.
        decisions: what was compiled from them.
        questions: what to ask.

    """
    enforcer = plain_enforcer(rules, decisions.facts)
    return [
        question
        for question in questions
        if enforcer.enforce(*casbin_request(question, decisions.facts))
        != decisions.answer(question).allowed
    ]


def _questions(who: Sequence[str], operators: Sequence[str], facts: Facts) -> Iterator[Question]:
    on_tiers = sorted(TIER_ACTIONS)
    for name in who:
        for tier, action in product(facts.tiers, on_tiers):
            yield Question(name, tier, action)
        for group in facts.groups:
            yield Question(name, group, Action.SHARE)
    for operator, tenant in product(operators, ("*", *facts.tenants)):
        for action in sorted(ADMINISTRATIVE_ACTIONS):
            yield Question(operator, tenant, action)
