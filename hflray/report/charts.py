"""The numbers and titles of the page's charts, from `hflray.report.series`; `page.js` draws them with Plotly.

A *group* is the runs that differ only in the seed. Every chart refers to the groups by their number, so that the page
can show some of them in all charts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.report import series
from hflray.report.labels import COLOURS, colour, label_each
from hflray.report.runs import SweepRecord
from hflray.timeline import Timeline

LINES = ("solid", "dash", "dashdot", "dot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "star", "cross", "x")
# The quantities that can replace the rounds on the horizontal axis of the curves, with their titles.
X_AXES = (
    (metrics.TOTAL_DELAY_S, "Simulated time"),
    (metrics.TOTAL_ENERGY_J, "Simulated energy"),
    (metrics.TOTAL_MESSAGE_BITS, "Messages"),
)
POINTS = 24_000  # the points of a chart's curves; with more rounds, each curve has evenly chosen ones
NUMBER = re.compile(r"(?:^| )([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)%?$")  # at the end of a value's label
MAX_CHOICES = 12  # the values of a setting that has a button for each
MOST_TURNS, DECIMALS = 3000, 6  # turns of edges that a page has of a run, and the decimals of their times


def rounded(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Return the values with this number of significant digits; None stands for a value that is not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def groups(sweep: SweepRecord) -> list[dict[str, Any]]:
    """Return each group's label, its line's ``colour``, ``dash`` and ``symbol``, and its ``values`` of what varies.

    Groups that differ only in H or λ share a colour and have different lines, unless there are too many of them.
    """
    colours = series.group_colours(sweep)
    alike = Counter(colours.values())
    by_number = bool(alike) and max(alike.values()) > len(LINES)
    used: Counter[str] = Counter()
    drawn = []
    members = sweep.groups()
    firsts = [runs[0] for runs in members.values()]
    values = zip(*(label_each(firsts, [key]) for key in sweep.keys), strict=True) if sweep.keys else [()] * len(firsts)
    for number, (label, of_it) in enumerate(zip(members, values, strict=True)):
        tint = colour(label, number) if by_number else colours[label]
        place = number // len(COLOURS) if by_number else used[tint]
        used[tint] += 1
        drawn.append(
            {
                "label": label or sweep.name,
                "colour": tint,
                "dash": LINES[place % len(LINES)],
                "symbol": SYMBOLS[(number if by_number else place) % len(SYMBOLS)],
                "values": list(of_it),
            }
        )
    return drawn


def choices(sweep: SweepRecord) -> list[dict[str, Any]]:
    """Return the settings by which a reader chooses or colours groups.

    Each has the ``key``, its ``place`` in a group's ``values``, and the ``labels`` there with their ``colours``.
    """
    every = [group["values"] for group in groups(sweep)]
    offered = []
    for place, key in enumerate(sweep.keys):
        labels = _in_order([label for label in dict.fromkeys(values[place] for values in every) if label])
        if 1 < len(labels) <= MAX_CHOICES:
            tints = [colour(label, number) for number, label in enumerate(labels)]
            offered.append({"key": key, "place": place, "labels": labels, "colours": tints})
    return offered


def _in_order(labels: Sequence[str]) -> list[str]:
    """Return labels that end in a number, such as ``λ = 0.1``, by that number, and others as they are."""
    places = {label: float(number[1]) for label in labels if (number := NUMBER.search(label))}
    return sorted(labels, key=places.__getitem__) if len(places) == len(labels) else list(labels)


def curves(sweep: SweepRecord) -> dict[str, Any] | None:
    """Return the curves over the rounds that all seeds have: means, with the standard deviation of several seeds.

    Returns:
        ``axes``, the titles of the horizontal axes that all groups have; ``first``, the number of the one that is shown
        first, simulated time where a cloud is not synchronous; ``x``, by group and axis the values; and
        ``charts``, each with a ``title`` and, by group, the ``mean`` and the ``std`` at these x, or None. The result is
        None if no run has one of the metrics.
    """
    members = list(sweep.groups().values())
    drawn: list[tuple[metrics.Metric, dict[int, pd.DataFrame]]] = []
    for row in metrics.curves(sweep.logged):
        lines = {place: series.mean_curve(runs, row) for place, runs in enumerate(members)}
        tables = {place: line for place, line in lines.items() if len(line)}
        if tables:
            drawn.append((row, tables))
    if not drawn:
        return None
    by_group = {place: [tables[place] for _, tables in drawn if place in tables] for place in range(len(members))}
    rounds = {place: _rounds(tables, len(members)) for place, tables in by_group.items() if tables}
    axes, x = [sweep.shown.step_label], {place: [steps.tolist()] for place, steps in rounds.items()}
    for key, title in X_AXES:
        row = metrics.describe(key)
        totals = {place: series.mean_curve(members[place], row)["mean"] for place in rounds}
        means = {place: totals[place].reindex(steps) for place, steps in rounds.items()}
        if not any(column.isna().all() for column in means.values()):
            axes.append(row.axis_of(title))
            for place, column in means.items():
                x[place].append(rounded(column))
    charts = [
        {"title": row.axis, "lines": [_line(tables.get(place), rounds.get(place)) for place in range(len(members))]}
        for row, tables in drawn
    ]
    # Rounds of clouds that do not wait are no measure of time.
    waits = all(run.config.clock.cloud.kind == "synchronous" for runs in members for run in runs)
    time = metrics.describe(metrics.TOTAL_DELAY_S).axis_of("Simulated time")
    first = axes.index(time) if not waits and time in axes else 0
    return {"axes": axes, "first": first, "x": [x.get(place) for place in range(len(members))], "charts": charts}


def _rounds(tables: Sequence[pd.DataFrame], lines: int) -> np.ndarray[Any, Any]:
    """Return the rounds of any of a group's curves; if there are too many, some of them with the first and the last."""
    every = np.unique(np.concatenate([table.index.to_numpy() for table in tables]))
    most = max(50, POINTS // lines)
    if len(every) <= most:
        return every
    return np.asarray(every[np.unique(np.linspace(0, len(every) - 1, most).astype(int))])


def _line(table: pd.DataFrame | None, steps: np.ndarray[Any, Any] | None) -> dict[str, Any] | None:
    if table is None or steps is None:
        return None
    shown = table.reindex(steps)
    deviation = shown["high"] - shown["mean"]
    return {"mean": rounded(shown["mean"]), "std": rounded(deviation) if deviation.any() else None}


def bars(sweep: SweepRecord, metric: str) -> dict[str, Any] | None:
    """Return a bar for each group: the mean and the standard deviation; None if no run has the metric."""
    every = series.bars(sweep, metric)
    if not any(bar.values for bar in every):
        return None
    return {
        "title": metrics.describe(metric).axis,
        "mean": rounded(bar.mean for bar in every),
        "std": rounded(bar.spread for bar in every),
    }


def pareto(sweep: SweepRecord) -> dict[str, Any] | None:
    """Return energy against delay, a point for each group, in the lines that join them; None if no group has both."""
    table = series.points(sweep)
    if table.empty:
        return None
    per, lines = sweep.shown.per, []
    for name, rows in series.fronts(table).items():
        columns = {key: rounded(rows[key]) for key in ("delay_s", "energy_j", "delay_std", "energy_std")}
        lines.append({"name": name, "group": rows.index.tolist(), "point": rows["point"].tolist(), **columns})
    return {"x": f"Simulated time delay {per} (s)", "y": f"Simulated energy {per} (J)", "lines": lines}


def turns_of(rounds: Iterable[tuple[Timeline, float]]) -> dict[str, list[Any]] | None:
    """Return the turns whose models reached the cloud, in the order of the updates, and the ends of the rounds.

    All times are in s since the beginning of the first round. The keys are those of an update: its ``edge``, the
    ``start`` of its turn, when the edge began to send (``sent``) and when its model arrived (``end``), the ``version``
    of the global model from which the turn began, its staleness (``stale``) and its ``share`` in the step. ``rounds``
    are the ends of the rounds. The turns end with the round in which they become more than `MOST_TURNS`.

    Args:
        rounds: the timelines of consecutive rounds from the first, and how long each round lasted, s.

    Returns:
        The columns; None if the rounds have no turns, as under another cloud.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("edge", "start", "sent", "end", "version", "stale", "share", "rounds")
    }
    begin_s = 0.0
    last_s: dict[int, float] = {}  # when an edge's last model arrived
    first_s: dict[tuple[int, int], float] = {}  # when a turn of an edge began; its rows may end in several rounds
    for timeline, delay_s in rounds:
        if timeline.updates is None or timeline.turn is None:
            break
        for edge, turn, start_s in zip(timeline.edges, timeline.turn, np.fmin.reduce(timeline.start_s), strict=True):
            if np.isfinite(start_s):
                key = int(edge), int(turn)
                first_s[key] = min(first_s.get(key, np.inf), float(start_s) + begin_s)
        for edge, turn, version, sent_s, end_s, stale, share in timeline.updates:
            # At an asynchronous edge a turn may have no pass of its own; then it begins when the last model arrived.
            start_s = first_s.pop((int(edge), int(turn)), last_s.get(int(edge), 0.0))
            last_s[int(edge)] = end_s + begin_s
            whole = {"edge": int(edge), "version": int(version), "stale": int(stale)}
            real = {"start": start_s, "sent": sent_s + begin_s, "end": end_s + begin_s, "share": share}
            for name, value in (whole | {name: round(float(value), DECIMALS) for name, value in real.items()}).items():
                columns[name].append(value)
        begin_s += delay_s
        columns["rounds"].append(round(begin_s, DECIMALS))
        if len(columns["edge"]) > MOST_TURNS:
            break
    return columns if columns["rounds"] else None
