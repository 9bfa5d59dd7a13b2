"""The table and the bar charts of an assignment study: the paper's Figure 6, with latency and the gap to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from hflray import metrics
from hflray.report.labels import BLUE
from hflray.report.series import STATISTICS
from hflray.support.files import replacing
from hflray.support.files import write as write_file
from hflray.support.terminal.tables import Table
from hflray.support.text import as_chart_text

# The charts: the metric, its column of the summary, and the suffix of the file's name.
PANELS = (
    (metrics.ROUND_DELAY_S, "delay_s", "delay"),
    (metrics.ROUND_ENERGY_J, "energy_j", "energy"),
    (metrics.ROUND_OBJECTIVE, "objective", "objective"),
)


def summary(studies: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Summarise the assigners, one row each.

    Args:
        studies: for each assigner, one row per fleet with the metrics of the glossary as columns.

    Returns:
        The mean delay (s), energy (J) and objective (J) over the fleets; the median objective, because a few fleets
        dominate the mean; the median, mean, 95th percentile and worst of the gap (objective − bound) / objective; the
        median and the 95th percentile of the latency (ms); and the number of fleets.
    """
    rows = {}
    for name, fleets in studies.items():
        latency_ms = fleets[metrics.WALL_ASSIGN_S] * metrics.describe(metrics.WALL_ASSIGN_S).scale
        gap = fleets[metrics.ASSIGNMENT_GAP] if metrics.ASSIGNMENT_GAP in fleets else pd.Series(dtype=float)
        rows[name] = {
            "delay_s": fleets[metrics.ROUND_DELAY_S].mean(),
            "energy_j": fleets[metrics.ROUND_ENERGY_J].mean(),
            "objective": fleets[metrics.ROUND_OBJECTIVE].mean(),
            "objective_median": fleets[metrics.ROUND_OBJECTIVE].median(),
            **{f"gap_{kind}": statistic(gap) for kind, statistic in STATISTICS.items()},
            "latency_ms_median": latency_ms.median(),
            "latency_ms_p95": latency_ms.quantile(0.95),
            "fleets": len(fleets),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("assigner")


def as_table(title: str, rows: pd.DataFrame) -> Table:
    """Format `summary` for a terminal: T, E, E + λT and its median, then the gap and the latency."""
    table = Table(title, ["assigner", "T s", "E J", "E+λT", "median", "gap %", "mean", "p95", "worst", "ms", "p95"])
    for name, row in rows.iterrows():
        table.add_row(
            str(name),
            f"{row['delay_s']:.1f}",
            f"{row['energy_j']:.1f}",
            f"{row['objective']:.1f}",
            f"{row['objective_median']:.1f}",
            *(f"{100 * row[f'gap_{kind}']:.1f}" for kind in ("median", "mean", "p95", "worst")),
            *(f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" for ms in (row["latency_ms_median"], row["latency_ms_p95"])),
        )
    return table


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    """Write the paper's three bar charts as one PNG each; return their paths."""
    from matplotlib.figure import Figure

    paths = []
    for metric, column, suffix in PANELS:
        values = rows[column]
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.subplots()
        bars = axes.bar(range(len(values)), values, color=BLUE, width=0.65)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
        names = [as_chart_text(str(name)).replace(" ", "\n") for name in values.index]
        axes.set_xticks(range(len(values)), names, fontsize=8)
        axes.set_ylabel(metrics.describe(metric).printed_axis)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.12)
        path = folder / f"assignment_{suffix}.png"
        with replacing(path) as scratch:
            figure.savefig(scratch, dpi=160)
        paths.append(path)
    return paths


def write(title: str, studies: Mapping[str, pd.DataFrame], folder: Path) -> tuple[Table, list[Path]]:
    """Write ``assignment.csv`` (the summary), ``assignment.parquet`` (every fleet) and the charts into `folder`.

    Returns:
        The table for the terminal, and the paths of the written files.
    """
    rows = summary(studies)
    table_path, fleets_path = folder / "assignment.csv", folder / "assignment.parquet"
    fleets = pd.concat(studies, names=["assigner", "fleet"]).reset_index(level=0)
    write_file(table_path, rows.to_csv())
    with replacing(fleets_path) as scratch:
        fleets.to_parquet(scratch)
    return as_table(title, rows), [table_path, fleets_path, *draw(rows, folder)]
