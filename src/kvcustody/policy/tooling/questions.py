"""Questions as people write them, checked: a misspelt name would get an answer about nobody."""

from collections.abc import Collection
from typing import NoReturn

from kvcustody.config.values import is_name
from kvcustody.operating_user import OPERATOR_FORM
from kvcustody.policy.decisions import ADMINISTRATIVE_ACTIONS, ANYTHING, Action, Question
from kvcustody.policy.facts import UNKNOWN_MODEL, Facts, ModelFacts
from kvcustody.policy.spelling import some_of, suggest


class UnknownNameError(ValueError):
    """A question names what doesn't exist.

    Args:
        part: `who`, `tier` or `action`.
        message: what is wrong with it and what to write.

    """

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


def ask(
    who: str, tier: str, action: str, facts: Facts, model: ModelFacts = UNKNOWN_MODEL
) -> Question:
    """A question of names.

    Args:
        who: a tenant, `TENANT/WORKLOAD` or `user:NAME`.
        tier: a tier; a group for `share`; a tenant or `*` for administrative actions.
        action: what is to be done.
        facts: what custody.yaml says of tenants and tiers.
        model: the model of the request.

    Raises:
        UnknownNameError: there is nobody or nothing of that name.

    """
    if action not in set(Action):
        _refuse("action", "action", action, list(Action))
    _check_who(who, facts)
    if action in ADMINISTRATIVE_ACTIONS:
        if tier != ANYTHING and tier not in facts.tenants:
            _refuse("tier", "tenant", tier, [*facts.tenants, ANYTHING])
    elif action == Action.SHARE:
        if tier not in facts.groups:
            _refuse("tier", "sharing group", tier, facts.groups)
    elif tier not in facts.tiers:
        _refuse("tier", "tier", tier, facts.tiers)
    return Question(who, tier, Action(action), model)


def model_words(model: ModelFacts) -> list[str]:
    """What is known of a model, as rules name it: `model=…`, `revision=…`, `lora=…`."""
    names = zip(("model", "revision", "lora"), model, strict=True)
    return [f"{name}={value}" for name, value in names if value is not None]


def _check_who(who: str, facts: Facts) -> None:
    tenant, slash, workload = who.partition("/")
    if tenant in facts.tenants and (not slash or is_name(workload)):
        return
    if OPERATOR_FORM.fullmatch(who):
        return
    known = list(facts.tenants)
    likely = suggest(tenant, known)
    raise UnknownNameError(
        "who",
        f"nobody is '{who}'{likely}; write a tenant of custody.yaml ({some_of(known)}), "
        "TENANT/WORKLOAD or user:NAME",
    )


def _refuse(part: str, what: str, value: str, known: Collection[str]) -> NoReturn:
    choice = f"use one of {some_of(known)}" if known else "custody.yaml has none"
    raise UnknownNameError(part, f"unknown {what} '{value}'{suggest(value, known)}; {choice}")
