"""Roles of roles: who has them, circles, and how deep they may be."""

from itertools import pairwise
from pathlib import Path

import pytest

from kvcustody.policy import Action, Decisions, Question, Rule
from kvcustody.policy.model import casbin_request, plain_enforcer
from kvcustody.policy.roles import MOST_LEVELS, Roles
from policy_loading import FACTS

pytestmark = pytest.mark.unit

FILE = Path("policy.csv")


def links(*pairs: tuple[str, str]) -> list[Rule]:
    """`g` rules, on the lines 1, 2, …"""
    return [
        Rule("g", (member, role, "local"), FILE, line)
        for line, (member, role) in enumerate(pairs, start=1)
    ]


def chain(length: int, start: str = "acme", prefix: str = "r") -> list[tuple[str, str]]:
    """So many roles, each a member of the next."""
    names = [start, *(f"{prefix}{number}" for number in range(1, length + 1))]
    return list(pairwise(names))


def problems(rules: list[Rule]) -> list[tuple[int | None, str]]:
    return [(error.line, error.message) for error in Roles(rules).problems()]


def test_a_name_has_its_own_roles_and_theirs() -> None:
    roles = Roles(links(("acme", "a"), ("a", "b"), ("globex", "c"), ("b", "d"), ("acme", "e")))
    assert roles.of(["acme"]) == {"acme", "a", "b", "d", "e"}
    assert roles.of(["b", "globex"]) == {"b", "d", "globex", "c"}
    assert roles.of(["nobody"]) == {"nobody"}
    assert roles.of([]) == frozenset()


def test_permissions_give_no_roles() -> None:
    rules = [Rule("p", ("acme", "boss", "host", "load", "allow", "*"), FILE, 1)]
    assert Roles(rules).of(["acme"]) == {"acme"}


def test_rules_that_are_left_out_give_no_roles() -> None:
    rules = links(("acme", "a"), ("acme", "b"), ("acme", "c"))
    assert Roles(rules, without={1}).of(["acme"]) == {"acme", "a", "c"}


def test_a_circle_still_has_an_answer() -> None:
    roles = Roles(links(("a", "b"), ("b", "c"), ("c", "a")))
    assert roles.of(["b"]) == {"a", "b", "c"}


def test_sound_roles_have_no_problems() -> None:
    assert problems([]) == []
    diamond = links(("acme", "a"), ("acme", "b"), ("a", "top"), ("b", "top"), ("globex", "b"))
    assert problems(diamond) == []


@pytest.mark.parametrize(
    ("pairs", "line", "circle"),
    [
        ([("a", "a")], 1, "a → a"),
        ([("a", "b"), ("b", "a")], 2, "a → b → a"),
        ([("acme", "a"), ("a", "b"), ("b", "c"), ("c", "a")], 4, "a → b → c → a"),
        ([("acme", "x"), ("acme", "a"), ("a", "b"), ("b", "a"), ("x", "y")], 4, "a → b → a"),
    ],
)
def test_a_circle_is_named_with_the_line_that_closes_it(
    pairs: list[tuple[str, str]], line: int, circle: str
) -> None:
    assert problems(links(*pairs)) == [(line, f"roles in a circle: {circle}")]


def test_a_problem_names_its_file() -> None:
    (error,) = Roles(links(("a", "a"))).problems()
    assert error.file == FILE


def test_two_circles_are_two_problems() -> None:
    found = problems(links(("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")))
    assert [line for line, _ in found] == [2, 4]


def test_a_link_that_stands_twice_is_named_by_its_first_line() -> None:
    assert problems(links(("a", "b"), ("b", "a"), ("b", "a"))) == [
        (2, "roles in a circle: a → b → a")
    ]


def test_roles_may_be_nested_as_deep_as_casbin_follows_them() -> None:
    assert problems(links(*chain(MOST_LEVELS))) == []


@pytest.mark.parametrize("order", [1, -1])
def test_who_is_one_level_too_deep_is_named_and_nobody_else(order: int) -> None:
    deep = links(*chain(MOST_LEVELS + 1))[::order]
    assert problems(deep) == [(1, f"'acme' has roles nested more than {MOST_LEVELS} deep")]
    deeper = links(*chain(MOST_LEVELS + 2))[::order]
    assert problems(deeper) == [(2, f"'r1' has roles nested more than {MOST_LEVELS} deep")]


def test_the_longest_of_several_ways_counts() -> None:
    ways = [("acme", "short"), ("acme", "r1"), *chain(MOST_LEVELS + 1)[1:]]
    assert problems(links(*ways)) == [(1, f"'acme' has roles nested more than {MOST_LEVELS} deep")]
    short_last = [("acme", "r1"), ("acme", "short"), *chain(MOST_LEVELS + 1)[1:]]
    assert len(problems(links(*short_last))) == 1


def test_a_depth_that_was_measured_for_one_member_counts_for_the_next() -> None:
    pairs = [*chain(MOST_LEVELS, start="r0"), ("globex", "r0")]
    assert problems(links(*pairs)) == [
        (len(pairs), f"'globex' has roles nested more than {MOST_LEVELS} deep")
    ]
    assert len(problems(links(*pairs, ("initech", "r0")))) == 2


@pytest.mark.parametrize("who", ["acme", "acme/chat"])
def test_casbin_agrees_at_the_limit(who: str) -> None:
    pairs = chain(MOST_LEVELS)
    top = pairs[-1][1]
    rules = [
        *links(*pairs),
        Rule("p", (top, "local", "host", "load", "allow", "*"), FILE, 99),
        Rule("p", ("acme/chat", "local", "host", "store", "deny", "*"), FILE, 100),
    ]
    question = Question(who, "host", Action.LOAD)
    assert Decisions(rules, FACTS, "version").answer(question).allowed
    assert plain_enforcer(rules, FACTS).enforce(*casbin_request(question, FACTS))


def test_casbin_goes_no_further_than_the_limit() -> None:
    """Which is why there is one."""
    pairs = chain(MOST_LEVELS + 1)
    rules = [
        *links(*pairs),
        Rule("p", (pairs[-1][1], "local", "host", "load", "allow", "*"), FILE, 99),
        Rule("p", ("acme/chat", "local", "host", "store", "deny", "*"), FILE, 100),
    ]
    question = Question("acme/chat", "host", Action.LOAD)
    assert not plain_enforcer(rules, FACTS).enforce(*casbin_request(question, FACTS))
