"""`kvcustody policy diff`: which answers change from one policy to another."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kvcustody.cli.common import ConfigOption, JsonOption, print_json, print_line, print_table
from kvcustody.cli.policy_source import load_answers
from kvcustody.config import Settings, load_settings
from kvcustody.policy import UNKNOWN_MODEL
from kvcustody.policy.decisions import Action
from kvcustody.policy.spelling import some_of
from kvcustody.policy.tooling.answers import Answer, Answers
from kvcustody.policy.tooling.difference import Change, find_difference
from kvcustody.policy.tooling.quantities import write_duration, write_size
from kvcustody.policy.tooling.questions import model_words

_SIDE = "A policy's CSV file, for the current custody.yaml, or another custody.yaml."
# Nobody reads more, and a table of thousands takes a minute.
_MOST_ROWS = 500
_YAML = {".yaml", ".yml"}


def diff(
    old: Annotated[Path, typer.Argument(help=_SIDE)],
    new: Annotated[Path, typer.Argument(help=_SIDE)],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if an answer changes.")
    ] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Say who may do what under one policy and not under the other."""
    loaded: dict[Path | None, Settings] = {}
    sides = [_load(side, config, loaded) for side in (old, new)]
    found = find_difference(*sides)
    versions = [side.decisions.version for side in sides]
    if json_:
        print_json(
            {
                "old": versions[0],
                "new": versions[1],
                "changes": [_describe(change) for change in found.changes],
                "exceptions": [_describe(change) for change in found.exceptions],
                "complete": found.complete,
            }
        )
    else:
        if found.changes:
            rows = _rows((*found.changes, *found.exceptions))
            columns = ["", "who", "action", "on", "model", "old", "new"]
            print_table(columns, rows[:_MOST_ROWS])
            if len(rows) > _MOST_ROWS:
                print_line(f"… and {len(rows) - _MOST_ROWS} rows more; see --json")
        if not found.complete:
            print_line(
                "Rules have too many conditions on models: not every combination was compared."
            )
        number = len(found.changes)
        print_line("1 answer changes" if number == 1 else f"{number or 'no'} answers change")
    if exit_code and found.changes:
        raise typer.Exit(1)


def _load(side: Path, config: Path | None, loaded: dict[Path | None, Settings]) -> Answers:
    file, policy = (side, None) if side.suffix in _YAML else (config, side)
    if file not in loaded:
        loaded[file] = load_settings(file)
    return load_answers(loaded[file], policy)


def _rows(changes: Sequence[Change]) -> list[list[str]]:
    """Rows of a table, one for all who have the same change, whichever rules say so."""
    grouped: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        question = change.question
        row = (
            _mark(change),
            question.action.value,
            question.tier,
            " ".join(model_words(question.model)),
            _say(question.action, change.old),
            _say(question.action, change.new),
        )
        grouped.setdefault(row, []).append(change)
    return [
        [
            mark,
            some_of([change.question.who for change in group]),
            *about,
            f"{old} ({_rules(change.old for change in group)})",
            f"{new} ({_rules(change.new for change in group)})",
        ]
        for (mark, *about, old, new), group in grouped.items()
    ]


def _rules(answers: Iterable[Answer]) -> str:
    first, *others = dict.fromkeys(answer.rule or "no rule" for answer in answers)
    return f"{first} and {len(others)} more" if others else first


def _mark(change: Change) -> str:
    if change.effect is None:
        return "="
    if change.old.allowed == change.new.allowed:
        return "~"
    return "+" if change.new.allowed else "-"


def _say(action: Action, answer: Answer) -> str:
    words = [answer.word]
    if action == Action.STORE and answer.allowed:
        ttl, quota = answer.obligations.ttl, answer.obligations.quota
        words += [f"ttl<={write_duration(ttl)}"] if ttl is not None else []
        words += [f"quota<={write_size(quota)}"] if quota is not None else []
    if not (answer.allowed or answer.enforced):
        words.append("audit-only")
    return " ".join(words)


def _describe(change: Change) -> dict[str, Any]:
    question = change.question
    model = None if question.model == UNKNOWN_MODEL else question.model._asdict()
    return {
        "who": question.who,
        "tier": question.tier,
        "action": question.action.value,
        "model": model and {"model": model.pop("name"), **model},
        "old": change.old.word,
        "new": change.new.word,
        "old_rule": change.old.rule,
        "new_rule": change.new.rule,
        "old_limits": _limits(question.action, change.old),
        "new_limits": _limits(question.action, change.new),
        "old_enforced": change.old.enforced,
        "new_enforced": change.new.enforced,
    }


def _limits(action: Action, answer: Answer) -> dict[str, float | int | None] | None:
    """What a permission to store limits; nothing else has limits."""
    if action != Action.STORE or not answer.allowed:
        return None
    return {"ttl": answer.obligations.ttl, "quota": answer.obligations.quota}
