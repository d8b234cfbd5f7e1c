import asyncio
import importlib.util
import json
import sys
from dataclasses import asdict

import pytest

from kvcustody.bench.gateway import (
    CONTENDERS,
    Spread,
    Turn,
    bench_memory,
    bench_streams,
    chat_body,
    compare,
    percentiles,
    running_server,
)
from kvcustody.bench.load import Load, run_streams
from kvcustody.bench.stub_server import GOVERNED
from kvcustody.errors import ConfigurationError, UnavailableError

pytestmark = pytest.mark.unit


def test_each_contender_is_compared_with_the_bare_server_of_its_round() -> None:
    turns: list[None] = []
    (row,) = bench_streams(
        {"small": Load(4, 3, 0.005, chat_body(100))},
        rounds=2,
        seconds=0.3,
        progress=lambda: turns.append(None),
    )
    assert len(turns) == 2 * len(CONTENDERS)
    assert row.name == "small"
    assert row.rates.keys() == set(CONTENDERS)
    assert all(0 < rate.lowest <= rate.median <= rate.highest for rate in row.rates.values())
    assert row.comparisons.keys() == set(CONTENDERS) - {"bare"}
    governed = row.comparisons[GOVERNED]
    assert governed.rate_ratio.lowest > 0
    assert governed.first_added.keys() == governed.late_added.keys() == {50, 95}
    json.dumps(asdict(row))


def test_memory_is_watched_until_the_last_body() -> None:
    done: list[int] = []
    memory = bench_memory(requests=60, body_bytes=20_000, streams=4, progress=done.append)
    assert done == list(range(1, 61))
    assert memory.requests == 60
    assert memory.body_bytes >= 20_000
    assert 1 < memory.warm <= memory.highest
    assert 1 < memory.end <= memory.highest
    json.dumps(asdict(memory))


def test_the_governed_server_is_behind_the_gateway_and_the_bare_one_is_not() -> None:
    load = Load(1, 2, 0.0, chat_body(1))

    def ask(port: int, headers: dict[str, str]) -> int:
        return len(asyncio.run(run_streams(port, load, headers, seconds=0.05, seed=1)))

    with running_server(governed=False) as server:
        assert server.headers == {}
        assert ask(server.port, {}) > 0
    with running_server(governed=True) as server:
        assert ask(server.port, dict(server.headers)) > 0
        with pytest.raises(RuntimeError, match="401"):
            ask(server.port, {})


def test_a_server_that_does_not_start_is_said_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        pytest.raises(UnavailableError, match="ended at once"),
        running_server(governed=False),
    ):
        pass


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with (
        pytest.raises(ConfigurationError, match=r"uvicorn.*kvcustody\[gateway\]"),
        running_server(governed=False),
    ):
        pass


def test_a_comparison_is_made_round_by_round() -> None:
    def turn(rate: float, first: float) -> Turn:
        return Turn(rate, first / 2, {50: first, 95: 2 * first}, {50: 0.0, 95: 0.0})

    found = compare([turn(90, 5), turn(50, 7)], [turn(100, 4), turn(100, 3)])
    assert found.rate_ratio == Spread(0.7, 0.5, 0.9)
    assert found.first_added == {50: Spread(2.5, 1, 4), 95: Spread(5, 2, 8)}
    assert found.cpu_added == Spread(1.25, 0.5, 2)


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([number / 1000 for number in range(100, -1, -1)]) == {50: 50, 95: 95}


@pytest.mark.parametrize("size", [1, 8192, 1_000_000])
def test_a_body_is_as_large_as_asked_for(size: int) -> None:
    body = chat_body(size)
    assert size <= len(body) < size + 500
    assert json.loads(body)["messages"]
