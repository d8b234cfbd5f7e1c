"""The Casbin model that says what rules mean, and Casbin's own enforcer of it.

Decisions are compiled (`kvcustody.policy.decisions`); Casbin's enforcer is the reference that tests
and `kvcustody policy check` hold them against.
"""

from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path

import casbin

from kvcustody.errors import ConfigurationError
from kvcustody.policy.decisions import Question, cleared, context_of, covers
from kvcustody.policy.facts import Context, Facts
from kvcustody.policy.rules import Rule
from kvcustody.policy.terms import TermsReader

BUILT_IN_MODEL = files("kvcustody.policy").joinpath("model.conf").read_text(encoding="utf-8")
"""The Casbin model."""

# Casbin's names for the sections of a model.
_SECTIONS = {
    "r": "request_definition",
    "p": "policy_definition",
    "g": "role_definition",
    "e": "policy_effect",
    "m": "matchers",
}


def check_model(text: str, file: Path) -> None:
    """Check that a model says what the built-in one says; comments and spaces may differ.

    Raises:
        ConfigurationError: it is no Casbin model, or another one.

    """
    try:
        given = _definitions(text)
    except Exception as error:  # noqa: BLE001 - casbin raises whatever its parser stumbles over
        raise ConfigurationError(f"not a Casbin model: {error}".splitlines()[0], file) from None
    expected = _definitions(BUILT_IN_MODEL)
    for section, title in _SECTIONS.items():
        if given.get(section) != expected[section]:
            raise ConfigurationError(
                f"[{title}] differs from the model that this version compiles; put what you need "
                "into rules, and take the model that `kvcustody init` writes, or leave out "
                "`authorization.model`",
                file,
            )


def plain_enforcer(
    rules: Iterable[Rule], facts: Facts, enforcer_class: type = casbin.Enforcer
) -> casbin.Enforcer:
    """Casbin's enforcer of rules: slow, and the reference.

    Ask it `enforce(*casbin_request(question, facts))`.

    Args:
        rules: checked rules.
        facts: what custody.yaml says of tenants and tiers.
        enforcer_class: Casbin's class.

    """
    enforcer = enforcer_class(casbin.Enforcer.new_model(text=BUILT_IN_MODEL))
    enforcer.add_function("covers", covers)
    enforcer.add_function("cleared", lambda context: cleared(context) is None)
    enforcer.add_function("meets", _meets(facts))
    permissions: list[list[str]] = []
    memberships: list[list[str]] = []
    for rule in rules:
        (permissions if rule.kind == "p" else memberships).append(list(rule.fields))
    enforcer.add_named_policies("p", permissions)
    # A workload has whatever its tenant has.
    named = {fields[0] for fields in permissions + memberships}
    workloads = sorted(who for who in named if "/" in who)
    links = [[who, who.partition("/")[0], facts.deployment] for who in workloads]
    enforcer.add_named_grouping_policies("g", memberships + links)
    selectors = [
        [name, selector] for name, tier in facts.tiers.items() for selector in tier.selectors()
    ]
    enforcer.add_named_grouping_policies("g2", selectors)
    return enforcer


def casbin_request(question: Question, facts: Facts) -> tuple[object, ...]:
    """A question as Casbin's enforcer takes it."""
    context = context_of(question, facts)
    return (question.who, facts.deployment, question.tier, question.action.value, context)


def _meets(facts: Facts) -> Callable[[Context, str], bool]:
    terms = TermsReader(facts.classifications)

    def meets(context: Context, text: str) -> bool:
        return terms.read(text).unmet(context) is None

    return meets


def _definitions(text: str) -> dict[str, dict[str, str]]:
    model = casbin.Enforcer.new_model(text=text)
    return {
        section: {
            key: "".join(assertion.value.split()) for key, assertion in model[section].items()
        }
        for section in model.keys()  # noqa: SIM118 - casbin's model is no mapping
    }
