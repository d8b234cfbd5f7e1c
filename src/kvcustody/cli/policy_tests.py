"""`kvcustody policy test`: run the tests of a policy."""

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree as ET

import typer

from kvcustody.cli.common import (
    ConfigOption,
    JsonOption,
    print_json,
    print_line,
    printable,
)
from kvcustody.cli.policy_source import load_answers
from kvcustody.config import load_settings
from kvcustody.errors import ConfigurationError
from kvcustody.policy.tooling.policy_tests import Outcome, read_tests, run_tests

_LINE_OF_DOTS = 80


def run(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of tests; default: tests/*.yaml beside custody.yaml's policy."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Another policy than custody.yaml's, such as a new one.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for each test.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit XML report.")] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Run tests of a policy; exit code 1 if one fails."""
    settings = load_settings(config)
    answers = load_answers(settings, policy)
    own = settings.authorization.policy
    # Without a file of the policy, they lie beside custody.yaml.
    beside = own or settings.places.file or Path()
    folder = beside.parent / "tests"
    files = files or sorted(folder.glob("*.yaml"))
    if not files:
        raise ConfigurationError("no tests: write *.yaml files there, or name some", folder)
    tests = [each for file in files for each in read_tests(file, answers.decisions.facts)]
    began = time.perf_counter()
    stands_for = {own.name: policy.name} if own and policy else {}
    outcomes = run_tests(tests, answers, stands_for)
    seconds = time.perf_counter() - began
    failed = sum(not outcome.passed for outcome in outcomes)
    if junit is not None:
        _write_junit(junit, outcomes, seconds)
    if json_:
        print_json(
            {
                "policy_version": answers.decisions.version,
                "passed": len(outcomes) - failed,
                "failed": failed,
                "seconds": round(seconds, 6),
                "tests": [_describe(outcome) for outcome in outcomes],
            }
        )
    else:
        _print_progress(outcomes, verbose=verbose)
        for outcome in outcomes:
            if not outcome.passed:
                print_line("")
                for line in _failure(outcome):
                    print_line(line)
        print_line(_summary(len(outcomes) - failed, failed, seconds))
    if failed:
        raise typer.Exit(1)


def _print_progress(outcomes: Iterable[Outcome], *, verbose: bool) -> None:
    for file, group in groupby(outcomes, key=lambda outcome: outcome.test.file):
        found = list(group)
        if verbose:
            for outcome in found:
                word = "passed" if outcome.passed else "FAILED"
                test = outcome.test
                print_line(f"{file}:{test.line}: {test.name}: {test.expected} {word}")
            continue
        marks = "".join("." if outcome.passed else "F" for outcome in found)
        for start in range(0, len(marks), _LINE_OF_DOTS):
            print_line(f"{file.name} {marks[start : start + _LINE_OF_DOTS]}")


def _failure(outcome: Outcome) -> list[str]:
    test, explanation = outcome.test, outcome.explanation
    lines = [f"FAILED {test.file}:{test.line}: {test.name}", f"  {test.why}"]
    lines += [f"  {problem}" for problem in outcome.problems]
    counting = [each for each in explanation.considered if each.counts]
    lines += [f"  {each.rule.name} {each.why}: {each.rule.text}" for each in counting]
    if not counting:
        lines.append("  no rule counts; `kvcustody policy explain` shows why")
    return [*lines, *(f"  {note}" for note in explanation.notes)]


def _summary(passed: int, failed: int, seconds: float) -> str:
    counts = [f"{passed} passed"] if passed or not failed else []
    counts += [f"{failed} failed"] if failed else []
    return f"{', '.join(counts)} in {seconds:.2f} s"


def _describe(outcome: Outcome) -> dict[str, Any]:
    test, answer = outcome.test, outcome.explanation.answer
    return {
        "file": str(test.file),
        "line": test.line,
        "who": test.question.who,
        "what": test.question.action.value,
        "tier": test.question.tier,
        "model": test.question.model.name,
        "revision": test.question.model.revision,
        "lora": test.question.model.lora,
        "expected": test.expected,
        "decision": answer.word,
        "rule": answer.rule,
        "ttl": answer.limits.ttl,
        "passed": outcome.passed,
        "problems": list(outcome.problems),
        "why": test.why,
    }


def _write_junit(path: Path, outcomes: Sequence[Outcome], seconds: float) -> None:
    failed = sum(not outcome.passed for outcome in outcomes)
    totals = {"tests": str(len(outcomes)), "failures": str(failed), "errors": "0"}
    time_taken = f"{seconds:.6f}"
    root = ET.Element("testsuites", {**totals, "time": time_taken})
    suite = ET.SubElement(
        root, "testsuite", {"name": "kvcustody policy", **totals, "time": time_taken}
    )
    for outcome in outcomes:
        test = outcome.test
        case = ET.SubElement(
            suite,
            "testcase",
            {
                "classname": printable(test.file.stem),
                "name": printable(f"{test.name}: {test.expected}"),
                "file": printable(str(test.file)),
                "line": str(test.line),
                "time": "0",
            },
        )
        if not outcome.passed:
            failure = ET.SubElement(
                case, "failure", {"message": printable("; ".join(outcome.problems))}
            )
            # Control characters are no XML, escaped or not.
            failure.text = "\n".join(printable(line) for line in _failure(outcome))
    try:
        ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigurationError(
            f"can't be written: {error.strerror}", path, field="--junit"
        ) from None
