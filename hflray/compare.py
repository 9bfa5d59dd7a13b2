"""The closing table of a sweep, and the pages of MLflow that compare its runs: ``python -m hflray.compare SWEEP``."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.table import Table

from hflray import metrics
from hflray.errors import HflrayError
from hflray.results import locate
from hflray.tasks import find_task
from hflray.tracking import read_runs

CURVES = (metrics.ACCURACY, metrics.TOTAL_OBJECTIVE, metrics.TOTAL_ENERGY_J, metrics.TOTAL_DELAY_S)
NAME_WIDTH = 16  # minimum width of a trial's name in a closing table


@dataclass
class Outcome:
    """The outcome of a trial: its last metrics, and why it failed or what stopped it before its last round."""

    name: str
    round: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    error: str | None = None
    stopped: str | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)
    opened: bool = False
    ended: bool = False


def closing_table(
    title: str, outcomes: Sequence[Outcome], width: int = 80, table_of: metrics.Table = "training"
) -> Table:
    """Return the closing table, one row per trial with its last metrics; totals are simulated seconds and joules.

    The columns are the rows of `hflray.metrics` of the table `table_of` (`hflray.tasks.base.Shown.table`).
    Names that do not fit into a table of `width` characters lose their common parts, so that they still differ.
    """
    # A column without a value in any trial, such as the rounds to a target that is not set, is left out.
    columns = [
        row for row in metrics.rows(table_of) if row.short and any(row.name in outcome.values for outcome in outcomes)
    ]
    marks = [_mark(outcome) for outcome in outcomes]
    legend = [text for mark, text in MARKS.items() if f" {mark}" in marks]
    table = Table(
        title=title,
        caption="; ".join(legend) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,  # so that the table fits a terminal of 80 columns
    )
    # Rich shortens only columns that may wrap. The name is the only such column, so a row too long loses part of it.
    table.add_column("trial", overflow="ellipsis")
    table.add_column("steps" if table_of == "learning" else "rounds", justify="right", no_wrap=True)
    for column in columns:
        table.add_column(column.short, justify="right", no_wrap=True)
    rows = [
        [
            f"{outcome.round or 0}{mark}",
            *(column.text(outcome.values[column.name]) if column.name in outcome.values else "–" for column in columns),
        ]
        for outcome, mark in zip(outcomes, marks, strict=True)
    ]
    headings = ("rounds", *(column.short for column in columns))
    other_width = sum(1 + max(map(len, cells)) for cells in zip(headings, *rows, strict=True))
    names = short_names([outcome.name for outcome in outcomes], max(NAME_WIDTH, width - 2 - other_width))
    for name, row in zip(names, rows, strict=True):
        table.add_row(name, *row)
    return table


MARKS = {"✗": "✗ failed", "⊣": "⊣ stopped early", "…": "… not ended"}


def _mark(outcome: Outcome) -> str:
    if outcome.error:
        return " ✗"
    if not outcome.ended:
        return " …"
    return " ⊣" if outcome.stopped else ""


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten names of trials for a narrow column: if one is longer than `width`, their common parts become ``…``."""
    if len(names) < 2 or max(map(len, names)) <= width:
        return list(names)
    parts = [re.split(r"(?<!e)-", name) for name in names]  # the hyphen in 1e-05 is not a separator
    common = [len(set(column)) == 1 for column in zip(*parts, strict=False)]
    if len({len(row) for row in parts}) > 1:  # with unequal numbers of parts, only a common beginning is shortened
        common = list(itertools.takewhile(bool, common))
    short = ["-".join("…" if i < len(common) and common[i] else part for i, part in enumerate(row)) for row in parts]
    return [re.sub(r"(…-)+(?=…)", "", name) for name in short]


def comparison_url(experiment_id: str, run_ids: Sequence[str], base: str = "http://127.0.0.1:5000") -> str:
    """Return the address of MLflow's page that compares these runs: parameters, metrics, parallel coordinates."""
    return f"{base}/#/compare-runs?runs={_encode(list(run_ids))}&experiments={_encode([experiment_id])}"


def metric_url(experiment_id: str, run_ids: Sequence[str], *names: str, base: str = "http://127.0.0.1:5000") -> str:
    """Return the address of MLflow's page that draws metrics of these runs over the rounds, with `names` selected."""
    keys = f"runs={_encode(list(run_ids))}&metric={_encode(names[0])}&experiments={_encode([experiment_id])}"
    return f"{base}/#/metric?{keys}&plot_metric_keys={_encode(list(names))}&x_axis=step"


def comparison_lines(uri: str, experiment_id: str | None, run_ids: Sequence[str], logged: Set[str]) -> list[str]:
    """Return lines that say how to see these runs in MLflow.

    The first line is the command that starts a server, unless `uri` is one; the others are addresses of MLflow's pages.

    Args:
        uri: the tracking URI.
        experiment_id: the experiment's ID; None if MLflow was never reached, so that there are no addresses.
        run_ids: the IDs of the runs.
        logged: the metrics that the runs have; those of `CURVES` among them are selected on the page of curves.
    """
    server = uri.startswith("http")
    base = uri.rstrip("/") if server else "http://127.0.0.1:5000"
    lines = [] if server else [f"mlflow ui --backend-store-uri {uri}"]
    if experiment_id is None or not run_ids:
        return lines
    lines.append(f"compare: {comparison_url(experiment_id, run_ids, base)}")
    curves = [name for name in CURVES if name in logged]
    if curves:
        lines.append(f"curves: {metric_url(experiment_id, run_ids, *curves, base=base)}")
    return lines


def open_pages(lines: Sequence[str]) -> str | None:
    """Open the addresses among `comparison_lines` in the browser; return the reason if that fails, else None."""
    pages = [line.partition(": ")[2] for line in lines if "/#/" in line]
    if not pages:
        return "the sweep has no runs in MLflow yet"
    base = pages[0].partition("/#/")[0]
    try:
        urllib.request.urlopen(base, timeout=5).close()
    except urllib.error.HTTPError:
        pass  # the server answers; the browser can meet its demands, such as a password
    except (OSError, ValueError):
        start = "start it" if "/#/" in lines[0] else f"start it first: {lines[0]}"
        return f"no MLflow server answers at {base}; {start}"
    opened = [webbrowser.open(page) for page in pages]
    return None if all(opened) else "found no browser; open the addresses above in one"


def _encode(value: str | list[str]) -> str:
    """Encode a value as the addresses of MLflow's pages contain it: compact JSON, percent-encoded."""
    return quote(json.dumps(value, separators=(",", ":")))


def main(arguments: list[str] | None = None) -> int:
    """Print the closing table of a sweep and the addresses of MLflow's comparison pages; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hflray.compare", description="Compare the runs of a sweep.")
    parser.add_argument("sweep", help="the sweep's folder in the results, or its name for the latest of that name")
    parser.add_argument("--results", type=Path, default=Path("hflray_results"), help="default: %(default)s")
    parser.add_argument("--open", action="store_true", help="open the addresses in the browser; the server must be up")
    options = parser.parse_args(arguments)
    try:
        folder = locate(options.results, options.sweep)
        experiment_id, runs = read_runs(folder.uri, folder.experiment, folder.path.name)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    outcomes = [
        Outcome(run.name, run.rounds, run.values, error=run.error, stopped=run.stopped, ended=run.status != "RUNNING")
        for run in runs
    ]
    table_of = find_task(folder.file.task).shown.table
    console.print(closing_table(folder.path.name, outcomes, console.width, table_of))
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    ids = [run.run_id for run in runs]
    lines = comparison_lines(folder.uri, experiment_id, ids, set().union(*(run.values for run in runs)))
    for line in lines:
        console.print(line, **plain)
    problem = open_pages(lines) if options.open else None
    if problem:
        print(f"error: --open: {problem}", file=sys.stderr)
    return 2 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
