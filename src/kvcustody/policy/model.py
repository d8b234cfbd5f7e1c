"""Read a Casbin model and a CSV policy, and refuse what can't mean what its author meant."""

import csv
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import casbin

from kvcustody.config.values import is_name
from kvcustody.errors import ConfigurationError
from kvcustody.policy.decisions import Action, Decisions

BUILT_IN_MODEL = files("kvcustody.policy").joinpath("model.conf").read_text(encoding="utf-8")
"""The Casbin model used unless custody.yaml names another."""

_EFFECTS = ("allow", "deny")
_REQUEST_FIELDS = ["r_sub", "r_dom", "r_tier", "r_act"]
_POLICY_FIELDS = ["p_sub", "p_dom", "p_tier", "p_act", "p_eft"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a policy file.

    Args:
        kind: `p` (a permission) or `g` (a role's member).
        fields: the line's fields after the kind.
        file: the policy file.
        line: its 1-based line.

    """

    kind: str
    fields: tuple[str, ...]
    file: Path
    line: int

    @property
    def name(self) -> str:
        """How reviewers find the rule again: file name and line."""
        return f"{self.file.name}:{self.line}"


def load_policy(
    policy: Path,
    model: Path | None,
    *,
    deployment: str,
    tiers: Sequence[str],
    tenants: Collection[str],
    groups: Collection[str] = (),
) -> Decisions:
    """Read, check and compile a policy.

    Args:
        policy: CSV file of `p, subject, deployment, tier, action, allow|deny` and
            `g, member, role, deployment` lines; a sharing group stands where a tier does.
        model: Casbin model; `None` for the built-in one.
        deployment: the domain of every request.
        tiers: names of all tiers, host memory included.
        tenants: names of all tenants.
        groups: names of all sharing groups.

    Raises:
        ConfigurationError: a file can't be read, or a line of it is wrong.

    """
    model_text = BUILT_IN_MODEL if model is None else _read(model)
    policy_text = _read(policy)
    rules = list(_parse(policy_text, policy))
    for rule in rules:
        _check(rule, deployment, tiers, groups)
    _check_subjects(rules, tenants)
    enforcer = _compile(model_text, model, rules)
    for subject in {rule.fields[0] for rule in rules[:1]} | {"nobody"}:
        _try(enforcer, (subject, deployment, tiers[0], Action.LOAD.value), model)
    digest = hashlib.sha256(model_text.encode() + b"\0" + policy_text.encode())
    return Decisions(
        enforcer,
        rule_names={rule.fields: rule.name for rule in reversed(rules) if rule.kind == "p"},
        version=digest.hexdigest()[:16],
        deployment=deployment,
        tiers=tiers,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError("no such file; correct `authorization`", path) from None
    except UnicodeDecodeError:
        raise ConfigurationError("not UTF-8 text", path) from None
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", path) from None


def _parse(text: str, file: Path) -> Iterator[Rule]:
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            kind, *fields = (field.strip() for field in next(csv.reader([stripped])))
        except csv.Error as error:
            raise ConfigurationError(f"not a line of CSV: {error}", file, number) from None
        yield Rule(kind, tuple(fields), file, number)


def _check(rule: Rule, deployment: str, tiers: Sequence[str], groups: Collection[str]) -> None:
    if rule.kind == "p":
        _check_length(rule, 5, "p, subject, deployment, tier, action, allow|deny")
        _, domain, tier, action, effect = rule.fields
        _check_known(rule, "action", action, [*Action, "*"])
        _check_known(rule, "effect", effect, _EFFECTS)
        if action == Action.SHARE:
            _check_known(rule, "sharing group", tier, [*groups, "*"])
        else:
            shared = groups if action == "*" else ()
            _check_known(rule, "tier", tier, [*tiers, *shared, "*"])
        _check_known(rule, "deployment", domain, [deployment, "*"])
    elif rule.kind == "g":
        _check_length(rule, 3, "g, member, role, deployment")
        _check_known(rule, "deployment", rule.fields[2], [deployment])
    else:
        raise ConfigurationError(
            f"a line starts with p or g, not '{rule.kind}'", rule.file, rule.line
        )


def _check_length(rule: Rule, expected: int, form: str) -> None:
    if len(rule.fields) != expected or not all(rule.fields):
        raise ConfigurationError(f"expected '{form}'", rule.file, rule.line)


def _check_subjects(rules: Sequence[Rule], tenants: Collection[str]) -> None:
    """Refuse a subject that nobody can be: a denial of it would deny nothing."""
    roles = {rule.fields[1] for rule in rules if rule.kind == "g"}
    for rule in rules:
        subject = rule.fields[0]
        tenant, slash, workload = subject.partition("/")
        if subject in roles or (tenant in tenants and (not slash or is_name(workload))):
            continue
        raise ConfigurationError(
            f"nobody is '{subject}'; write a tenant of custody.yaml ({', '.join(tenants)}), "
            "TENANT/WORKLOAD, or a role that a g line gives",
            rule.file,
            rule.line,
            "subject",
        )


def _check_known(rule: Rule, field: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ConfigurationError(
            f"unknown {field} '{value}'; use one of {', '.join(known)}", rule.file, rule.line, field
        )


def _compile(model_text: str, model: Path | None, rules: Sequence[Rule]) -> casbin.Enforcer:
    try:
        parsed = casbin.Enforcer.new_model(text=model_text)
        enforcer = casbin.Enforcer(parsed)
        fields = (parsed["r"]["r"].tokens, parsed["p"]["p"].tokens)
        roles = (parsed["g"] or {}).get("g")
    except Exception as error:  # noqa: BLE001 - casbin raises whatever its parser stumbles over
        raise ConfigurationError(f"not a Casbin model: {error}".splitlines()[0], model) from None
    if fields != (_REQUEST_FIELDS, _POLICY_FIELDS):
        raise ConfigurationError(
            "the model must keep 'r = sub, dom, tier, act' and 'p = sub, dom, tier, act, eft'",
            model,
        )
    if roles is None or roles.value.replace(" ", "") != "_,_,_":
        raise ConfigurationError("the model must keep 'g = _, _, _'", model)
    for rule in rules:
        if rule.kind == "p":
            enforcer.add_named_policy("p", *rule.fields)
        else:
            enforcer.add_named_grouping_policy("g", *rule.fields)
    return enforcer


def _try(enforcer: casbin.Enforcer, request: tuple[str, ...], model: Path | None) -> None:
    try:
        enforcer.enforce(*request)
    except Exception as error:  # noqa: BLE001 - a wrong matcher shows only when evaluated
        raise ConfigurationError(f"its matcher fails: {error}".splitlines()[0], model) from None
