"""`kvcustody policy explain`: why something is allowed or denied."""

from typing import Annotated, Any

import typer

from kvcustody.cli.common import ConfigOption, JsonOption, print_json, print_line, print_table
from kvcustody.cli.policy_source import load_answers
from kvcustody.config import load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.policy import ModelFacts
from kvcustody.policy.tooling.answers import Answer, Obligations
from kvcustody.policy.tooling.explanation import Explanation
from kvcustody.policy.tooling.explanation import explain as explain_question
from kvcustody.policy.tooling.quantities import write_duration, write_size
from kvcustody.policy.tooling.questions import UnknownNameError, ask

_FIELDS = {"who": "WHO", "tier": "TIER", "action": "ACTION"}


def explain(
    who: Annotated[str, typer.Argument(help="A tenant, TENANT/WORKLOAD or user:NAME.")],
    tier: Annotated[
        str,
        typer.Argument(
            help="A tier; a group for share; a tenant or * for erase, rotate, audit-read and "
            "policy-write."
        ),
    ],
    action: Annotated[str, typer.Argument(help="Such as store, load, share, erase.")],
    model: Annotated[str | None, typer.Option(help="Name of the request's model.")] = None,
    revision: Annotated[str | None, typer.Option(help="Its revision.")] = None,
    lora: Annotated[str | None, typer.Option(help="Name of the request's LoRA adapter.")] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Say whether something is allowed, and why: every rule that was considered."""
    answers = load_answers(load_settings(config))
    try:
        question = ask(
            who, tier, action, answers.decisions.facts, ModelFacts(model, revision, lora)
        )
    except UnknownNameError as error:
        raise ConfigurationError(str(error), field=_FIELDS[error.part]) from None
    found = explain_question(answers, question)
    if json_:
        print_json(_describe(found, answers.decisions.version))
        return
    deciding = found.deciding
    print_line(f"{found.answer.word}: {who} {action} on {tier}")
    print_line(f"  {f'{deciding.name}: {deciding.text}' if deciding else 'no rule allows it'}")
    for text in (*describe_obligations(found.answer.obligations), *found.notes):
        print_line(f"  {text}")
    print_line(f"  policy version {answers.decisions.version}")
    if found.considered:
        print_line("")
        print_table(
            ["rule", "counts", "why", "text"],
            [
                [each.rule.name, "yes" if each.counts else "no", each.why, each.rule.text]
                for each in found.considered
            ],
        )


def describe_obligations(obligations: Obligations) -> list[str]:
    """Obligations for people, one a line."""
    lines = []
    if obligations.ttl is not None:
        lines.append(f"blocks live at most {write_duration(obligations.ttl)}")
    if obligations.quota is not None:
        lines.append(f"the tenant keeps at most {write_size(obligations.quota)} there")
    if obligations.max_classification is not None:
        lines.append(f"cleared for data up to {obligations.max_classification}")
    return lines


def describe_limits(answer: Answer) -> dict[str, float | int | None]:
    """What an answer limits, for scripts."""
    return {"ttl": answer.obligations.ttl, "quota": answer.obligations.quota}


def _describe(found: Explanation, version: str) -> dict[str, Any]:
    answer = found.answer
    return {
        "decision": answer.word,
        "rule": answer.rule,
        "policy_version": version,
        "enforced": answer.enforced,
        "obligations": {
            **describe_limits(answer),
            "max_classification": answer.obligations.max_classification,
        },
        "notes": list(found.notes),
        "considered": [
            {
                "rule": each.rule.name,
                "text": each.rule.text,
                "counts": each.counts,
                "why": each.why,
            }
            for each in found.considered
        ],
    }
