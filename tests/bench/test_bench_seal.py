import json
from pathlib import Path

import pytest

from command_line import Run, one_line
from kvcustody.bench.seal import bench_seal, contenders
from kvcustody.bench.turns import by_turns

pytestmark = pytest.mark.unit


def test_every_contender_moves_the_bytes_that_it_is_credited_with(tmp_path: Path) -> None:
    moved: list[int] = []
    rates = by_turns(
        {"one": lambda _: lambda: moved.append(1)},
        step_bytes=10,
        threads=2,
        rounds=2,
        seconds=0.01,
    )
    assert moved
    assert 0 < rates["one"].lowest <= rates["one"].median <= rates["one"].highest
    for make in contenders(tmp_path, 4096).values():
        for _ in range(2):
            make(0)()


def test_a_row_has_a_rate_for_each_contender_and_ratios_of_them(tmp_path: Path) -> None:
    turns: list[None] = []
    (row,) = bench_seal(
        tmp_path,
        sizes=(4096,),
        threads=(1,),
        rounds=1,
        seconds=0.005,
        progress=lambda: turns.append(None),
    )
    assert len(turns) == len(row.rates) == 9
    assert all(rate.median > 0 for rate in row.rates.values())
    assert row.ratios["seal / encrypt"] == pytest.approx(
        row.rates["seal"].median / row.rates["encrypt"].median
    )
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    json.dumps(row.ratios)


def test_a_folder_that_can_not_be_used_is_one_line(tmp_path: Path, run: Run) -> None:
    assert "nowhere" in one_line(run("bench", "seal", "--folder", tmp_path / "nowhere", "--json"))
