"""Refuse rules that can't mean what their author meant: unknown names, circles of roles."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from kvcustody.config.values import is_name
from kvcustody.errors import ConfigurationError
from kvcustody.operating_user import OPERATOR, OPERATOR_FORM
from kvcustody.policy.decisions import (
    ADMINISTRATIVE_ACTIONS,
    ANYTHING,
    EVERY_TENANT,
    Action,
)
from kvcustody.policy.facts import Facts
from kvcustody.policy.roles import Roles
from kvcustody.policy.rules import Pause, Rule, in_slices, never_pause
from kvcustody.policy.spelling import some_of, suggest
from kvcustody.policy.terms import MODEL_FACTS, UNLIMITED, parse_terms

EFFECTS = ("allow", "deny")
_ACTIONS = (*Action, "*")

_P_FORM = "p, who, deployment, tier, action, allow|deny[, terms]"
_G_FORM = "g, member, role, deployment"
_P_FIELDS = 6
_G_FIELDS = 3


def find_errors(
    rules: Sequence[Rule], facts: Facts, pause: Pause = never_pause
) -> Iterator[ConfigurationError]:
    """What is wrong with rules; a policy with any of it is not used.

    Args:
        rules: the policy's rules.
        facts: what custody.yaml says of tenants and tiers.
        pause: called now and then.

    """
    wrong: set[int] = set()
    checker = _Checker(rules, facts, pause)
    for place, rule in enumerate(in_slices(rules, pause)):
        error = checker.error(rule)
        if error is not None:
            wrong.add(place)
            yield error
    yield from Roles(rules, pause, wrong).problems()


class _Checker:
    """Checks rules one by one.

    Args:
        rules: all rules.
        facts: what custody.yaml says of tenants and tiers.
        pause: called now and then.

    """

    def __init__(self, rules: Iterable[Rule], facts: Facts, pause: Pause) -> None:
        self._facts = facts
        self._roles = {
            rule.fields[1]
            for rule in in_slices(rules, pause)
            if rule.kind == "g" and len(rule.fields) == _G_FIELDS
        }
        selectors = {selector for tier in facts.tiers.values() for selector in tier.selectors()}
        # Made once: in a large deployment, making them for each rule would be most of the work.
        self._tenants = dict.fromkeys((*facts.tenants, ANYTHING))
        self._names = dict.fromkeys((*facts.tenants, *self._roles))
        self._groups = dict.fromkeys((*facts.groups, ANYTHING))
        self._tiers = dict.fromkeys((*facts.tiers, *sorted(selectors), ANYTHING))
        self._objects = dict.fromkeys((*facts.tiers, *sorted(selectors), *facts.groups, ANYTHING))
        self._read_terms: dict[str, tuple[str | None, bool, bool]] = {}
        # What was found right once; thousands of rules differ only in whom they are about.
        self._sound: set[tuple[str, ...]] = set()

    def error(self, rule: Rule) -> ConfigurationError | None:
        """What is wrong with a rule, first things first; `None` if nothing is."""
        try:
            if rule.kind == "p":
                self._check_permission(rule)
            else:
                self._check_membership(rule)
        except ConfigurationError as error:
            return error
        return None

    def _check_permission(self, rule: Rule) -> None:
        _check_length(rule, _P_FIELDS, _P_FORM)
        who, action = rule.fields[0], rule.fields[3]
        if rule.fields[1:] not in self._sound:
            self._check_permitted(rule)
            self._sound.add(rule.fields[1:])
        if who == EVERY_TENANT and action in ADMINISTRATIVE_ACTIONS:
            raise _wrong(rule, f"'{action}' for everybody; name who may", "who")
        if who != EVERY_TENANT:
            self._check_subject(rule, who)

    def _check_permitted(self, rule: Rule) -> None:
        """Check what is permitted or denied, whoever the rule is about."""
        _, deployment, tier, action, effect, terms = rule.fields
        _check_known(rule, "action", action, _ACTIONS)
        _check_known(rule, "effect", effect, EFFECTS)
        _check_known(rule, "deployment", deployment, [self._facts.deployment, "*"])
        self._check_tier(rule, tier, action)
        self._check_terms(rule, action, effect, terms)

    def _check_membership(self, rule: Rule) -> None:
        _check_length(rule, _G_FIELDS, _G_FORM)
        member, role, deployment = rule.fields
        _check_known(rule, "deployment", deployment, [self._facts.deployment])
        # With a slash, it would look like a workload, which has what its tenant has.
        if role == EVERY_TENANT or "/" in role or role.startswith(OPERATOR):
            raise _wrong(rule, f"'{role}' can't be a role", "role")
        if self._is_tenant(role):
            raise _wrong(
                rule, f"'{role}' is a tenant, not a role; nobody may have what it has", "role"
            )
        self._check_subject(rule, member)

    def _check_tier(self, rule: Rule, tier: str, action: str) -> None:
        if tier == ANYTHING:
            return
        if action in ADMINISTRATIVE_ACTIONS:
            _check_known(rule, "tenant", tier, self._tenants)
        elif action == Action.SHARE:
            _check_known(rule, "sharing group", tier, self._groups)
        else:
            _check_known(rule, "tier", tier, self._objects if action == "*" else self._tiers)

    def _check_terms(self, rule: Rule, action: str, effect: str, terms: str) -> None:
        if terms not in self._read_terms:
            self._read_terms[terms] = self._read(terms)
        problem, about_model, limited = self._read_terms[terms]
        if problem is not None:
            raise _wrong(rule, problem, "terms")
        if about_model and action not in {Action.STORE, Action.LOAD, Action.SERVE_PEER, "*"}:
            raise _wrong(rule, f"'{action}' doesn't depend on the model", "terms")
        if limited and (effect == "deny" or action not in {Action.STORE, "*"}):
            raise _wrong(rule, "a limit belongs to a permission to store", "terms")

    def _read(self, terms: str) -> tuple[str | None, bool, bool]:
        """What is wrong with terms, whether they ask for the model, and whether they limit."""
        try:
            read = parse_terms(terms, self._facts.classifications)
        except ValueError as error:
            return str(error), False, False
        about_model = any(condition.fact in MODEL_FACTS for condition in read.conditions)
        return None, about_model, read.limits != UNLIMITED

    def _check_subject(self, rule: Rule, who: str) -> None:
        """Refuse a subject that nobody can be: a denial of it would deny nothing."""
        tenant, slash, workload = who.partition("/")
        if who in self._roles or (self._is_tenant(tenant) and (not slash or is_name(workload))):
            return
        if OPERATOR_FORM.fullmatch(who):
            return
        raise _wrong(
            rule,
            f"nobody is '{who}'{suggest(who, self._names)}; write a tenant of custody.yaml "
            f"({some_of(self._facts.tenants)}), TENANT/WORKLOAD, user:NAME, * for every tenant, or "
            "a role that a g line gives",
            "who",
        )

    def _is_tenant(self, name: str) -> bool:
        return name in self._facts.tenants


def _check_length(rule: Rule, expected: int, form: str) -> None:
    if len(rule.fields) != expected or not all(rule.fields):
        raise _wrong(rule, f"expected '{form}'", None)


def _check_known(rule: Rule, field: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise _wrong(
            rule,
            f"unknown {field} '{value}'{suggest(value, known)}; use one of {some_of(known)}",
            field,
        )


def _wrong(rule: Rule, message: str, field: str | None) -> ConfigurationError:
    return ConfigurationError(message, rule.file, rule.line, field)
