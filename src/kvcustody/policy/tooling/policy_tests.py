"""Tests of a policy: questions with the answers that reviewers expect, in YAML."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from kvcustody.config.documents import DocumentKind, read_document
from kvcustody.config.loading import explain_invalid
from kvcustody.config.places import Places, dotted
from kvcustody.config.section import Section
from kvcustody.config.values import Duration
from kvcustody.errors import ConfigurationError
from kvcustody.policy.decisions import Question
from kvcustody.policy.facts import Facts, ModelFacts
from kvcustody.policy.tooling.answers import Answers
from kvcustody.policy.tooling.explanation import Explanation, explain
from kvcustody.policy.tooling.quantities import write_duration
from kvcustody.policy.tooling.questions import UnknownNameError, ask, model_words

_TEST_FILE = DocumentKind(
    "a file of policy tests",
    most_mebibytes=16,
    missing="no such file",
    empty="expected 'tests:' and a list below it",
)


def _as_list(value: object) -> list[object]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        # Pydantic reports no TypeError.
        raise ValueError("write a name or a list of names")
    return value


def _check_rule_name(name: str) -> str:
    if not re.fullmatch(r"[^/]+:[1-9][0-9]*", name):
        raise ValueError("write the name of a rule: its file and line, such as policy.csv:9")
    return name


_Word = Annotated[str, StringConstraints(min_length=1, strict=True)]
_Words = Annotated[list[_Word], BeforeValidator(_as_list)]
# Not only spaces: whoever reviews a test must see what it is for.
_Reason = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True, strict=True)]


class _Entry(Section):
    """One entry of a test file; lists stand for every combination."""

    who: _Words
    what: _Words
    tier: _Words
    expected: Literal["allow", "deny"]
    why: _Reason
    model: _Word | None = None
    revision: _Word | None = None
    lora: _Word | None = None
    # Name of the rule that should decide, such as policy.csv:9.
    rule: Annotated[_Word, AfterValidator(_check_rule_name)] | None = None
    # How long blocks should live at most, as rules say; tenant and tier may say less.
    ttl: Duration | None = None

    @model_validator(mode="after")
    def _check_ttl(self) -> "_Entry":
        if self.ttl is not None and self.expected == "deny":
            raise ValueError("what is denied has no ttl; leave it out")
        return self


class _File(Section):
    tests: Annotated[list[_Entry], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class PolicyTest:
    """One question, and what its answer should be.

    Args:
        question: what is asked.
        expected: `allow` or `deny`.
        why: what it is for.
        rule: name of the rule that should decide; `None`: any.
        ttl: how long rules should let blocks live, in seconds; `None`: as may be.
        file: the file that has it.
        line: its 1-based line.

    """

    question: Question
    expected: str
    why: str
    rule: str | None
    ttl: float | None
    file: Path
    line: int

    @property
    def name(self) -> str:
        """The question in words."""
        question = self.question
        words = (question.who, question.action.value, "on", question.tier)
        return " ".join((*words, *model_words(question.model)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test went.

    Args:
        test: the test.
        explanation: the answer, and its reasons.
        problems: what isn't as expected; none if it passed.

    """

    test: PolicyTest
    explanation: Explanation
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all is as expected."""
        return not self.problems


def read_tests(path: Path, facts: Facts) -> list[PolicyTest]:
    """Read a file of tests.

    Args:
        path: the file.
        facts: what custody.yaml says of tenants and tiers.

    Raises:
        ConfigurationError: the file can't be read, or something in it is wrong.

    """
    document = read_document(path, _TEST_FILE)
    try:
        entries = _File.model_validate(document.data).tests
    except ValidationError as error:
        raise explain_invalid(error.errors()[0], document.places) from None
    return [
        test
        for index, entry in enumerate(entries)
        for test in _expand(index, entry, document.places, path, facts)
    ]


def run_tests(
    tests: Sequence[PolicyTest], answers: Answers, stands_for: Mapping[str, str] | None = None
) -> list[Outcome]:
    """Ask each question, and compare its answer with what is expected.

    Args:
        tests: the tests.
        answers: what answers.
        stands_for: names of policy files in tests, and of the files that are tested instead.

    """
    return [_run(test, answers, stands_for or {}) for test in tests]


def _expand(
    index: int, entry: _Entry, places: Places, path: Path, facts: Facts
) -> Iterator[PolicyTest]:
    # As in rules, `none` is no adapter's name.
    model = ModelFacts(entry.model, entry.revision, None if entry.lora == "none" else entry.lora)
    fields = {"who": "who", "tier": "tier", "action": "what"}
    for who, what, tier in product(entry.who, entry.what, entry.tier):
        try:
            question = ask(who, tier, what, facts, model)
        except UnknownNameError as error:
            place = ("tests", index, fields[error.part])
            raise ConfigurationError(str(error), path, places.line(place), dotted(place)) from None
        line = places.line(("tests", index))
        yield PolicyTest(question, entry.expected, entry.why, entry.rule, entry.ttl, path, line)


def _run(test: PolicyTest, answers: Answers, stands_for: Mapping[str, str]) -> Outcome:
    explanation = explain(answers, test.question)
    answer = explanation.answer
    problems: list[str] = []
    if answer.word != test.expected:
        problems.append(f"expected {test.expected}, got {answer.word}")
    if test.rule is not None:
        file, _, line = test.rule.rpartition(":")
        expected = f"{stands_for.get(file, file)}:{line}"
        if answer.rule != expected:
            problems.append(f"expected {expected} to decide, but {answer.rule or 'no rule'} did")
    if test.ttl is not None and answer.allowed and answer.limits.ttl != test.ttl:
        given = answer.limits.ttl
        limit = "no limit" if given is None else write_duration(given)
        problems.append(f"expected ttl {write_duration(test.ttl)}, got {limit}")
    return Outcome(test, explanation, tuple(problems))
