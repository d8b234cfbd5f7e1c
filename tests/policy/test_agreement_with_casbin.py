"""The compiled decisions answer what Casbin's plain enforcer answers."""

from collections.abc import Sequence
from pathlib import Path

import casbin
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from kvcustody.identity.principal import Principal
from kvcustody.policy import Action, Decisions, Facts, ModelFacts, Question, Rule
from kvcustody.policy.checking import find_errors
from kvcustody.policy.decisions import ADMINISTRATIVE_ACTIONS, TIER_ACTIONS
from kvcustody.policy.facts import TenantFacts, TierFacts
from kvcustody.policy.model import casbin_request, plain_enforcer

pytestmark = pytest.mark.unit

EXAMPLES = 250
QUESTIONS = 12

TENANTS = ("acme", "globex", "initech")
WORKLOADS = ("chat", "mail")
ROLES = ("readers", "writers", "everybody")
OPERATORS = ("user:ann", "user:bob")
LEVELS = ("public", "internal", "secret")
REGIONS = ("eu-central-1", "eu-west-1", "us-east-1")
WHO = [*TENANTS, *(f"{tenant}/{workload}" for tenant in TENANTS for workload in WORKLOADS)]

names = st.sampled_from
ranks = st.integers(0, len(LEVELS) - 1)
tiers = st.builds(
    TierFacts,
    names(["filesystem", "s3"]),
    ranks,
    st.frozensets(names(["fast", "cheap"])),
    st.none() | names(REGIONS),
)
tenants = st.builds(
    TenantFacts, ranks, st.lists(names(["eu-*", "us-east-1", "*"]), max_size=2).map(tuple)
)
facts = st.builds(
    Facts,
    st.just("prod"),
    st.fixed_dictionaries(dict.fromkeys(("host", "disk", "bucket"), tiers)),
    st.fixed_dictionaries(dict.fromkeys(TENANTS, tenants)),
    st.just(("manuals",)),
    st.just(LEVELS),
)
TIERS = ("host", "disk", "bucket")
SELECTORS = (*TIERS, "kind:s3", "kind:filesystem", "label:fast", "label:cheap", "*", "*", "*")
OF_TENANT = (
    *("region=eu-*", "region!=eu-*", "classification<=internal", "classification>=internal"),
    *("classification=secret", "classification!=public"),
)
OF_MODEL = (
    *("model=llama*", "model!=llama*", "model=llama-8b|qwen", "revision=r1", "lora=none"),
    *("lora=any", "lora!=none", "lora=support-*|none"),
)
LIMITS = ("ttl<=1h", "quota<=1GiB")
SUBJECTS = (*WHO, *ROLES, *OPERATORS)


def terms(*words: str) -> st.SearchStrategy[str]:
    some = st.lists(names(words), min_size=1, max_size=3).map(" ".join)
    return st.integers(0, 2).flatmap(lambda drawn: some if drawn == 0 else st.just("*"))


def permissions(
    who: Sequence[str],
    tiers: Sequence[str],
    actions: Sequence[str],
    effects: Sequence[str],
    words: Sequence[str],
) -> st.SearchStrategy[tuple[str, ...]]:
    fields = (names(who), names(["prod", "*"]), names(tiers), names(actions), names(effects))
    return st.tuples(st.just("p"), *fields, terms(*words))


ON_TIERS = (*OF_TENANT, *OF_MODEL)
rules_of_policies = st.one_of(
    permissions([*SUBJECTS, "*"], SELECTORS, ["store", "*"], ["allow"], [*ON_TIERS, *LIMITS]),
    permissions([*SUBJECTS, "*"], SELECTORS, ["load", "serve-peer"], ["allow"], ON_TIERS),
    permissions(
        [*SUBJECTS, "*"], SELECTORS, ["store", "load", "serve-peer", "*"], ["deny"], ON_TIERS
    ),
    permissions([*SUBJECTS, "*"], ["manuals", "*"], ["share"], ["allow", "deny"], OF_TENANT),
    permissions(
        [*ROLES, *OPERATORS, "acme"],
        ["acme", "globex", "*", "*"],
        sorted(ADMINISTRATIVE_ACTIONS),
        ["allow", "allow", "deny"],
        ["classification<=internal"],
    ),
    st.tuples(st.just("g"), names(SUBJECTS), names(ROLES), st.just("prod")),
)
models = st.builds(
    ModelFacts,
    st.none() | names(["llama-8b", "qwen", "mistral"]),
    st.none() | names(["r1", "r2"]),
    st.none() | names(["support-v1", "other"]),
)
ASKING = names([*WHO, *OPERATORS, "stranger/chat"])
questions = st.one_of(
    st.builds(Question, ASKING, names([*TIERS, "unheard-of"]), names(sorted(TIER_ACTIONS)), models),
    st.builds(Question, ASKING, names(["manuals", "unheard-of"]), st.just(Action.SHARE)),
    st.builds(Question, ASKING, names([*TENANTS, "*"]), names(sorted(ADMINISTRATIVE_ACTIONS))),
)


@st.composite
def policies(draw: st.DrawFn) -> tuple[Facts, list[Rule]]:
    """A deployment, and rules without errors for it."""
    drawn_facts = draw(facts)
    # A role that nobody has is an error, so each has a member.
    members = [("g", draw(names([*WHO, *OPERATORS])), role, "prod") for role in ROLES]
    drawn = members + draw(st.lists(rules_of_policies, min_size=10, max_size=30))
    rules = [
        Rule(kind, tuple(fields), Path("policy.csv"), line)
        for line, (kind, *fields) in enumerate(drawn, start=1)
    ]
    return drawn_facts, _without_errors(rules, drawn_facts)


def _without_errors(rules: Sequence[Rule], of: Facts) -> list[Rule]:
    kept = list(rules)
    while wrong := {error.line for error in find_errors(kept, of)}:
        kept = [rule for rule in kept if rule.line not in wrong]
    return kept


@settings(max_examples=EXAMPLES)
@given(policies(), st.lists(questions, min_size=QUESTIONS, max_size=QUESTIONS))
def test_every_answer_is_casbins(policy: tuple[Facts, list[Rule]], asked: list[Question]) -> None:
    of, rules = policy
    note("\n".join(rule.text for rule in rules))
    decisions = Decisions(rules, of, "version")
    enforcer = plain_enforcer(rules, of)
    enforcer.add_named_grouping_policies(
        "g", [[who, who.partition("/")[0], "prod"] for who in [*WHO, "stranger/chat"] if "/" in who]
    )
    by_name = {rule.name: rule for rule in rules}
    for question in asked:
        decision = decisions.answer(question)
        note(f"{question} → {decision}")
        assert decision.allowed == enforcer.enforce(*casbin_request(question, of))
        if decision.rule is not None:
            assert by_name[decision.rule].fields[4] == ("allow" if decision.allowed else "deny")


@settings(max_examples=EXAMPLES)
@given(policies(), names([who for who in WHO if "/" in who]), models)
def test_what_is_decided_at_once_is_what_is_answered_one_by_one(
    policy: tuple[Facts, list[Rule]], who: str, model: ModelFacts
) -> None:
    of, rules = policy
    note("\n".join(rule.text for rule in rules))
    decisions = Decisions(rules, of, "version")
    for tier, decided in decisions.decide(Principal(*who.split("/")), model).items():
        assert decided.store == decisions.answer(Question(who, tier, Action.STORE, model))
        assert decided.load == decisions.answer(Question(who, tier, Action.LOAD, model))


def test_the_questions_have_both_answers_for_every_action() -> None:
    """Else the comparison above would compare nothing."""
    seen: set[tuple[Action, bool]] = set()

    @settings(max_examples=4 * EXAMPLES, database=None, derandomize=True)
    @given(policies(), st.lists(questions, min_size=QUESTIONS, max_size=QUESTIONS))
    def ask(policy: tuple[Facts, list[Rule]], asked: list[Question]) -> None:
        decisions = Decisions(policy[1], policy[0], "version")
        seen.update((each.action, decisions.answer(each).allowed) for each in asked)

    ask()
    assert seen == {(action, allowed) for action in Action for allowed in (True, False)}


def test_casbins_fast_enforcer_agrees_where_it_is_compared_in_the_benchmark() -> None:
    of = Facts("prod", {"host": TierFacts("memory", 0)}, {"acme": TenantFacts(0)}, (), ("public",))
    rules = [Rule("p", ("acme", "*", "host", "load", "allow", "*"), Path("policy.csv"), 1)]
    enforcer = plain_enforcer(rules, of, casbin.FastEnforcer)
    for action in ("store", "load"):
        question = Question("acme", "host", Action(action))
        assert enforcer.enforce(*casbin_request(question, of)) is (action == "load")
