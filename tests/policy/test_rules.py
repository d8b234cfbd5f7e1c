"""Policy files as they come: other line ends, damage, size."""

import sys
from pathlib import Path

import pytest

from kvcustody.errors import ConfigurationError
from kvcustody.policy import Rule
from kvcustody.policy.rules import (
    RuleList,
    RuleSet,
    in_slices,
    let_others_run,
    make_rule,
    read_rules,
    short_turns,
)
from kvcustody.policy.terms import ALWAYS

pytestmark = pytest.mark.unit

ALLOW = "p, acme, local, disk, load, allow"
FIELDS = ("acme", "local", "disk", "load", "allow", ALWAYS)


def read(folder: Path, content: bytes | str) -> RuleSet:
    file = folder / "policy.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_rules(file)


def fields(rule_set: RuleSet) -> list[tuple[str, ...]]:
    assert not rule_set.problems
    return [rule.fields for rule in rule_set.rules]


def problem(folder: Path, content: bytes | str) -> ConfigurationError:
    """What is said of the one line of a file that is no rule."""
    rule_set = read(folder, content)
    assert not rule_set.rules
    (error,) = rule_set.problems
    assert error.file == folder / "policy.csv"
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_change_no_rule(
    tmp_path: Path, start: str, end: str
) -> None:
    rules = read(tmp_path, start + end.join([ALLOW, "", "# comment", ALLOW])).rules
    assert [(rule.kind, rule.fields, rule.line) for rule in rules] == [
        ("p", FIELDS, 1),
        ("p", FIELDS, 4),
    ]


def test_a_byte_order_mark_further_down_is_part_of_the_line(tmp_path: Path) -> None:
    rule_set = read(tmp_path, f"{ALLOW}\n\ufeff{ALLOW}\n")
    assert [error.line for error in rule_set.problems] == [2]


def test_a_quoted_field_is_read_without_its_quotes(tmp_path: Path) -> None:
    assert fields(read(tmp_path, 'p,"acme","local",disk,load,allow\n')) == [FIELDS]
    assert fields(read(tmp_path, 'p,"a,c""me",local\n')) == [('a,c"me', "local")]


@pytest.mark.parametrize("line", ['p,"acme, local', 'p,"acme"x, local'])
def test_quotes_that_do_not_close_are_named_with_their_line(tmp_path: Path, line: str) -> None:
    error = problem(tmp_path, f"# comment\n{line}\n")
    assert error.line == 2
    assert error.message.startswith("not a line of CSV: ")


def test_a_quoted_field_ends_with_its_line(tmp_path: Path) -> None:
    """Else one forgotten quote would swallow the denials below it."""
    rule_set = read(tmp_path, f'p, acme, local, disk, load, "allow\n{ALLOW}\n')
    assert [rule.line for rule in rule_set.rules][-1] == 2


def test_a_lone_carriage_return_ends_no_line(tmp_path: Path) -> None:
    """Editors show two rules there, or one; so it is neither."""
    error = problem(tmp_path, f"{ALLOW}\r{ALLOW.replace('allow', 'deny')}\n")
    assert (error.line, error.message[:19]) == (1, "not a line of CSV: ")


@pytest.mark.parametrize("inside", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_what_only_some_programs_take_for_a_line_end_is_refused(
    tmp_path: Path, inside: str
) -> None:
    error = problem(tmp_path, f"p, ac{inside}me, local, disk, load, allow\n")
    assert (error.line, str(error).isprintable()) == (1, True)


def test_what_is_not_utf_8_is_named_with_its_line_and_the_rest_is_read(tmp_path: Path) -> None:
    rule_set = read(tmp_path, f"{ALLOW}\n".encode() + b"p, acm\xe9\n" + ALLOW.encode())
    assert [(error.line, error.message) for error in rule_set.problems] == [(2, "not UTF-8 text")]
    assert [rule.line for rule in rule_set.rules] == [1, 3]


def test_a_policy_of_10_mb_is_read(tmp_path: Path) -> None:
    lines = 10 * 2**20 // len(ALLOW)
    rules = read(tmp_path, f"{ALLOW}\n" * lines).rules
    assert len(rules) == lines
    assert rules[-1] == Rule("p", FIELDS, tmp_path / "policy.csv", lines)


def test_10_mb_on_one_line_are_no_rule(tmp_path: Path) -> None:
    assert problem(tmp_path, "p," + "x" * 10 * 2**20).line == 1


def test_a_policy_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    with file.open("wb") as sparse:
        sparse.truncate(256 * 2**20 + 1)
    with pytest.raises(ConfigurationError, match="larger than 256 MiB") as caught:
        read_rules(file)
    assert caught.value.file == file


def test_the_digest_changes_with_every_byte(tmp_path: Path) -> None:
    contents = [ALLOW, f"{ALLOW}\n", f"{ALLOW}\r\n", f" {ALLOW}", f"{ALLOW}\n#", ""]
    digests = {read(tmp_path, content).digest for content in contents}
    assert len(digests) == len(contents)
    assert read(tmp_path, ALLOW).digest in digests


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        (("acme", "local", "disk", "load", "allow"), FIELDS),
        (("acme", "local", "disk", "load", "allow", ""), FIELDS),
        (("acme", "local", "disk", "load", "allow", "ttl<=1h"), (*FIELDS[:-1], "ttl<=1h")),
        (("acme",), ("acme",)),
        (("acme", "local", "disk", "load", "allow", "", ""), (*FIELDS[:-1], "", "")),
    ],
)
def test_a_permission_without_terms_always_counts(
    written: tuple[str, ...], read_as: tuple[str, ...]
) -> None:
    assert make_rule("p", written, Path("db"), 3) == Rule("p", read_as, Path("db"), 3)


def test_a_membership_has_no_terms() -> None:
    assert make_rule("g", ("a", "b", "c", "d", "e"), Path("db"), 3).fields[-1] == "e"


def test_a_rule_is_shown_as_one_writes_it() -> None:
    assert make_rule("p", FIELDS[:-1], Path("x"), 1).text == ALLOW
    limited = Rule("p", (*FIELDS[:-1], "ttl<=1h"), Path("x"), 1)
    assert limited.text == f"{ALLOW}, ttl<=1h"
    assert Rule("g", ("acme", "role", "*"), Path("x"), 1).text == "g, acme, role, *"


def test_rules_in_columns_are_the_rules_that_were_added() -> None:
    file = Path("policy.csv")
    added = [
        Rule("p", FIELDS, file, 1),
        Rule("g", ("acme", "role", "local"), file, 5),
        Rule("p", ("globex", *FIELDS[1:]), file, 9),
        Rule("p", ("acme",), file, 10),
    ]
    rules = RuleList(file)
    for rule in added:
        rules.append(rule)
    assert len(rules) == 4
    assert list(rules) == added
    assert [rules[place] for place in range(4)] == added
    assert rules[-1] == added[-1]
    assert rules[1:3] == added[1:3]
    assert rules[::-1] == added[::-1]
    with pytest.raises(IndexError):
        rules[4]
    same = RuleList(file)
    for rule in rules:
        same.append(rule)
    assert same == rules
    same.append(added[0])
    assert same != rules
    rules.append(Rule("p", (), file, 11))
    assert rules[4].fields == ("",), "wrong in any case"


def test_long_work_pauses_and_leaves_nothing_out() -> None:
    pauses: list[None] = []
    items = list(range(100_000))
    assert list(in_slices(items, lambda: pauses.append(None))) == items
    assert 1 < len(pauses) < len(items) / 10
    let_others_run()


def test_turns_are_short_only_while_they_must_be() -> None:
    before = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == before
    with pytest.raises(ValueError, match="nothing"), short_turns():
        int("nothing")
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(
    "line",
    [
        "p, ac\x1b[2Jme, local, disk, load, allow",
        "p, ac\u2028me, local, disk, load, allow",
        "p\x1b[31m, acme",
        "p, ac\u202eme, local, disk, load, allow",
        "p, acme\u200b, local, disk, load, allow",
        "p, acme\0, local, disk, load, allow",
        "p, acme, local, disk, load\0, allow",
        "p, acme, local, disk, load, allow, model=a\tlora=none",
    ],
)
def test_a_field_that_would_reach_a_terminal_raw_is_refused_without_being_quoted(
    tmp_path: Path, line: str
) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(f"{line}\np, acme, local, disk, load, allow\n", encoding="utf-8")
    read = read_rules(file)
    (problem,) = read.problems
    assert (problem.line, str(problem).isprintable()) == (1, True)
    assert [rule.line for rule in read.rules] == [2]


def test_a_line_of_absurd_length_is_refused_without_being_quoted(tmp_path: Path) -> None:
    file = tmp_path / "policy.csv"
    file.write_text(f"p, acme, local, disk, load, allow, {'x' * 100_000}\n", encoding="utf-8")
    (problem,) = read_rules(file).problems
    assert len(problem.message) < 200


@pytest.mark.parametrize("end", ["\r", "\u2028", "\x0b"])
def test_a_rule_that_hides_in_a_comment_is_refused(tmp_path: Path, end: str) -> None:
    error = problem(tmp_path, f"# no, thanks{end}p, acme, local, *, *, deny\n")
    assert (error.line, str(error).isprintable()) == (1, True)
    assert fields(read(tmp_path, f"#\tas said\n{ALLOW}\n")) == [FIELDS]
