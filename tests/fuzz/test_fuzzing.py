"""Thirty seconds of coverage-guided fuzzing from the kept corpus; and proof that it can fail."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvcustody
from kvcustody.sealing import OpenFailure
from recipe import build
from reference_sealed_block import outcome
from sealed_block_target import check

FOLDER = Path(__file__).resolve().parent
CORPUS = sorted((FOLDER / "corpus").iterdir())
FUZZING_SECONDS = 30
# A planted bug takes less than a second; on a busy machine, more.
PATIENCE_SECONDS = 180
# A busy machine runs 5,000 a second; fewer than this means that something hangs.
FEWEST_RUNS = 10_000
# libFuzzer's exit code for a finding, as opposed to a program that doesn't start.
FOUND = 77

# atheris has wheels for no other machine (see pyproject.toml); there, the corpus is replayed only.
needs_atheris = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.version_info >= (3, 14), reason="no wheel of atheris"
)


def fuzz(
    folder: Path, corpus: Path, seconds: int, *flags: str
) -> "subprocess.CompletedProcess[str]":
    """Run the fuzzer in a folder, which takes what it finds, on the code that we test."""
    command = [
        # Linux counts as a process's peak memory that of the one that it was forked from, and
        # libFuzzer ends at 2 GiB: an engine in this process may have taken more. The shell hasn't.
        *("/bin/sh", "-c", '"$@"; exit $?', "sh"),
        sys.executable,
        str(FOLDER / "fuzz_sealed_block.py"),
        *flags,
        str(corpus),
        f"-max_total_time={seconds}",
        "-max_len=512",
        "-print_final_stats=1",
    ]
    return subprocess.run(  # noqa: S603 - our own interpreter and program
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(kvcustody.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds + PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.unit
@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name[:8])
def test_no_input_of_the_corpus_is_a_finding(path: Path) -> None:
    check(path.read_bytes())


@pytest.mark.unit
def test_the_corpus_reaches_every_check_and_an_opened_block() -> None:
    outcomes = [outcome(*build(path.read_bytes())) for path in CORPUS]
    reached = {reached for reached in outcomes if isinstance(reached, str)}
    assert reached == {failure.value for failure in OpenFailure}
    assert any(isinstance(opened, bytes) for opened in outcomes)
    assert len(CORPUS) < 200
    assert sum(path.stat().st_size for path in CORPUS) < 500_000


@pytest.mark.fuzz
@needs_atheris
def test_fuzzing_from_the_corpus_finds_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(FOLDER / "corpus", corpus)
    finished = fuzz(tmp_path, corpus, FUZZING_SECONDS)
    assert finished.returncode == 0, finished.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    runs = re.search(r"stat::number_of_executed_units: (\d+)", finished.stdout)
    assert runs is not None
    assert int(runs[1]) > FEWEST_RUNS
    covered = re.search(r"INITED cov: (\d+)", finished.stdout)
    assert covered is not None
    assert int(covered[1]) > 100, "the code isn't instrumented"


# What the finding says; which of the ways that lead to it comes first is chance.
PLANTED = {
    "parser-raises": "ValueError: a life that ends before it begins",
    "parser-reads-signed": "AssertionError: a header changed on the way",
    "expires-late": "AssertionError: .*expired",
    "ignores-the-end": "AssertionError: .*trailing-bytes",
    "leaves-data": "AssertionError: something was left behind after commitment",
    "no-commitment": "AssertionError: .*commitment",
}


@pytest.mark.fuzz
@needs_atheris
@pytest.mark.parametrize("bug", PLANTED)
def test_fuzzing_from_nothing_finds_a_planted_bug(tmp_path: Path, bug: str) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    finished = fuzz(tmp_path, corpus, PATIENCE_SECONDS, f"--plant={bug}", "-seed=1")
    assert finished.returncode == FOUND, finished.stdout
    assert re.search(PLANTED[bug], finished.stdout), finished.stdout
    (finding,) = tmp_path.glob("crash-*")
    check(finding.read_bytes())  # a bug of the plant's, not of ours
