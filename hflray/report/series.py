"""The numbers of every chart, computed once: curves over the rounds, bars, and points of seconds against joules.

`hflray.report.figures` draws them with Matplotlib, `hflray.report.charts` with Plotly; nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hflray import metrics
from hflray.report.labels import DATA, LAMBDA, H, colour, describe, pretty, rank
from hflray.report.runs import Run, Sweep

# What sums up a metric over the fleets of an assignment study.
STATISTICS: Mapping[str, Callable[[pd.Series[float]], float]] = {
    "median": lambda values: float(values.median()),
    "mean": lambda values: float(values.mean()),
    "p95": lambda values: float(values.quantile(0.95)),
    "worst": lambda values: float(values.max()),
}
BY_MEDIAN = (metrics.WALL_ASSIGN_S,)  # a few fleets that met a busy machine would decide its mean


def over_seeds(runs: Sequence[Run], metric: str) -> pd.DataFrame:
    """Mean, standard deviation (0 for one run) and number of runs of a metric, by round.

    A run that has no point where another has one (learning curves end where their time did) is taken between its own.
    """
    table = pd.concat([run.series(metric) for run in runs], axis=1).sort_index()
    table = table.interpolate(method="index", limit_area="inside")
    return pd.DataFrame({"mean": table.mean(axis=1), "std": table.std(axis=1).fillna(0.0), "runs": table.count(axis=1)})


def panels(sweep: Sweep) -> dict[str, dict[str, list[Run]]]:
    """Runs by panel (data set and H, where they vary), then by series (whatever else varies)."""
    across = [key for key in (DATA, H) if key in sweep.keys]
    inside = [key for key in sweep.keys if key not in across]
    if not inside:  # nothing else varies: H is then what is compared
        across, inside = [key for key in across if key == DATA], [key for key in sweep.keys if key != DATA]
    found: dict[str, dict[str, list[Run]]] = {}
    for run in sorted(sweep.runs, key=lambda run: (run.config.scheduling.num_scheduled, rank(run))):
        panel = found.setdefault(describe(run, across), {})
        panel.setdefault(describe(run, inside) or pretty(run.config.scheduling.name), []).append(run)
    return found


@dataclass(frozen=True)
class Curve:
    """A metric over the rounds of runs that differ in the seed only.

    Attributes:
        panel, name: what tells its panel from others, and it from the others in its panel.
        metric: its row of the glossary.
        runs: the runs.
    """

    panel: str
    name: str
    metric: metrics.Metric
    runs: Sequence[Run]

    @cached_property
    def table(self) -> pd.DataFrame:
        """By round: ``mean``, ``low`` and ``high`` (one standard deviation away), in the unit shown."""
        values = over_seeds(self.runs, self.metric.name) * self.metric.scale
        mean, std = values["mean"], values["std"]
        return pd.DataFrame({"mean": mean, "low": mean - std, "high": mean + std})

    @property
    def logged(self) -> bool:
        """Whether any of its runs has the metric."""
        return any(len(run.series(self.metric.name)) for run in self.runs)

    @property
    def rounds(self) -> NDArray[np.float64]:
        """The rounds (environment steps, where an assigner learns) of `table`."""
        return self.table.index.to_numpy(dtype=float)

    def against(self, metric: str) -> NDArray[np.float64]:
        """The mean of another metric at those rounds, in the unit shown; NaN where it was not logged."""
        means = over_seeds(self.runs, metric)["mean"].reindex(self.table.index).to_numpy(dtype=float)
        return np.asarray(means * metrics.describe(metric).scale)


def curves(sweep: Sweep, metric: str) -> dict[str, list[Curve]]:
    """A metric by round: of each panel its curves."""
    row = metrics.describe(metric)
    return {
        panel: [Curve(panel, name, row, runs) for name, runs in inside.items()]
        for panel, inside in panels(sweep).items()
    }


@dataclass(frozen=True)
class Bar:
    """A metric of runs that differ in the seed only.

    Attributes:
        label: of the group; empty if it is the only one.
        colour: of the bar.
        values: of each run that has one, in the unit shown.
        runs: the runs.
    """

    label: str
    colour: str
    values: Sequence[float]
    runs: Sequence[Run]

    @property
    def mean(self) -> float:
        """The mean; NaN if no run has the metric."""
        return float(np.mean(self.values)) if self.values else np.nan

    @property
    def spread(self) -> float:
        """The standard deviation; 0 for one run."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0


def summed_up(sweep: Sweep, run: Run, metric: str) -> float:
    """What a run's bar is: a metric's last value, or over the fleets of a study its mean (latency: its median)."""
    if not sweep.shown.averaged:
        return run.last(metric)
    return STATISTICS["median" if metric in BY_MEDIAN else "mean"](run.series(metric))


def bars(sweep: Sweep, metric: str) -> list[Bar]:
    """A bar for each group of runs."""
    scale, tint = metrics.describe(metric).scale, tints(sweep)
    found = []
    for label, runs in sweep.groups().items():
        values = [summed_up(sweep, run, metric) * scale for run in runs]
        found.append(Bar(label, tint[label], [value for value in values if np.isfinite(value)], runs))
    return found


def tints(sweep: Sweep) -> dict[str, str]:
    """A colour for each group: groups that differ in H or λ only have the same."""
    series = {
        label: describe(runs[0], [key for key in sweep.keys if key not in (H, LAMBDA)])
        for label, runs in sweep.groups().items()
    }
    number = {name: place for place, name in enumerate(dict.fromkeys(series.values()))}
    return {label: colour(name, number[name]) for label, name in series.items()}


def points(sweep: Sweep) -> pd.DataFrame:
    """Seconds and joules of each group: means and standard deviations of totals (of rounds, in an assignment study).

    Returns:
        A row for each group that has both: ``series`` (whatever tells groups apart but λ and H), ``point`` (λ and H),
        ``lambda``, ``delay_s``, ``energy_j``, ``delay_std``, ``energy_std``.
    """
    study = sweep.shown.averaged
    names = (
        (metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J) if study else (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
    )
    rows: list[dict[str, Any]] = []
    for runs in sweep.groups().values():
        both = [[summed_up(sweep, run, name) for run in runs] for name in names]
        known = {
            "series": describe(runs[0], [key for key in sweep.keys if key not in (LAMBDA, H)]) or sweep.name,
            "point": describe(runs[0], [key for key in sweep.keys if key in (LAMBDA, H)]),
            "lambda": runs[0].config.cost.delay_weight,
        }
        spreads = [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in both]
        rows.append(known | {"delay_s": np.mean(both[0]), "energy_j": np.mean(both[1]), "delay_std": spreads[0],
                             "energy_std": spreads[1]})  # fmt: skip
    return pd.DataFrame(rows).dropna(subset=["delay_s", "energy_j"])


def fronts(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The `points` of each series, in the order in which they are joined: by λ, then by seconds."""
    return {str(name): rows.sort_values(["lambda", "delay_s"]) for name, rows in table.groupby("series", sort=False)}


def by_scheduled(sweep: Sweep) -> dict[str, dict[int, list[Run]]]:
    """Runs by data set, then by H, smallest first."""
    found: dict[str, dict[int, list[Run]]] = {}
    for run in sorted(sweep.runs, key=lambda run: run.config.scheduling.num_scheduled):
        groups = found.setdefault(pretty(run.config.data.name), {})
        groups.setdefault(run.config.scheduling.num_scheduled, []).append(run)
    return found


def against_scheduled(groups: Mapping[int, Sequence[Run]], metric: str) -> pd.DataFrame:
    """A metric's last values against H, in the unit shown.

    Returns:
        By H: ``mean``, ``std`` (0 for one run), and whether all runs ``reached`` their target accuracy.
    """
    scale, rows = metrics.describe(metric).scale, {}
    for scheduled, runs in groups.items():
        values = np.array([run.last(metric) * scale for run in runs])
        reached = all(run.reached(run.config.target_accuracy or 2) is not None for run in runs)
        rows[scheduled] = (values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0, reached)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "std", "reached"])
