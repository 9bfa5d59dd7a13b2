"""The command ``hflray compare``: a sweep's closing table, or statistics of contestants over several sweeps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hflray.errors import ConfigError, HflrayError
from hflray.support.terminal.app import HELP, RESULTS, Results, exit_code, single
from hflray.support.terminal.output import new_console, say, say_notes, waiting
from hflray.sweep.compare import show

NOTES = 8  # the most notes on what is missing

app = single()


@app.command(context_settings=HELP)
def compare(
    sweeps: Annotated[
        list[str],
        typer.Argument(metavar="SWEEP...", help="Folders in the results, names for the latest ones, or exports."),
    ],
    against: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The reference: a contestant's label, or the value of a setting."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare this logged metric alone, also one of your own.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a CSV, a LaTeX table and a figure to this folder.")
    ] = None,
    results: Results = RESULTS,
    opens: Annotated[
        bool, typer.Option("--open", help="Open the sweep's charts in the browser, if MLflow's server runs.")
    ] = False,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow server; default: the one of the sweep.")] = None,
) -> None:
    """Print a sweep's closing table and its addresses in MLflow, or statistics: of several sweeps, or --against.

    \b
    Examples:
      hflray compare quickstart                       # the closing table again
      hflray compare quickstart --against ikc         # ratios with intervals and tests, paired by seed
      hflray compare first second -o comparison       # also comparison.csv, .tex, .png and .svg
      hflray compare tests/data/results/rules_all --against sgd --metric accuracy
    """
    if len(sweeps) == 1 and (against, metric, out) == (None, None, None):
        problem = show(sweeps[0], results, opens, tracking_uri)
        if problem:
            raise HflrayError(f"--open: {problem}")
        return
    for option, value in (("--open", opens), ("--tracking-uri", tracking_uri)):
        if value:
            raise ConfigError(f"{option}: got it with statistics; accepted: with a sweep's closing table; leave it out")
    from hflray.report.contest import contest, read, write

    console = new_console()
    with waiting(console, "reading runs", quiet=not console.is_terminal):
        result = contest(read(sweeps, results), against, metric)
    console.print(result.table)
    if out is not None:
        for path in write(result, out):
            say(console, f"  {path}")
    say_notes(console, result.notes, NOTES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m hflray.compare`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.compare")


if __name__ == "__main__":
    sys.exit(main())
