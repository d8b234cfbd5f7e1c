"""`kvcustody bench`: what custody costs on this machine."""

import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvcustody.bench.seal import MEBIBYTE, SealRow, bench_seal
from kvcustody.cli.common import JsonOption, console, print_json, print_table

app = typer.Typer(help="Benchmarks, as ratios of what runs by turns.", no_args_is_help=True)

_SIZES = (1, 2, 8)
_THREADS = (1, 2)
_CONTENDERS = 9
_GIGA = 1e9


@app.callback()
def group() -> None:
    """Benchmarks, as ratios of what runs by turns."""


@app.command()
def seal(
    folder: Annotated[
        Path, typer.Option(help="Where files go; a tmpfs leaves disks out of it.")
    ] = Path(
        "/dev/shm"  # noqa: S108 - a tmpfs on each Linux machine
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Short turns, for a first idea.")] = False,
    json_: JsonOption = False,
) -> None:
    """Sealing and opening beside copies, AES-256-GCM alone, and files without any of it."""
    rounds, seconds = (3, 0.05) if quick else (7, 0.3)
    turns = len(_SIZES) * len(_THREADS) * rounds * _CONTENDERS
    columns = (TextColumn("measuring"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=json_) as progress:
        task = progress.add_task("measuring", total=turns)
        rows = bench_seal(
            folder,
            sizes=tuple(size * MEBIBYTE for size in _SIZES),
            threads=_THREADS,
            rounds=rounds,
            seconds=seconds,
            progress=lambda: progress.advance(task),
        )
    if json_:
        print_json({"machine": _machine(), "rows": [_describe(row) for row in rows]})
        return
    names = list(rows[0].rates)
    print_table(
        ["MiB", "threads", *names, "openssl"],
        [
            [
                *_label(row),
                *(f"{row.rates[name].median / _GIGA:.2f}" for name in names),
                _openssl(row),
            ]
            for row in rows
        ],
    )
    console.print("\nGB/s, medians. Ratios of the same run:\n")
    ratios = list(rows[0].ratios)
    print_table(
        ["MiB", "threads", *ratios],
        [[*_label(row), *(f"{row.ratios[name]:.2f}" for name in ratios)] for row in rows],
    )


def _label(row: SealRow) -> tuple[str, str]:
    return str(row.block_bytes // MEBIBYTE), str(row.threads)


def _openssl(row: SealRow) -> str:
    return "-" if row.openssl is None else f"{row.openssl / _GIGA:.2f}"


def _describe(row: SealRow) -> dict[str, Any]:
    return asdict(row) | {"ratios": row.ratios}


def _machine() -> dict[str, str]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"cpu": model, "kernel": platform.release(), "python": platform.python_version()}
