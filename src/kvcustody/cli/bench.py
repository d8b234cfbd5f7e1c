"""`kvcustody bench`: what custody costs on this machine."""

import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvcustody.bench.gateway import (
    CONTENDERS,
    Comparison,
    Memory,
    Row,
    Spread,
    bench_memory,
    bench_streams,
    chat_body,
)
from kvcustody.bench.load import Load
from kvcustody.bench.policy import Extent, bench_policy
from kvcustody.bench.seal import MEBIBYTE, SealRow, bench_seal
from kvcustody.cli.bench_policy import print_policy
from kvcustody.cli.common import JsonOption, console, print_json, print_table

app = typer.Typer(help="Benchmarks, as ratios of what runs by turns.", no_args_is_help=True)

_SIZES = (1, 2, 8)
_THREADS = (1, 2)
_CONTENDERS = 9
_GIGA = 1e9
_COLUMNS = (TextColumn("measuring"), BarColumn(), TimeRemainingColumn())

_STREAMS = 64
_CHUNKS = 32
# As fast as a reader of a large model's answer gets its tokens.
_PACE_SECONDS = 0.02
_BODY_BYTES = 8 * 2**10
_LARGE_BODY_BYTES = 1_000_000
_LARGE_BODIES_AT_ONCE = 8


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
    with Progress(*_COLUMNS, console=console, transient=True, disable=json_) as progress:
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


@app.command()
def gateway(
    quick: Annotated[bool, typer.Option("--quick", help="Short turns, for a first idea.")] = False,
    json_: JsonOption = False,
) -> None:
    """A server that streams tokens, bare and behind the gateway, and memory under large bodies."""
    rounds, seconds, large_bodies = (2, 1.0, 500) if quick else (7, 5.0, 10_000)
    body = chat_body(_BODY_BYTES)
    loads = {
        "paced": Load(_STREAMS, _CHUNKS, _PACE_SECONDS, body),
        # All that the server does is send; there is nothing that the gateway's time could hide in.
        "unpaced": Load(_STREAMS, _CHUNKS, 0.0, body),
    }
    with Progress(*_COLUMNS, console=console, transient=True, disable=json_) as progress:
        task = progress.add_task("measuring", total=len(loads) * rounds * len(CONTENDERS))
        rows = bench_streams(
            loads, rounds=rounds, seconds=seconds, progress=lambda: progress.advance(task)
        )
        task = progress.add_task("measuring", total=large_bodies)
        memory = bench_memory(
            requests=large_bodies,
            body_bytes=_LARGE_BODY_BYTES,
            streams=_LARGE_BODIES_AT_ONCE,
            progress=lambda done: progress.update(task, completed=done),
        )
    if json_:
        print_json(
            {
                "machine": _machine(),
                "rows": [asdict(row) for row in rows],
                "memory": asdict(memory),
            }
        )
        return
    _print_streams(rows)
    _print_memory(memory)


@app.command()
def policy(
    folder: Annotated[
        Path, typer.Option(help="Where policy files go; a tmpfs leaves disks out of it.")
    ] = Path(
        "/dev/shm"  # noqa: S108 - a tmpfs on each Linux machine
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Short turns, for a first idea.")] = False,
    json_: JsonOption = False,
) -> None:
    """Decisions looked up and made, Casbin's own enforcers, and lookups during a reload."""
    extent = Extent(rounds=3, lookups=50_000, patience=10.0) if quick else Extent()
    with Progress(*_COLUMNS, console=console, transient=True, disable=json_) as progress:
        task = progress.add_task("measuring", total=extent.turns)
        figures = bench_policy(folder, extent, lambda: progress.advance(task))
    if json_:
        print_json({"machine": _machine(), **asdict(figures)})
        return
    print_policy(figures)


def _print_streams(rows: list[Row]) -> None:
    typer.echo(
        f"{_STREAMS} streams of {_CHUNKS} chunks, {_PACE_SECONDS * 1000:g} ms apart or not paced, "
        f"bodies of {rows[0].body_bytes} bytes.\n"
        "Beside the bare server of the same round: median [lowest to highest] of the rounds.\n"
    )
    print_table(
        [
            "load",
            "contender",
            "requests/s",
            "ratio",
            "first token p50, ms",
            "p95, ms",
            "end p50, ms",
            "p95, ms",
            "CPU a request, ms",
        ],
        [
            [row.name, name, f"{row.rates[name].median:.1f}", *_compared(comparison)]
            for row in rows
            for name, comparison in row.comparisons.items()
        ],
    )


def _compared(comparison: Comparison) -> list[str]:
    return [
        _spread(comparison.rate_ratio, ""),
        *(_spread(spread) for spread in comparison.first_added.values()),
        *(_spread(spread) for spread in comparison.late_added.values()),
        _spread(comparison.cpu_added),
    ]


def _spread(spread: Spread, sign: str = "+") -> str:
    figures = (spread.median, spread.lowest, spread.highest)
    median, lowest, highest = (f"{figure:{sign}.3f}" for figure in figures)
    # Without markup: the brackets are for the reader.
    return f"{median} \\[{lowest} to {highest}]"


def _print_memory(memory: Memory) -> None:
    console.print(
        f"\nMemory under {memory.requests} bodies of {memory.body_bytes} bytes, "
        f"{_LARGE_BODIES_AT_ONCE} at once: {memory.warm:.1f} MiB after the warm-up, "
        f"{memory.end:.1f} MiB at the end, {memory.highest:.1f} MiB at most; "
        f"{memory.slope:+.2f} MiB per 1,000 requests."
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
