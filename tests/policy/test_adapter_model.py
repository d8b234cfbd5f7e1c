"""What the rows become that an adapter reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvcustody.policy import Rule
from kvcustody.policy.adapter_model import ReceivingModel, rules_of
from kvcustody.policy.rules import RuleSet
from policy_database import DENIAL, GOOD, LOAD, STORE, Lines, Rows

pytestmark = pytest.mark.unit

PLACE = Path("table")


def read(*rows: Sequence[Any]) -> RuleSet:
    model = ReceivingModel()
    Rows(*rows).load_policy(model)
    return rules_of(model, PLACE)


def problem(*rows: Sequence[Any]) -> str:
    """The one line that is wrong with one of the rows."""
    (error,) = read(*rows).problems
    assert len(str(error).splitlines()) == 1
    assert str(error).isprintable()
    return str(error)


def test_a_permission_without_terms_always_counts() -> None:
    expected = [Rule("p", (*STORE[1:], "*"), PLACE, 1)]
    for row in (STORE, (*STORE, None), (*STORE, ""), (*STORE, None, None, "")):
        assert list(read(row).rules) == expected


def test_terms_and_memberships_are_kept() -> None:
    member = ("g", "acme", "customer", "local")
    rules = read((*STORE, "ttl<=1h lora=none"), (*member, None, None)).rules
    assert [rule.text for rule in rules] == [
        "g, acme, customer, local",
        "p, acme, local, *, store, allow, ttl<=1h lora=none",
    ]


def test_the_same_rules_are_the_same_version_and_have_the_same_names_in_any_order() -> None:
    one, other = read(STORE, LOAD, DENIAL), read(DENIAL, STORE, LOAD)
    assert one == other
    assert len({rule.name for rule in one.rules}) == 3


def test_other_rules_are_another_version() -> None:
    digests = [read(*rows).digest for rows in ([], GOOD, [*GOOD, DENIAL], [*GOOD, LOAD])]
    digests.append(read(("p", "acmel", "ocal", *STORE[3:]), LOAD).digest)
    assert len(set(digests)) == 5


def test_spaces_around_a_column_count_for_nothing() -> None:
    assert read([f" {column} " for column in STORE]) == read(STORE)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (("p", "acme", None, "*", "store", "allow"), "a column is NULL that others follow"),
        ((None, *STORE[1:]), "a column is NULL that others follow"),
        (("p", "acme", "local", 7, "store", "allow"), "a column holds no text"),
        (("p", "acme", "local", [], "store", []), "a column holds no text"),
        (("p", b"acme", *STORE[2:]), "a column holds no text"),
        (("p", "ac\nme", *STORE[2:]), r"a line break or a control character; the row: p, ac\nme"),
        (("p", "ac\x1b[2Jme", *STORE[2:]), "a column holds a line break or a control character"),
        (("p", "ac\ud800me", *STORE[2:]), "a column holds a line break or a control character"),
        (("P", *STORE[1:]), "a rule's type is p or g, not 'P'; the row: P, acme, local"),
        (("p2", *STORE[1:]), "a rule's type is p or g, not 'p2'"),
        (("g2", "disk", "label:x"), "a rule's type is p or g, not 'g2'"),
        (("r", "acme"), "a rule's type is p or g, not 'r'"),
        (("", *STORE[1:]), "a rule's type is p or g, not ''"),
        ((7, *STORE[1:]), "a column holds no text"),
    ],
)
def test_a_row_that_is_no_rule_is_refused_with_its_place(row: Sequence[Any], expected: str) -> None:
    message = problem(*GOOD, row)
    assert expected in message
    assert message.startswith("table:")


def test_a_long_row_is_not_shown_whole() -> None:
    assert "more than 4096 characters" in problem(("p", "x" * 4097, *STORE[2:]))
    assert len(problem(("p", "x" * 4097, *STORE[2:]))) < 400
    assert len(problem(("P", "x" * 4096))) < 400


def test_a_misspelt_kind_does_not_vanish_where_casbin_itself_drops_it() -> None:
    """`load_policy_line` asks the model which kinds it knows, and drops the others."""
    model = ReceivingModel()
    lines = ["P, acme, local, disk, load, deny", "p, acme, local, disk, load, allow", "x9, acme"]
    Lines(*lines).load_policy(model)
    read = rules_of(model, PLACE)
    assert [rule.text for rule in read.rules] == ["p, acme, local, disk, load, allow"]
    assert len(read.problems) == 2


def test_a_rule_that_is_written_into_the_model_is_taken() -> None:
    model = ReceivingModel()
    model.model["p"]["p"].policy = [list(STORE[1:])]
    model["p"]["p"].policy.append(list(LOAD[1:]))
    model.add_policies("g", "g", [["acme", "customer", "local"]])
    assert len(rules_of(model, PLACE).rules) == 3


def test_a_text_in_place_of_columns_is_not_taken_apart() -> None:
    model = ReceivingModel()
    model.add_policy("p", "p", "acme")
    assert [rule.fields for rule in rules_of(model, PLACE).rules] == [("acme",)]


def test_others_get_their_turn_while_many_rows_are_read() -> None:
    pauses: list[None] = []
    model = ReceivingModel()
    Rows(*[STORE] * 1000).load_policy(model)
    rules_of(model, PLACE, lambda: pauses.append(None))
    assert len(pauses) > 1
