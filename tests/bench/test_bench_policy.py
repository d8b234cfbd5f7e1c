import json
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from command_line import Run, one_line
from kvcustody.bench.generated_policy import (
    MODEL,
    OF_MANY_ROLES,
    OF_MANY_RULES,
    TIER,
    WORKLOADS,
    generate_policy,
    generate_worst,
    tenant,
)
from kvcustody.bench.lookups import lookups
from kvcustody.bench.policy import ENFORCERS, Extent, bench_policy, enforced_once
from kvcustody.identity.principal import Principal
from kvcustody.policy import Action, Question

pytestmark = pytest.mark.unit


def test_a_generated_policy_has_as_many_rules_as_were_asked_for_and_no_mistake(
    tmp_path: Path,
) -> None:
    for size in (10, 200):
        policy = generate_policy(size, 40)
        assert len(policy.lines) == len(policy.rules()) == size
        assert TIER in policy.load(tmp_path).decide(Principal(tenant(0), WORKLOADS[0]), MODEL)
        assert generate_policy(size, 40) == policy


def test_a_generated_policy_allows_some_things_and_denies_others(tmp_path: Path) -> None:
    decisions = generate_policy(400, 40).load(tmp_path)
    found = [
        decision
        for number in range(40)
        for tier in decisions.decide(Principal(tenant(number), WORKLOADS[0]), MODEL).values()
        for decision in (tier.store, tier.load)
    ]
    assert {(each.allowed, each.rule is not None) for each in found} == {
        (True, True),
        (False, True),
        (False, False),
    }


def test_the_tenants_that_are_much_work_have_much_about_them(tmp_path: Path) -> None:
    policy = generate_worst(400, 40, 100)
    assert len(policy.lines) == 400
    decisions = policy.load(tmp_path)
    for who in (OF_MANY_ROLES, OF_MANY_RULES):
        assert len(list(decisions.considered(Question(who, TIER, Action.LOAD)))) >= 100


def test_all_contenders_have_figures(tmp_path: Path) -> None:
    told: list[None] = []
    extent = Extent(
        sizes=(10, 60),
        tenants=20,
        much=20,
        rounds=2,
        lookups=200,
        firsts=10,
        enforced=10,
        patience=30,
    )
    figures = bench_policy(tmp_path, extent, lambda: told.append(None))
    assert len(told) == extent.turns
    assert [row.rules for row in figures.rows] == [10, 60]
    for row in figures.rows:
        assert 0 < row.first.median <= row.first_longest.median
        assert row.casbin.keys() == ENFORCERS.keys()
        assert all(spread is not None and spread.median > 0 for spread in row.casbin.values())
    assert figures.worst.keys() == {OF_MANY_ROLES, OF_MANY_RULES}
    assert figures.beside.keys() == {"quiet", "busy", "reload"}
    for beside in figures.beside.values():
        assert 0 < beside.median.median <= beside.p999.median <= beside.longest.highest
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    json.dumps(asdict(figures))


def test_an_enforcer_without_an_answer_in_time_is_not_waited_for() -> None:
    policy = generate_policy(10, 5)
    question = Question(tenant(0), TIER, Action.LOAD, MODEL)
    assert enforced_once("Enforcer", policy, question, 0.0) is None


def test_a_lookup_that_was_held_up_is_noted() -> None:
    held = threading.Event()

    def look_up() -> None:
        if not held.is_set():
            time.sleep(0.005)
            held.set()

    with lookups(look_up) as found:
        assert held.wait(10)
    latencies = found()
    assert latencies.late >= 1
    assert latencies.longest >= 5000
    assert latencies.count >= 1


def test_a_folder_that_can_not_be_used_is_one_line(tmp_path: Path, run: Run) -> None:
    assert "nowhere" in one_line(run("bench", "policy", "--folder", tmp_path / "nowhere", "--json"))
