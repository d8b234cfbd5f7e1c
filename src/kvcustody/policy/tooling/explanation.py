"""Why something is allowed or denied: every rule that was considered, and why it counts or not."""

from dataclasses import dataclass

from kvcustody.policy.decisions import (
    TIER_ACTIONS,
    Mismatch,
    Question,
    context_of,
)
from kvcustody.policy.facts import HOST_TIER
from kvcustody.policy.permissions import CompiledRule
from kvcustody.policy.rules import Rule
from kvcustody.policy.terms import Condition
from kvcustody.policy.tooling.answers import NOT_IN_GROUP, Answer, Answers


@dataclass(frozen=True, slots=True)
class Considered:
    """One rule about who asks.

    Args:
        rule: as it was written.
        counts: whether it has a say.
        why: why, or why not.

    """

    rule: Rule
    counts: bool
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer with its reasons.

    Args:
        question: what was asked.
        answer: what it comes to.
        deciding: the rule that said so, if one did.
        considered: the rules about who asks, in their order.
        notes: what else one has to know.

    """

    question: Question
    answer: Answer
    deciding: Rule | None
    considered: tuple[Considered, ...]
    notes: tuple[str, ...]


def explain(answers: Answers, question: Question) -> Explanation:
    """The answer to a question, with its reasons."""
    answer = answers.answer(question)
    found = list(answers.decisions.considered(question))
    counting = [rule for rule, mismatch in found if mismatch is None]
    denied = any(rule.denies for rule in counting)
    considered = tuple(
        Considered(
            rule.rule,
            mismatch is None,
            _why_it_counts(rule, denied=denied)
            if mismatch is None
            else _why_not(mismatch, question, answers),
        )
        for rule, mismatch in found
    )
    # By what decided, not by its name: two lines may have the same one in other files.
    decisive = [rule.rule for rule in counting if rule.denies == denied]
    deciding = decisive[0] if decisive and answer.rule is not None else None
    return Explanation(
        question, answer, deciding, considered, tuple(_notes(answers, question, answer))
    )


def _why_it_counts(rule: CompiledRule, *, denied: bool) -> str:
    if rule.denies:
        return "denies"
    return "allows, but a denial wins" if denied else "allows"


def _why_not(mismatch: Mismatch | Condition, question: Question, answers: Answers) -> str:
    if isinstance(mismatch, Mismatch):
        return mismatch.value
    facts = answers.decisions.facts
    context = context_of(question, facts)
    known = {
        "model": context.model.name,
        "revision": context.model.revision,
        "lora": context.model.lora or "none",
        "region": None if context.tier is None else context.tier.region,
        "classification": None
        if context.tenant is None
        else facts.classifications[context.tenant.classification],
    }[mismatch.fact]
    found = "isn't known" if known is None else f"is {known}"
    return f"{mismatch.text} doesn't hold: {mismatch.fact} {found}"


def _notes(answers: Answers, question: Question, answer: Answer) -> list[str]:
    notes: list[str] = []
    if answers.is_outside(question):
        notes.append(NOT_IN_GROUP)
    if not (answer.allowed or answer.enforced):
        notes.append("audit-only: the denial is recorded, not enforced")
    if answer.allowed and question.action in TIER_ACTIONS and question.tier != HOST_TIER:
        host = answers.answer(question._replace(tier=HOST_TIER))
        if not host.allowed and host.enforced:
            notes.append(
                f"'{HOST_TIER}' denies it ({host.rule or 'no rule allows it'}), "
                "and everything goes through host memory"
            )
    return notes
