"""The numbers of every chart: curves over the rounds, bars, and points of delay against energy.

`hflray.report.figures` draws them with Matplotlib and `hflray.report.charts` with Plotly; this module draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hflray import metrics
from hflray.report.labels import DATA, LAMBDA, H, colour, group_by, label_each, pretty, rank
from hflray.report.runs import RunRecord, SweepRecord, has_reached, once

# The statistics that summarise a metric over the fleets of an assignment study.
STATISTICS: Mapping[str, Callable[[pd.Series[float]], float]] = {
    "median": lambda values: float(values.median()),
    "mean": lambda values: float(values.mean()),
    "p95": lambda values: float(values.quantile(0.95)),
    "worst": lambda values: float(values.max()),
}
# These settings choose the test samples. Accuracies on different ones are not compared in one panel.
TESTED = (DATA, "data.split", "data.validation")
BY_MEDIAN = (metrics.WALL_ASSIGN_S,)  # a few fleets measured on a busy machine would dominate its mean


def over_seeds(runs: Sequence[RunRecord], metric: str) -> pd.DataFrame:
    """Return the mean, the standard deviation (0 for one run) and the number of runs of a metric, by round.

    A run without a value at a step is interpolated between its own neighbouring steps, never beyond its last.
    """
    table = pd.concat([run.series(metric) for run in runs], axis=1).sort_index()
    table = table.interpolate(method="index", limit_area="inside")
    return pd.DataFrame({"mean": table.mean(axis=1), "std": table.std(axis=1).fillna(0.0), "runs": table.count(axis=1)})


def panels(sweep: SweepRecord) -> dict[str, dict[str, list[RunRecord]]]:
    """Group runs by panel (`TESTED` and H, where they vary), then by series (the other settings that vary)."""
    panel_keys = [key for key in (*TESTED, H) if key in sweep.keys]
    series_keys = [key for key in sweep.keys if key not in panel_keys]
    if not series_keys:  # only H varies within a data set, so that H distinguishes the series
        panel_keys, series_keys = [key for key in panel_keys if key != H], [key for key in sweep.keys if key == H]
    groups: dict[str, dict[str, list[RunRecord]]] = {}
    runs = sorted(sweep.runs, key=lambda run: (run.config.scheduling.num_scheduled, rank(run)))
    for run, panel, name in zip(runs, label_each(runs, panel_keys), label_each(runs, series_keys), strict=True):
        groups.setdefault(panel, {}).setdefault(name or pretty(run.config.scheduling.name, run.labels), []).append(run)
    return {panel: {name: once(members) for name, members in of_it.items()} for panel, of_it in groups.items()}


def mean_curve(runs: Sequence[RunRecord], metric: metrics.Metric) -> pd.DataFrame:
    """Return the curve of a metric over the rounds of runs that differ only in the seed.

    It is the ``mean``, and ``low`` and ``high`` one standard deviation away, by round (by environment step where an
    assigner learns), in the displayed unit. It has the rounds of all runs that have the metric, because a mean over
    other runs than before would jump. Once a run has ended, those under way wait for their own end.
    """
    runs = [run for run in runs if len(run.series(metric.name))] or runs
    runs = [run for run in runs if run.ended] or runs
    values = over_seeds(runs, metric.name)
    values = values[values["runs"] == len(runs)]
    mean, std = values["mean"] * metric.scale, values["std"] * metric.scale
    return pd.DataFrame({"mean": mean, "low": mean - std, "high": mean + std})


def curves(sweep: SweepRecord, metric: str) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the curves of a metric in each panel, by their labels."""
    row = metrics.describe(metric)
    return {
        panel: {name: mean_curve(runs, row) for name, runs in groups.items()} for panel, groups in panels(sweep).items()
    }


def deviation(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the standard deviation of the values; 0 for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Bar:
    """A metric of a group of runs that differ only in the seed.

    Attributes:
        label: the group's label; empty if it is the only group.
        colour: the bar's colour.
        values: the value of each run that has the metric, in the displayed unit.
        runs: the runs.
    """

    label: str
    colour: str
    values: Sequence[float]
    runs: Sequence[RunRecord]

    @property
    def mean(self) -> float:
        """The mean; NaN if no run has the metric."""
        return float(np.mean(self.values)) if self.values else np.nan

    @property
    def spread(self) -> float:
        """The standard deviation; 0 for one run."""
        return deviation(self.values)


def bar_value(sweep: SweepRecord, run: RunRecord, metric: str, beside: RunRecord | None = None) -> float:
    """Return a run's value in a bar: a metric's last value.

    In an assignment study it is the metric's mean over the fleets, and the median for the metrics of `BY_MEDIAN`. With
    `beside`, only the fleets that this run has as well count.
    """
    if not sweep.shown.averaged:
        return run.last(metric)
    values = run.series(metric)
    if beside is not None:
        values = values[values.index.isin(beside.series(metric).index)]
    return STATISTICS["median" if metric in BY_MEDIAN else "mean"](values)


def bars(sweep: SweepRecord, metric: str) -> list[Bar]:
    """Return a bar for each group of runs."""
    scale, colours = metrics.describe(metric).scale, group_colours(sweep)
    groups = []
    for label, runs in sweep.groups().items():
        values = [bar_value(sweep, run, metric) * scale for run in runs]
        groups.append(Bar(label, colours[label], [value for value in values if np.isfinite(value)], runs))
    return groups


def group_colours(sweep: SweepRecord) -> dict[str, str]:
    """Return a colour for each group; groups that differ only in H or λ share one."""
    groups = sweep.groups()
    names = label_each([runs[0] for runs in groups.values()], [key for key in sweep.keys if key not in (H, LAMBDA)])
    series = dict(zip(groups, names, strict=True))
    number = {name: place for place, name in enumerate(dict.fromkeys(series.values()))}
    return {label: colour(name, number[name]) for label, name in series.items()}


def points(sweep: SweepRecord) -> pd.DataFrame:
    """Return the delay and the energy of each group: means and standard deviations of the runs' totals.

    In an assignment study the values are those of a round instead of totals.

    Returns:
        One row per group that has both, with the columns ``series`` (the group's label without λ and H), ``point`` (the
        label of λ and H), ``lambda`` (J/s), ``delay_s``, ``energy_j``, ``delay_std`` (s), ``energy_std`` (J).
    """
    names = [metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J]
    if sweep.shown.averaged:
        names = [metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J]
    firsts = [runs[0] for runs in sweep.groups().values()]
    series = label_each(firsts, [key for key in sweep.keys if key not in (LAMBDA, H)])
    places = label_each(firsts, [key for key in sweep.keys if key in (LAMBDA, H)])
    rows: dict[int, dict[str, Any]] = {}
    for number, (delay, energy) in enumerate(zip(*(bars(sweep, name) for name in names), strict=True)):
        if delay.values and energy.values:
            rows[number] = {
                "series": series[number] or sweep.name, "point": places[number],
                "lambda": firsts[number].config.cost.delay_weight, "delay_s": delay.mean, "energy_j": energy.mean,
                "delay_std": delay.spread, "energy_std": energy.spread,
            }  # fmt: skip
    return pd.DataFrame(list(rows.values()), index=list(rows))


def fronts(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the `points` of each series in the order in which a line joins them: by λ, then by delay."""
    return {str(name): rows.sort_values(["lambda", "delay_s"]) for name, rows in table.groupby("series", sort=False)}


def by_scheduled(sweep: SweepRecord) -> dict[str, dict[int, list[RunRecord]]]:
    """Group runs by data set and all else in which they differ, then by H, smallest first."""
    groups: dict[str, dict[int, list[RunRecord]]] = {}
    runs = sorted(sweep.runs, key=lambda run: run.config.scheduling.num_scheduled)
    for name, members in group_by(runs, [key for key in sweep.keys if key != H] or [DATA]).items():
        for run in once(members):
            groups.setdefault(name, {}).setdefault(run.config.scheduling.num_scheduled, []).append(run)
    return groups


def against_scheduled(groups: Mapping[int, Sequence[RunRecord]], metric: str) -> pd.DataFrame:
    """Return a metric's last values against H, in the displayed unit.

    Returns:
        One row per H, with the columns ``mean``, ``std`` (0 for one run) and ``reached`` (whether all runs reached
        their target accuracy).
    """
    scale, rows = metrics.describe(metric).scale, {}
    for scheduled, runs in groups.items():
        values = np.array([run.last(metric) * scale for run in runs])
        rows[scheduled] = (values.mean(), deviation(values), all(map(has_reached, runs)))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "std", "reached"])


def last_step(run: RunRecord, metric: str) -> int:
    """Return the last step at which a run has a metric; 0 if it does not have it."""
    values = run.series(metric)
    return int(values.index[-1]) if len(values) else 0
