"""The tables of a report, as markdown and as LaTeX: one row per group of runs that differ only in the seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hflray import metrics
from hflray.assignment.features import PAPERS
from hflray.report.labels import mark_modified, pretty
from hflray.report.runs import RunRecord, SweepRecord
from hflray.report.series import STATISTICS, last_step
from hflray.support.files import write as write_file
from hflray.support.terminal.tables import TextTable


def spread(values: Sequence[float], form: str) -> str:
    """Format the mean of the finite values, and the standard deviation of several; a dash if there is none."""
    finite = np.asarray([value for value in values if np.isfinite(value)])
    if not len(finite):
        return "–"
    if len(finite) == 1:
        return form.format(finite[0])
    mean, deviation = float(finite.mean()), float(finite.std(ddof=1))
    if digits := re.search(r"#?\.(\d+)g", form):  # significant digits are those of the larger, for both alike
        larger = f"{max(abs(mean), deviation):#.{digits[1]}g}"
        form = form if "e" in larger else f"{{:,.{len(larger.partition('.')[2])}f}}"
    return f"{form.format(mean)} ± {form.format(deviation)}"


def _rows(sweep: SweepRecord, table: metrics.Table, length: str) -> TextTable:
    candidates = [row for row in metrics.rows(table, sweep.logged) if row.heading]
    columns = [row for row in candidates if any(np.isfinite(run.last(row.name)) for run in sweep.runs)]
    rows = []
    groups = sweep.groups()
    forms = {column: _form(column, groups.values()) for column in columns}
    for label, runs in groups.items():
        row = {"": mark_modified(label or sweep.name, runs), "seeds": str(len(runs))}
        if length:
            ends = sorted({int(run.rounds["round"].iloc[-1]) for run in runs})
            row[length] = " to ".join(f"{end:,}" for end in dict.fromkeys((ends[0], ends[-1])))
            row[length] += "" if all(run.ended for run in runs) else " …"
            row[length] += " ⊣" if any(run.history.stopped for run in runs) else ""
        for column in columns:
            values = [run.last(column.name) * column.scale for run in runs]
            row[column.column] = spread(values, forms[column])
            count = sum(map(np.isfinite, values))
            if column.logged == "end" and 0 < count < len(runs):
                row[column.column] += f" ({count} of {len(runs)})"
        rows.append(row)
    return TextTable.of(rows)


def _form(column: metrics.Metric, groups: Iterable[Sequence[RunRecord]]) -> str:
    """Return the format of a column's means, with the digits that the least of them needs."""
    finite = [[value for run in runs if np.isfinite(value := run.last(column.name))] for runs in groups]
    means = [float(np.mean(values)) * column.scale for values in finite if values]
    form = column.mean or column.format
    return form if column.shown == "%" else metrics.enough_digits(form, means)


# The columns of an assignment study: the metric, its statistic over the fleets, and the heading.
ASSIGNMENT = (
    (metrics.ROUND_DELAY_S, "mean", "{}"),
    (metrics.ROUND_ENERGY_J, "mean", "{}"),
    (metrics.ROUND_OBJECTIVE, "mean", "{}"),
    (metrics.ROUND_OBJECTIVE, "median", "its median"),
    (metrics.ASSIGNMENT_GAP, "median", "{}: median"),
    (metrics.ASSIGNMENT_GAP, "mean", "mean"),
    (metrics.ASSIGNMENT_GAP, "p95", "p95"),
    (metrics.ASSIGNMENT_GAP, "worst", "worst"),
    (metrics.WALL_ASSIGN_S, "median", "{}: median"),
    (metrics.WALL_ASSIGN_S, "p95", "its p95"),
)


def _assignment(sweep: SweepRecord) -> TextTable:
    """Return one row per assigner, with means ± standard deviations over its seeds or deployments.

    The worst gap is the worst over all of them.
    """
    groups = sweep.groups()
    several = any(len(runs) > 1 for runs in groups.values())
    rows = []
    for label, runs in groups.items():
        coupling = runs[0].config.allocation.coupling.replace("_", " ")
        row = {"": mark_modified(label or sweep.name, runs), "coupling": coupling}
        if several:
            row["deployments"] = str(len(runs))
        row["fleets"] = spread([len(run.rounds) for run in runs], "{:.0f}").split(" ")[0]
        row["fleets"] += "" if all(run.ended for run in runs) else " …"
        for metric, name, template in ASSIGNMENT:
            description, statistic = metrics.describe(metric), STATISTICS[name]
            values = [statistic(run.series(metric)) * description.scale for run in runs]
            heading = template.format(description.column)
            row[heading] = spread([max(values)] if name == "worst" else values, description.format)
        rows.append(row)
    return TextTable.of(rows)


# The readings of Algorithm 5: what the paper leaves open, a reading's ceiling, and whether a policy still improves.

# A policy still improves if the mean return of its last quarter is more than this above the quarter before.
IMPROVING = 1.0
FEATURES, START, BUFFER = "learning.features", "learning.teacher.start", "learning.buffer_capacity"


class Reading(NamedTuple):
    """What the paper leaves open and what decides how much Algorithm 5 can learn.

    Attributes:
        features: ``paper`` (linear gains) or ``paper_db``.
        start: the assignment from which the teacher's search starts.
        buffer: transitions in the replay buffer.
    """

    features: str
    start: str
    buffer: int

    @classmethod
    def of(cls, run: RunRecord) -> Reading:
        """Return the reading of a run of Algorithm 5."""
        settings = run.settings
        return cls(str(settings[FEATURES]), str(settings[START]), int(settings[BUFFER]))

    @property
    def taught(self) -> str:
        """What decides the ceiling: the gains' scale and the start of the teacher's search."""
        gains = "gains in dB" if self.features == "paper_db" else "linear gains"
        return f"{gains}, {pretty(self.start)} start"

    def __str__(self) -> str:
        return f"{self.taught}, buffer of {self.buffer:,}"


def is_ceiling(run: RunRecord) -> bool:
    """Return whether a run teaches the paper's network by cross-entropy alone, which gives a reading's ceiling."""
    settings = run.settings
    supervised = settings.get("learning.td") == 0 and settings.get("learning.architecture") == "bilstm"
    return supervised and settings.get(FEATURES) in PAPERS


def draws(run: RunRecord) -> float:
    """Return how often a transition is drawn from the replay buffer, on average."""
    learning = run.config.learning
    return learning.training_intensity or learning.train_batch / (learning.update_every or 1)


def improves(run: RunRecord) -> bool:
    """Return whether a policy still improves at its end: by more than `IMPROVING` in its last quarter."""
    values, last = run.series(metrics.ASSIGNER_RETURN), last_step(run, metrics.ASSIGNER_RETURN)
    quarter = np.minimum(3, (values.index.to_numpy() - 1) * 4 // max(1, last))
    return float(values[quarter == 3].mean() - values[quarter == 2].mean()) > IMPROVING


def last_tenth(run: RunRecord, metric: str) -> list[float]:
    """Return the values of a metric in the last tenth of a run's steps."""
    values = run.series(metric)
    return [float(value) for value in values[values.index > 0.9 * last_step(run, metric)]]


def _readings(sweep: SweepRecord) -> TextTable:
    """Return one row per run of Algorithm 5: its reading, the ceiling of it, and the policy at the end.

    The return, the agreement and the cost are of the greedy policy on the held-out fleets: means over the evaluations
    of the last tenth of the steps, the return with their standard deviation. The ceiling is the return of the same
    network after cross-entropy on the teacher's labels (`is_ceiling`), and stands beside its cost.
    """
    units, relative = "learning.hidden", metrics.assigner_ratio("hfel-300")
    ceilings = {(*Reading.of(run)[:2], run.settings[units]): run for run in sweep.runs if is_ceiling(run)}
    rows = []
    learners = [run for run in sweep.runs if not is_ceiling(run)]
    for run in sorted(learners, key=lambda run: (Reading.of(run), run.settings[units], run.seed)):
        reading = Reading.of(run)
        ceiling = ceilings.get((*reading[:2], run.settings[units]))
        ended = last_tenth(run, metrics.ASSIGNER_GREEDY_RETURN)
        agreement = last_tenth(run, metrics.ASSIGNER_AGREEMENT)
        cost = last_tenth(run, relative)
        rows.append(
            {
                "": mark_modified(str(reading), [run]),
                "seed": str(run.seed),
                "steps": f"{int(run.rounds['round'].iloc[-1]):,}" + ("" if run.ended else " …"),
                "units": str(run.settings[units]),
                "draws of a transition": f"{draws(run):g}",
                "supervised ceiling": "–" if ceiling is None else f"{ceiling.last(metrics.ASSIGNER_GREEDY_RETURN):.1f}",
                "ceiling's objective / HFEL-300's": "–" if ceiling is None else f"{ceiling.last(relative):.2f}",
                "return": spread(ended, "{:.1f}"),
                "agreement, %": f"{100 * np.mean(agreement):.1f}",
                "objective / HFEL-300's": f"{np.mean(cost):.2f}",
                "still improves": "yes" if improves(run) else "no",
            }
        )
    return TextTable.of(rows)


def has_readings(sweep: SweepRecord) -> bool:
    """Return whether a summary has a row for each run that learns (`_readings`), and not one for each group."""
    return sweep.shown.table == "learning" and {is_ceiling(run) for run in sweep.runs} == {True, False}


def _learning(sweep: SweepRecord) -> TextTable:
    return _readings(sweep) if has_readings(sweep) else _rows(sweep, "learning", "steps")


TABLES: dict[metrics.Table, Callable[[SweepRecord], TextTable]] = {
    "training": lambda sweep: _rows(sweep, "training", "rounds"),
    "clustering": lambda sweep: _rows(sweep, "clustering", ""),
    "assignment": _assignment,
    "learning": _learning,
}


def summary(sweep: SweepRecord) -> TextTable:
    """Return one row per group of runs: means over seeds ± standard deviations, as text.

    "…" marks a row with a run that has not ended, and "⊣" one with a run that was stopped early.
    """
    return replace(TABLES[sweep.shown.table](sweep), title=sweep.title)


def write(sweep: SweepRecord, folder: Path) -> list[Path]:
    """Write the summary as ``summary.md`` and ``summary.tex``; return their paths."""
    table = replace(summary(sweep), caption=sweep.description or sweep.name)
    texts = {"summary.md": table.markdown(), "summary.tex": table.latex()}
    return [write_file(folder / name, text) for name, text in texts.items()]
