"""Files of policy tests: what is refused, and what a test holds an answer against."""

from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError
from kvcustody.policy.tooling.answers import Answers, Deployed
from kvcustody.policy.tooling.policy_tests import Outcome, read_tests, run_tests
from policy_loading import FACTS, load

pytestmark = pytest.mark.unit

GOOD = """\
tests:
  - who: acme
    what: store
    tier: disk
    expected: allow
    why: It may.
"""
RULES = ("p, acme, local, *, *, allow, ttl<=1h", "p, *, local, disk, *, deny, lora=any")


def write(folder: Path, text: str) -> Path:
    path = folder / "tests.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def run(folder: Path, text: str, *, name: str = "policy.csv") -> list[Outcome]:
    answers = Answers(load(folder, *RULES), Deployed({}, {"disk": 60}, {}, frozenset()))
    return run_tests(read_tests(write(folder, text), FACTS), answers, {name: "policy.csv"})


def problems(folder: Path, extra: str, *, name: str = "policy.csv") -> tuple[str, ...]:
    (outcome,) = run(folder, GOOD + extra, name=name)
    return outcome.problems


def test_a_list_stands_for_every_combination(tmp_path: Path) -> None:
    text = GOOD.replace("acme", "[acme/chat, globex]").replace("store", "[store, load]")
    outcomes = run(tmp_path, text)
    assert [outcome.test.name for outcome in outcomes] == [
        "acme/chat store on disk",
        "acme/chat load on disk",
        "globex store on disk",
        "globex load on disk",
    ]
    assert [outcome.passed for outcome in outcomes] == [True, True, False, False]
    assert {outcome.test.line for outcome in outcomes} == {2}


def test_a_test_asks_with_the_model_that_it_names(tmp_path: Path) -> None:
    assert problems(tmp_path, "    model: llama\n    revision: r\n") == ()
    assert problems(tmp_path, "    lora: mine\n") == ("expected allow, got deny",)


def test_a_test_may_name_the_rule_that_decides(tmp_path: Path) -> None:
    assert problems(tmp_path, "    rule: policy.csv:1\n") == ()
    assert problems(tmp_path, "    rule: policy.csv:2\n") == (
        "expected policy.csv:2 to decide, but policy.csv:1 did",
    )


def test_a_rule_of_the_policy_in_use_means_the_same_line_of_the_one_that_is_tested(
    tmp_path: Path,
) -> None:
    assert problems(tmp_path, "    rule: used.csv:1\n", name="used.csv") == ()


def test_a_test_may_name_the_limit_that_rules_give(tmp_path: Path) -> None:
    assert problems(tmp_path, "    ttl: 60m\n") == ()
    assert problems(tmp_path, "    ttl: 2h\n") == ("expected ttl 2h, got 1h",)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("who: acme", "who: acmee", 2, "tests[0].who: nobody is 'acmee' (did you mean 'acme'?)"),
        ("who: acme", "who: acme/", 2, "tests[0].who: nobody is 'acme/'"),
        ("who: acme", "who: []", 2, "tests[0].who: write a name or a list of names"),
        ("who: acme", "who: {a: b}", 2, "tests[0].who: write a name or a list of names"),
        ("who: acme", "who: [acme, 7]", 2, "tests[0].who[1]: input should be a valid string"),
        ("what: store", "what: read", 3, "tests[0].what: unknown action 'read'"),
        ("what: store", "what: erase", 4, "tests[0].tier: unknown tenant 'disk'"),
        ("what: store", "what: share", 4, "tests[0].tier: unknown sharing group 'disk'"),
        ("tier: disk", "tier: tape", 4, "tests[0].tier: unknown tier 'tape'"),
        ("tier: disk", "teir: disk", 2, "tests[0].tier: required field is missing"),
        ("expected: allow", "expected: yes", 5, "tests[0].expected: input should be 'allow' or"),
        ("why: It may.", "why: ' '", 6, "tests[0].why: "),
        ("    why: It may.\n", "", 2, "tests[0].why: required field is missing; add it"),
        ("why: It may.", "why: x\n    ttl: 1", 7, "tests[0].ttl: write a duration"),
        ("why: It may.", "why: x\n    rule: '9'", 7, "tests[0].rule: write the name of a rule"),
        ("why: It may.", "why: x\n    because: y", 7, "tests[0].because: unknown field"),
        ("allow", "deny\n    ttl: 1h", 2, "tests[0]: what is denied has no ttl"),
        ("tests:", "test:", 1, "tests: required field is missing"),
        ("why: It may.", "why: x\n    why: y", 7, "tests[0].why: written twice"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        read_tests(path, FACTS)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")


@pytest.mark.parametrize("text", ["", "- a\n", "tests: []\n", "tests: x\n", "tests: [x]\n", "{"])
def test_what_is_no_file_of_tests_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        read_tests(path, FACTS)
    assert caught.value.file == path
    assert "\n" not in str(caught.value)


def test_no_adapter_is_asked_about_by_the_word_that_rules_have_for_it(tmp_path: Path) -> None:
    assert problems(tmp_path, "    lora: none\n") == ()
    assert problems(tmp_path, "    lora: nobody\n") != ()
