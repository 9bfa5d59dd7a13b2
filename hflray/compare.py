"""A sweep's closing table, and where MLflow compares its runs: ``python -m hflray.compare SWEEP``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
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
from hflray.tracking import read_runs

COLUMNS = (
    ("accuracy", metrics.ACCURACY, "{:.1%}"),
    ("to target", metrics.ROUNDS_TO_TARGET, "{:.0f}"),
    ("objective", metrics.TOTAL_OBJECTIVE, "{:,.1f}"),
    ("delay s", metrics.TOTAL_DELAY_S, "{:,.1f}"),
    ("energy J", metrics.TOTAL_ENERGY_J, "{:,.1f}"),
    ("MB", metrics.TOTAL_MESSAGE_BITS, "{:,.0f}"),
)
CLUSTERING_COLUMNS = (
    ("ARI", metrics.CLUSTERING_ARI, "{:.3f}"),
    ("delay s", metrics.CLUSTERING_DELAY_S, "{:.2f}"),
    ("energy J", metrics.CLUSTERING_ENERGY_J, "{:.2f}"),
)
SCALE = {metrics.TOTAL_MESSAGE_BITS: 1 / 8e6}


@dataclass
class Outcome:
    """How a trial ended: its last metrics, or why it failed."""

    name: str
    round: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    error: str | None = None
    opened: bool = False
    ended: bool = False


def closing_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """One row per trial: totals over its rounds (simulated seconds and joules), and what it reached."""
    trained = any(metrics.ACCURACY in outcome.values for outcome in outcomes)
    # Columns no trial has a value for, such as a target nobody set, are left out.
    columns = COLUMNS if trained else CLUSTERING_COLUMNS
    shown = [column for column in columns if any(column[1] in outcome.values for outcome in outcomes)]
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)  # 80 columns
    table.add_column("trial", no_wrap=True, overflow="ellipsis")
    table.add_column("rounds", justify="right", no_wrap=True)
    for heading, _, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in outcomes:
        cells = [
            form.format(outcome.values[name] * SCALE.get(name, 1)) if name in outcome.values else "–"
            for _, name, form in shown
        ]
        table.add_row(
            outcome.name, f"{outcome.round or 0}{' ✗' if outcome.error else '' if outcome.ended else ' …'}", *cells
        )
    return table


def comparison_url(experiment_id: str, run_ids: Sequence[str], base: str = "http://127.0.0.1:5000") -> str:
    """The page of MLflow's UI that compares these runs: parameters, metrics, parallel coordinates."""
    return f"{base}/#/compare-runs?runs={_encode(list(run_ids))}&experiments={_encode([experiment_id])}"


def metric_url(experiment_id: str, run_ids: Sequence[str], metric: str, base: str = "http://127.0.0.1:5000") -> str:
    """The page of MLflow's UI that draws one metric of these runs over the rounds."""
    keys = f"runs={_encode(list(run_ids))}&metric={_encode(metric)}&experiments={_encode([experiment_id])}"
    return f"{base}/#/metric?{keys}&plot_metric_keys={_encode([metric])}&x_axis=step"


def _encode(value: str | list[str]) -> str:
    """A value as MLflow's pages take it in their address: compact JSON, percent-encoded."""
    return quote(json.dumps(value, separators=(",", ":")))


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.compare SWEEP``: the closing table again, and the addresses of MLflow's comparison pages."""
    parser = argparse.ArgumentParser(prog="python -m hflray.compare", description="Compare the runs of a sweep.")
    parser.add_argument("sweep", help="the sweep's name or its folder in the results; of a name, the latest")
    parser.add_argument("--results", type=Path, default=Path("hflray_results"), help="default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        folder = locate(given.results, given.sweep)
        experiment_id, runs = read_runs(folder.uri, folder.experiment, folder.path.name)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    outcomes = [
        Outcome(run.name, run.rounds, run.values, error=run.error, ended=run.status != "RUNNING") for run in runs
    ]
    console.print(closing_table(folder.path.name, outcomes))
    say: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    base = folder.uri.rstrip("/") if folder.uri.startswith("http") else "http://127.0.0.1:5000"
    if not folder.uri.startswith("http"):
        console.print(f"mlflow ui --backend-store-uri {folder.uri}", **say)
    ids = [run.run_id for run in runs]
    console.print(f"compare: {comparison_url(experiment_id, ids, base)}", **say)
    for name in (metrics.ACCURACY, metrics.TOTAL_OBJECTIVE, metrics.TOTAL_ENERGY_J, metrics.TOTAL_DELAY_S):
        if any(name in run.values for run in runs):
            console.print(f"{name}: {metric_url(experiment_id, ids, name, base)}", **say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
