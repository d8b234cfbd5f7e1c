"""`kvcustody policy check`: mistakes in a policy, and what has no effect."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvcustody.cli.common import ConfigOption, JsonOption, print_json, print_line
from kvcustody.config import Settings, load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.policy import Decisions, Facts, Question, facts_of
from kvcustody.policy.loading import policy_errors, read_model, version_of
from kvcustody.policy.rules import Rule, read_rules
from kvcustody.policy.tooling.agreement import MOST_RULES, disagreements, sample_questions
from kvcustody.policy.tooling.findings import Finding, FindingKind, find_warnings

# More of one kind have one cause.
_MOST_SHOWN = 50

_Problem = ConfigurationError | Finding


@dataclass(frozen=True)
class _Comparison:
    """How the comparison with Casbin went.

    Args:
        compared: how many questions were asked.
        skipped: why none were.
        disagreements: those that were answered otherwise.

    """

    compared: int = 0
    skipped: str | None = None
    disagreements: tuple[Question, ...] = ()


def check(
    policy: Annotated[
        Path | None, typer.Argument(help="Another policy than custody.yaml's, such as a new one.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")
    ] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Find mistakes and useless rules; exit code 1 for mistakes."""
    settings = load_settings(config)
    model = read_model(settings.authorization.model)
    path = policy or settings.authorization.policy_file
    rule_set = read_rules(path)
    facts = facts_of(settings)
    errors = policy_errors(rule_set, facts)
    version: str | None = None
    warnings: Sequence[Finding] = ()
    comparison = _Comparison(skipped="the policy has mistakes")
    if not errors:
        version = version_of(model, rule_set)
        warnings = find_warnings(rule_set.rules, facts, settings.places)
        comparison = _compare(rule_set.rules, facts, version)
    ok = not (errors or comparison.disagreements)
    if json_:
        print_json(
            {
                "ok": ok,
                "policy": str(path),
                "policy_version": version,
                "rules": len(rule_set.rules),
                "errors": [_describe(error) for error in errors],
                "warnings": [_describe(warning) for warning in warnings],
                "casbin": asdict(comparison),
            }
        )
    else:
        _print_findings(errors, warnings)
        print_line(_say(comparison))
        print_line(_summary(path, settings, len(rule_set.rules), len(errors), len(warnings)))
    if not ok or (strict and warnings):
        raise typer.Exit(1)


def _compare(rules: Sequence[Rule], facts: Facts, version: str) -> _Comparison:
    if len(rules) > MOST_RULES:
        return _Comparison(skipped=f"with more than {MOST_RULES} rules, Casbin takes too long")
    decisions = Decisions(rules, facts, version)
    questions = sample_questions(rules, facts)
    return _Comparison(
        len(questions), disagreements=tuple(disagreements(rules, decisions, questions))
    )


def _print_findings(errors: Sequence[ConfigurationError], warnings: Sequence[Finding]) -> None:
    for error in errors[:_MOST_SHOWN]:
        print_line(f"error: {error}")
    if len(errors) > _MOST_SHOWN:
        print_line(f"error: {len(errors) - _MOST_SHOWN} more")
    shown: Counter[FindingKind] = Counter()
    for warning in warnings:
        shown[warning.kind] += 1
        if shown[warning.kind] <= _MOST_SHOWN:
            print_line(f"warning: {warning}")
    for kind, count in shown.items():
        if count > _MOST_SHOWN:
            print_line(f"warning: {count - _MOST_SHOWN} more of kind {kind.value}; see --json")


def _say(comparison: _Comparison) -> str:
    if comparison.skipped is not None:
        return f"Not compared with Casbin's enforcer: {comparison.skipped}."
    if not comparison.disagreements:
        return f"{comparison.compared} answers compared with Casbin's enforcer: all agree."
    first = comparison.disagreements[0]
    return (
        f"error: {len(comparison.disagreements)} of {comparison.compared} answers differ from "
        f"Casbin's enforcer's, such as {first.who} {first.action.value} on {first.tier}; report it"
    )


def _summary(path: Path, settings: Settings, rules: int, errors: int, warnings: int) -> str:
    found = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}"
    return f"{path}: {_count(rules, 'rule')} for {settings.deployment}, {found}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _describe(problem: _Problem) -> dict[str, Any]:
    described: dict[str, Any] = {
        "file": None if problem.file is None else str(problem.file),
        "line": problem.line,
        "message": problem.message,
    }
    if isinstance(problem, Finding):
        return {"kind": problem.kind.value, **described}
    return {**described, "field": problem.field}
