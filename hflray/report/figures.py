"""The figures of a report as PNG and SVG, drawn as in the paper: means over seeds, with the standard deviation shaded.

The numbers come from `hflray.report.series` and the colours from `hflray.report.labels`; lines also differ in dash and
marker. A figure is a function ``draw(sweep)`` that returns a Matplotlib figure. To add one, write it into a file of its
own and register its name (`hflray.registry`); tasks and the exhibits of a file ``claims.yaml`` name what they draw.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hflray import metrics, registry
from hflray.errors import ConfigError, HflrayError
from hflray.report import series
from hflray.report.labels import COLOURS, colour, group_by, mark_modified
from hflray.report.ranking import QUANTITIES, fields, is_ranked, mean_ranks
from hflray.report.runs import RunRecord, SweepRecord, once, with_lengths
from hflray.report.tables import Reading, draws, is_ceiling
from hflray.support.files import replacing
from hflray.support.text import as_chart_text, shorten

if TYPE_CHECKING:
    from hflray.report.contest import Comparison, Contest

DASHES = ("-", "--", "-.", ":")
MARKERS = "os^Dv*PX"
CHARACTER = 0.065  # the mean width of a character of a legend (inches)
Name = TypeVar("Name", str, int)
Content = TypeVar("Content")  # what a figure shows
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.3, "svg.hashsalt": "hflray", "legend.frameon": False,
}  # fmt: skip


def _need(sweep: SweepRecord, metric: str) -> None:
    """Raise ConfigError if no run has the metric."""
    if not any(np.isfinite(run.last(metric)) for run in sweep.runs):
        raise ConfigError(
            f"{sweep.title}: no run of its task '{sweep.task}' logged '{metric}'; "
            "draw another figure (python -m hflray.report list), or another sweep"
        )


def _dash(number: int) -> str:
    """Return the dash of a line, so that lines of one colour and marker, which are eight apart, differ in it."""
    return DASHES[(number + number // 8) % 4]


def _line(axes: Any, table: pd.DataFrame, tint: str, number: int, x: Any = None, **style: Any) -> None:
    """Draw the mean of a curve over `x`, or over its rounds, with the standard deviation shaded."""
    x = table.index.to_numpy(dtype=float) if x is None else x
    axes.plot(x, table["mean"], _dash(number), color=tint, **style)
    axes.fill_between(x, table["low"], table["high"], color=tint, alpha=0.2)


def _target(axes: Any, target: float | None, metric: str = metrics.ACCURACY) -> None:
    """Draw a dotted line at the target, if it is set."""
    if target:
        axes.axhline(target * metrics.describe(metric).scale, color="0.4", lw=0.8, ls=":")


def _numbers(names: Iterable[Name]) -> dict[Name, int]:
    """Return the number that gives each name its look, so that a name looks the same in all panels."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _panels(
    titles: Sequence[str], columns: int, width: float, x: str, y: str, *, share_x: bool = False
) -> tuple[Figure, list[Any]]:
    """Return a figure with a panel for each title, and its panels, which share the y axis.

    Args:
        titles: titles of the panels.
        columns: the most panels in a row.
        width: width of a panel (inches).
        x: name of the x axis.
        y: name of the y axis.
        share_x: whether the panels share the x axis too.
    """
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    figure = Figure(figsize=(1.2 + width * max(columns, 1.6), 0.5 + 2.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=True)
    for axes, title in zip(grid.flat, titles, strict=False):
        axes.set_title(as_chart_text(title), fontsize=9)
        axes.set_xlabel(x)
        axes.tick_params(labelbottom=True)  # an axis that is shared has its numbers in the last row alone
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    return figure, list(grid.flat[: len(titles)])


def log_axis(axis: Any) -> None:
    """Make an axis logarithmic, with plain numbers that do not overlap: at most three a decade."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def _name_lines_below(figure: Figure) -> None:
    """Name each line once below all panels, where even a long name covers no curve and narrows no panel."""
    lines: dict[str, Any] = {}
    for axes in figure.axes:
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            lines.setdefault(name, line)
    if not lines:
        return
    widest = int((figure.get_figwidth() - 0.8) / CHARACTER)
    names = [textwrap.fill(name, widest) for name in lines]
    columns = max(1, int(figure.get_figwidth() / (0.8 + CHARACTER * max(map(len, lines)))))
    figure.set_figheight(figure.get_figheight() + 0.17 * sum(name.count("\n") + 1 for name in names) / columns)
    figure.legend(lines.values(), names, loc="outside lower center", ncols=columns, fontsize=8, handlelength=3)


def curves(sweep: SweepRecord, metric: str | None = None) -> Figure:
    """Draw a metric by round (Figures 3 and 4): a panel per test set and H, a line per value of the other settings.

    None stands for the main metric of the sweep's data.
    """
    metric = metric or sweep.main_metric
    _need(sweep, metric)
    drawn = series.curves(sweep, metric)
    figure, grid = _panels(list(drawn), 4, 2.9, sweep.shown.step_label, metrics.describe(metric).printed_axis)
    targets = {run.target for run in sweep.runs}
    numbers = _numbers(name for lines in drawn.values() for name in lines)
    for axes, lines in zip(grid, drawn.values(), strict=True):
        for name, table in lines.items():
            number = numbers[name]
            _line(axes, table, colour(name, number), number, label=as_chart_text(name), lw=1.5,
                  marker=MARKERS[number % 8], ms=3.5, markevery=max(1, len(table) // 8))  # fmt: skip
        if metric == sweep.main_metric and len(targets) == 1:
            _target(axes, next(iter(targets)), metric)
        axes.xaxis.get_major_locator().set_params(integer=True)
    _name_lines_below(figure)
    return figure


def _bars(axes: Any, bars: Sequence[series.Bar], names: Sequence[str]) -> None:
    """Draw horizontal bars of the means, with their numbers, and the standard deviations as whiskers."""
    means = [bar.mean if bar.values else 0.0 for bar in bars]
    whiskers = [bar.spread for bar in bars]
    drawn = axes.barh(
        range(len(bars)),
        means,
        xerr=whiskers if any(whiskers) else None,
        color=[bar.colour for bar in bars],
        height=0.7,
        error_kw={"ecolor": "0.35", "elinewidth": 0.8, "capsize": 2},
    )
    numbers = [f"{bar.mean:,.4g}" if bar.values else "not logged" for bar in bars]
    axes.bar_label(drawn, numbers, padding=3, fontsize=7)
    axes.set_yticks(range(len(bars)), [as_chart_text(name) for name in names], fontsize=8)
    axes.margins(x=0.18)


def cost_bars(sweep: SweepRecord) -> Figure:
    """Draw the total objective, delay, energy and messages of the runs, up to their target or their last round."""
    return _bar_panels(sweep, metrics.bars("training"))


def clustering_bars(sweep: SweepRecord) -> Figure:
    """Draw Table II as bars: the costs of Algorithm 2 and the agreement of its clusters with the majority classes."""
    return _bar_panels(sweep, metrics.bars("clustering"))


def _bar_panels(sweep: SweepRecord, rows: Sequence[metrics.Metric], marks_modified: bool = False) -> Figure:
    for row in rows:
        _need(sweep, row.name)
    count = len(sweep.groups())
    figure = Figure(figsize=(2.0 + 2.7 * len(rows), max(1.8, 0.8 + 0.28 * count)), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), sharey=True), rows, strict=True):
        bars = series.bars(sweep, row.name)
        names = [bar.label or sweep.name for bar in bars]
        marked = [mark_modified(name, bar.runs) for name, bar in zip(names, bars, strict=True)]
        _bars(axes, bars, marked if marks_modified else names)
        axes.set_xlabel(row.printed_axis)
    axes.invert_yaxis()  # all panels share the axis
    return figure


def pareto(sweep: SweepRecord) -> Figure:
    """Draw energy against delay, a point per group; a line joins the points of a series that differ in λ or H."""
    table = series.points(sweep)
    if table.empty:
        raise ConfigError(f"{sweep.title}: no run logged delay and energy; run it again, or leave this figure out")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, rows) in enumerate(series.fronts(table).items()):
        tint = colour(name, number)
        axes.errorbar(rows["delay_s"], rows["energy_j"], xerr=rows["delay_std"], yerr=rows["energy_std"], color=tint,
                      marker=MARKERS[number % 8], ms=5, ls=_dash(number), lw=1,
                      label=as_chart_text(name))  # fmt: skip
        if number == 0 or len(table) <= 12:
            for row in rows.itertuples():
                axes.annotate(str(row.point), (row.delay_s, row.energy_j), xytext=(5, 4), textcoords="offset points",
                              fontsize=7, color=tint)  # fmt: skip
    for name, axis in (("delay_s", axes.xaxis), ("energy_j", axes.yaxis)):
        if len(table) > 1 and table[name].max() > 8 * table[name].min():
            log_axis(axis)
    axes.set_xlabel(f"Simulated time delay {sweep.shown.per} (s)")
    axes.set_ylabel(f"Simulated energy {sweep.shown.per} (J)")
    _name_lines_below(figure)
    return figure


FIGURE_6 = (metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J, metrics.ROUND_OBJECTIVE, metrics.WALL_ASSIGN_S)


def assignment_bars(sweep: SweepRecord) -> Figure:
    """Draw Figure 6: T, E and objective of the assigners, as means over the fleets, and their median latency.

    The deployments of an assigner form one bar, with their standard deviation as a whisker.
    """
    figure = _bar_panels(sweep, [metrics.describe(metric) for metric in FIGURE_6], marks_modified=True)
    log_axis(figure.axes[-1].xaxis)  # the last panel is the latency
    return figure


FRAMEWORK = (
    metrics.TOTAL_OBJECTIVE, metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J, metrics.ROUND_MESSAGE_BITS,
    metrics.TOTAL_MESSAGE_BITS,
)  # fmt: skip


def framework(sweep: SweepRecord) -> Figure:
    """Draw Figure 7: accuracy by round for each data set, and objective, T, E and messages to the target against H.

    A point is hollow if not all of its runs reached the target; it then shows their costs up to their last round.
    """
    _need(sweep, metrics.ACCURACY)
    accuracy, by_data = metrics.describe(metrics.ACCURACY), series.by_scheduled(sweep)
    height = -(-(len(by_data) + len(FRAMEWORK)) // 4)
    figure = Figure(figsize=(13, 3 * height), layout="constrained")
    grid = list(figure.subplots(height, 4).flat)
    numbers = _numbers(sorted(h for groups in by_data.values() for h in groups))
    shown = {name: as_chart_text("\n".join(textwrap.wrap(name, 34))) for name in by_data}
    for axes, (name, groups) in zip(grid, by_data.items(), strict=False):
        for scheduled, runs in groups.items():
            number, table = numbers[scheduled], series.mean_curve(runs, accuracy)
            _line(axes, table, COLOURS[number % len(COLOURS)], number, label=f"H = {scheduled}", lw=1.4)
        _target(axes, next(iter(groups.values()))[0].config.target_accuracy)
        axes.set(xlabel="Round", ylabel=accuracy.printed_axis)
        axes.set_title(shown[name], fontsize=9)
        axes.legend(fontsize=7)
    cost_panels = grid[len(by_data) :]
    for axes, metric in zip(cost_panels, FRAMEWORK, strict=False):
        for number, (name, groups) in enumerate(by_data.items()):
            tint, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            table = series.against_scheduled(groups, metric)
            axes.errorbar(table.index, table["mean"], yerr=table["std"], color=tint, ls=_dash(number), lw=1.2,
                          label=shown[name])  # fmt: skip
            for h, row in table.iterrows():
                axes.plot(h, row["mean"], marker, ms=6, color=tint, mfc=tint if row["reached"] else "white")
        axes.set(xlabel="Scheduled devices $H$", ylabel=metrics.describe(metric).printed_axis)
    if len(by_data) > 1:
        cost_panels[0].legend(fontsize=6)
    for axes in cost_panels[len(FRAMEWORK) :]:
        axes.set_visible(False)
    return figure


def learning(sweep: SweepRecord) -> Figure:
    """Draw Figure 5: the return of an episode while the assigner learns."""
    return curves(sweep, metrics.ASSIGNER_RETURN)


def readings(sweep: SweepRecord) -> Figure:
    """Draw Figure 5 by the readings of Algorithm 5, with a panel for each scale of the gains and start of the teacher.

    A line is a buffer, a network, a number of draws of a transition and what else differs between its runs. The return
    is that of the greedy policy on held-out fleets, by updates of the network. A dotted line is the supervised ceiling
    of a network.
    """
    metric = metrics.describe(metrics.ASSIGNER_GREEDY_RETURN)
    _need(sweep, metric.name)
    panels: dict[str, dict[str, list[RunRecord]]] = {}
    ceilings: dict[str, list[RunRecord]] = {}
    for run in sorted(once(sweep.runs), key=Reading.of):
        reading, units = Reading.of(run), run.config.learning.hidden
        groups = panels.setdefault(reading.taught, {})
        if is_ceiling(run):
            ceilings.setdefault(reading.taught, []).append(run)
        else:
            name = f"buffer of {reading.buffer:,}, {units} units, {draws(run):g} draws"
            groups.setdefault(name, []).append(run)
    for groups in panels.values():
        for name, runs in list(groups.items()):
            if keys := with_lengths(runs):
                del groups[name]
                groups |= {", ".join(filter(None, (name, label))): members
                           for label, members in group_by(runs, keys).items()}  # fmt: skip
    numbers = _numbers(sorted(name for groups in panels.values() for name in groups))
    figure, grid = _panels(list(panels), 2, 3.6, "Updates of the network", metric.printed_axis, share_x=True)
    for axes, (title, groups) in zip(grid, panels.items(), strict=True):
        for name, runs in groups.items():
            number, table = numbers[name], series.mean_curve(runs, metric)
            updates = table.index.to_numpy(dtype=float) * draws(runs[0]) / runs[0].config.learning.train_batch
            _line(axes, table, COLOURS[number % len(COLOURS)], number, x=updates, label=as_chart_text(name),
                  lw=1.4)  # fmt: skip
        for run in ceilings.get(title, []):
            units, level = run.config.learning.hidden, run.last(metric.name) * metric.scale
            widest = units == max(other.config.learning.hidden for other in ceilings[title])
            axes.axhline(level, color="0.3", lw=0.8, ls=":")
            axes.annotate(f"ceiling, {units} units", (0.02, level), xycoords=("axes fraction", "data"), fontsize=7,
                          va="bottom" if widest else "top")  # fmt: skip
        log_axis(axes.xaxis)
    _name_lines_below(figure)
    return figure


def agent(sweep: SweepRecord) -> Figure:
    """Draw the return of an episode while a scheduler learns."""
    return curves(sweep, metrics.AGENT_RETURN)


def ranks(sweep: SweepRecord) -> Figure:
    """Draw the mean rank of each scheduler by what it needs to the target accuracy; a shorter bar is better.

    Each field of the ranking, such as a partition, is a row of panels. A field in which no run reached its target
    accuracy has no ranks and is left out.
    """
    ended = fields(sweep.runs)
    if not ended:
        raise ConfigError(f"{sweep.title}: no run has ended; let one end, or leave this figure out")
    by_field = {field: contestants for field, contestants in ended.items() if is_ranked(contestants)}
    if not by_field:
        raise ConfigError(
            f"{sweep.title}: nothing can be ranked, because no run reached its target, or one scheduler is alone"
        )
    longest = max(len(contestants) for contestants in by_field.values())
    size = (11, len(by_field) * max(2.0, 0.9 + 0.3 * longest))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(by_field), len(QUANTITIES), squeeze=False, sharey="row")
    for panels, (field, contestants) in zip(grid, by_field.items(), strict=True):
        by_quantity = {quantity: mean_ranks(contestants, quantity) for quantity in QUANTITIES}
        names = sorted(contestants, key=lambda name: np.nan_to_num(by_quantity["joules"][name], nan=np.inf))
        for axes, (quantity, places) in zip(panels, by_quantity.items(), strict=True):
            bars = axes.barh(range(len(names)), [places[name] for name in names], height=0.7, color=COLOURS[0])
            axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=7)
            axes.set_yticks(range(len(names)), [as_chart_text(name) for name in names], fontsize=8)
            axes.set_xlabel(f"Mean rank by {quantity} to the target")
            axes.margins(x=0.18)
        panels[0].set_title(as_chart_text(field), fontsize=9, loc="left")
        panels[0].invert_yaxis()  # the panels of a row share the axis
    return figure


def forest(result: Contest) -> Figure:
    """Draw each contestant beside the reference: a panel per metric and scale, a row per case and contestant.

    Ratios stand on a logarithmic axis, with the 95 % interval of their mean. A hollow point is a median, because runs
    missed their target; its line leads to its bounds, and an arrow points to one that is not known.
    """
    by_axis: dict[tuple[str, str], list[Comparison]] = {}
    for row in result.rows:
        by_axis.setdefault((row.endpoint.metric, row.endpoint.scale), []).append(row)
    places = _numbers(row.name for row in result.rows)
    tints = _numbers(row.contestant for row in result.rows)
    figure = Figure(figsize=(2.5 + 2.6 * len(by_axis), 1.1 + 0.28 * len(places)), layout="constrained")
    grid = figure.subplots(1, len(by_axis), squeeze=False, sharey=True)[0]
    for axes, ((_, scale), rows) in zip(grid, by_axis.items(), strict=True):
        ratio = scale == "ratio"
        axes.axvline(1 if ratio else 0, color="0.4", lw=0.8, ls=":")
        for row in rows:
            y, tint = places[row.name], colour(row.contestant, tints[row.contestant])
            estimate, low, high = row.numbers
            ends = [end for end in (low, high) if np.isfinite(end) and (end > 0 or not ratio)]
            axes.plot(ends, [y] * len(ends), color=tint, lw=1.5)
            marker = "o" if np.isfinite(estimate) else "|" if len(ends) == 2 else "<" if low in (0, -np.inf) else ">"
            points = [estimate] if np.isfinite(estimate) else ends
            axes.plot(points, [y] * len(points), marker, ms=5, color=tint, mfc="white" if row.censored else tint)
        if ratio:
            log_axis(axes.xaxis)
            low, high = axes.get_xlim()
            if high < 5 * low:  # as few as one of the numbers 1, 2 and 5 may lie between
                axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        unit = " (points)" if scale == "points" else ""
        words = f"relative to {rows[0].reference}" if ratio else f"minus that of {rows[0].reference}{unit}"
        lines = (rows[0].endpoint.label, *textwrap.wrap(words, 34))
        axes.set_xlabel("\n".join(map(as_chart_text, lines)), fontsize=8)
    grid[0].set_yticks(range(len(places)), [as_chart_text(name) for name in places], fontsize=8)
    grid[0].set_ylim(len(places) - 0.5, -0.5)
    return figure


def save(draw: Callable[[Content], Figure], content: Content, folder: Path, stem: str) -> list[Path]:
    """Draw a figure, write ``STEM.png`` and ``STEM.svg``, and return their paths. Raises ConfigError: it is none."""
    paths = [folder / f"{stem}.png", folder / f"{stem}.svg"]
    with rc_context(STYLE):
        figure = draw(content)
        if not isinstance(figure, Figure):
            raise ConfigError(f"{stem}: got {shorten(figure)}; accepted: a matplotlib.figure.Figure; return one")
        with replacing(paths[0]) as scratch:
            figure.savefig(scratch, dpi=160, metadata={"Software": None})
        with replacing(paths[1]) as scratch:
            figure.savefig(scratch, metadata={"Date": None})
    return paths


def save_all(sweep: SweepRecord, drawings: Mapping[str, str], folder: Path, missing: list[str]) -> list[Path]:
    """Draw figures by the stem of their file and return the paths; add a line to `missing` for each without one."""
    paths: list[Path] = []
    for stem, name in drawings.items():
        try:
            paths += save(registry.resolve("figure", name), sweep, folder, stem)
        except HflrayError as error:
            missing.append(f"{stem}: not drawn: {error}")
    return paths
