"""A sweep's closing table, and where MLflow compares its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from rich import box
from rich.table import Table

from hflray import metrics

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

    def encode(value: Sequence[Any] | Mapping[str, Any]) -> str:
        return quote(json.dumps(value, separators=(",", ":")))

    return f"{base}/#/compare-runs?runs={encode(list(run_ids))}&experiments={encode([experiment_id])}"
