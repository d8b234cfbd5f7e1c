"""`kvcustody bench policy`: how the figures are shown."""

import typer

from kvcustody.bench.gateway import Spread
from kvcustody.bench.policy import PolicyFigures
from kvcustody.cli.common import print_table

_MICRO = 1000.0


def print_policy(figures: PolicyFigures) -> None:
    """Print the figures for people."""
    typer.echo(
        f"{figures.tenants:,} tenants. Median [lowest to highest] of the rounds.\n"
        "A lookup of what was decided, a principal's first decision, and the longest of them; one "
        "question to Casbin's own enforcers:\n"
    )
    names = list(figures.rows[0].casbin)
    print_table(
        ["rules", "lookup, µs", "first, ms", "longest, ms", *(f"{name}, ms" for name in names)],
        [
            [
                f"{row.rules:,}",
                _spread(row.lookup, _MICRO),
                _spread(row.first),
                _spread(row.first_longest),
                *(_enforced(row.casbin[name]) for name in names),
            ]
            for row in figures.rows
        ],
    )
    typer.echo("\nThe first decision of principals about whom there is much:\n")
    print_table(
        ["tenant", "longest, ms"],
        [[name, _spread(times)] for name, times in figures.worst.items()],
    )
    typer.echo("\nLookups one after the other, and what went on beside them:\n")
    print_table(
        ["beside", "seconds", "CPU, s", "median, µs", "p99.9, µs", "longest, µs", "over 1 ms"],
        [
            [
                name,
                _spread(beside.seconds),
                _spread(beside.cpu),
                _spread(beside.median),
                _spread(beside.p999),
                _spread(beside.longest),
                _spread(beside.late),
            ]
            for name, beside in figures.beside.items()
        ],
    )


def _enforced(spread: Spread | None) -> str:
    return "no answer in time" if spread is None else _spread(spread)


def _spread(spread: Spread, unit: float = 1.0) -> str:
    figures = (spread.median, spread.lowest, spread.highest)
    median, lowest, highest = (f"{figure / unit:.3g}" for figure in figures)
    # Without markup: the brackets are for the reader.
    return f"{median} \\[{lowest} to {highest}]"
