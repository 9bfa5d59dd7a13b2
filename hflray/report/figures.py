"""The figures of a report, as the paper draws them: means over seeds with the standard deviation shaded, PNG and SVG.

Colours are Okabe and Ito's, which the colour-blind tell apart; lines differ in dash and marker as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from hflray import metrics
from hflray.errors import ConfigError
from hflray.report.runs import Run, Sweep, describe, pretty, rank
from hflray.report.tables import study

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A00")
OWN = {"IKC": 0, "VKC": 4, "FedAvg": 1}  # the same scheduler has the same colour on every page
DASHES = ("-", "--", "-.", ":")
MARKERS = "os^Dv*PX"
H, DATA, LAMBDA = "scheduling.num_scheduled", "data.name", "cost.delay_weight"
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.3, "svg.hashsalt": "hflray", "legend.frameon": False,
}  # fmt: skip
COSTS = (
    (metrics.TOTAL_OBJECTIVE, "Objective $E + λT$ (J)", 1.0),
    (metrics.TOTAL_DELAY_S, "Time delay $T$ (s)", 1.0),
    (metrics.TOTAL_ENERGY_J, "Energy consumption $E$ (J)", 1.0),
    (metrics.TOTAL_MESSAGE_BITS, "Messages in total (MB)", 1 / 8e6),
)


def colour(label: str, number: int) -> str:
    """The colour of a series: its scheduler's, if that is all that it says, else by number."""
    return COLOURS[OWN.get(label, number) % len(COLOURS)]


def tints(sweep: Sweep) -> dict[str, str]:
    """A colour for each group: groups that differ in H or λ only have the same."""
    series = {
        label: describe(runs[0], [key for key in sweep.keys if key not in (H, LAMBDA)])
        for label, runs in sweep.groups().items()
    }
    number = {name: place for place, name in enumerate(dict.fromkeys(series.values()))}
    return {label: colour(name, number[name]) for label, name in series.items()}


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


def _need(sweep: Sweep, metric: str) -> None:
    """Raise ConfigError if no run has a metric that a figure draws."""
    if not any(np.isfinite(run.last(metric)) for run in sweep.runs):
        raise ConfigError(
            f"{sweep.title}: no run of its task '{sweep.task}' logged '{metric}'; "
            "draw another figure (python -m hflray.report list), or another sweep"
        )


def curves(
    sweep: Sweep, metric: str = metrics.ACCURACY, label: str = "Test accuracy (%)", scale: float = 100
) -> Figure:
    """A metric by round (Figures 3 and 4): a panel for each data set and H, a line for each of the rest."""
    _need(sweep, metric)
    drawn = panels(sweep)
    columns = min(4, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(1.2 + 2.9 * max(columns, 1.6), 0.5 + 2.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=len(drawn) > 1)
    targets = {run.config.target_accuracy for run in sweep.runs}
    steps = "Environment steps" if sweep.task == "train_assigner" else "Round"
    for axes, (title, series) in zip(grid.flat, drawn.items(), strict=False):
        for number, (name, runs) in enumerate(series.items()):
            values = over_seeds(runs, metric) * scale
            x, tint = values.index.to_numpy(), colour(name, number)
            every = max(1, len(x) // 8)
            axes.plot(x, values["mean"], DASHES[number % 4], color=tint, label=name, lw=1.5,
                      marker=MARKERS[number % 8], ms=3.5, markevery=every)  # fmt: skip
            axes.fill_between(x, values["mean"] - values["std"], values["mean"] + values["std"], color=tint, alpha=0.2)
        target = targets.copy().pop() if len(targets) == 1 else None
        if metric == metrics.ACCURACY and target:
            axes.axhline(100 * target, color="0.4", lw=0.8, ls=":")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(steps)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(fontsize=8, loc="best")
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
    for axes in list(grid.flat)[len(drawn) :]:
        axes.set_visible(False)
    return figure


def _bars(axes: Any, sweep: Sweep, metric: str, scale: float) -> None:
    """A bar for each group: the mean of the last values, the standard deviation as a whisker."""
    groups = {
        label: [run.last(metric) * scale for run in runs if np.isfinite(run.last(metric))]
        for label, runs in sweep.groups().items()
    }
    means = [float(np.mean(values)) if values else 0.0 for values in groups.values()]
    whiskers = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in groups.values()]
    bars = axes.barh(
        range(len(means)),
        means,
        xerr=whiskers if any(whiskers) else None,
        color=list(tints(sweep).values()),
        height=0.7,
    )
    said = [f"{mean:,.4g}" if values else "not known" for mean, values in zip(means, groups.values(), strict=True)]
    axes.bar_label(bars, said, padding=3, fontsize=7)
    axes.set_yticks(range(len(means)), [label or sweep.name for label in groups], fontsize=8)
    axes.margins(x=0.18)


def cost_bars(sweep: Sweep) -> Figure:
    """What the runs cost in total, up to their target or their last round: objective, delay, energy, messages."""
    return _bar_panels(sweep, COSTS)


def clustering_bars(sweep: Sweep) -> Figure:
    """Table II as bars: what Algorithm 2 costs, and how well it finds the majority classes."""
    return _bar_panels(
        sweep,
        (
            (metrics.CLUSTERING_DELAY_S, "Delay of the clustering (s)", 1.0),
            (metrics.CLUSTERING_ENERGY_J, "Energy of the clustering (J)", 1.0),
            (metrics.CLUSTERING_ARI, "Adjusted Rand index", 1.0),
        ),
    )


def _bar_panels(sweep: Sweep, wanted: Sequence[tuple[str, str, float]]) -> Figure:
    for metric, _, _ in wanted:
        _need(sweep, metric)
    count = len(sweep.groups())
    figure = Figure(figsize=(2.0 + 2.7 * len(wanted), max(1.8, 0.8 + 0.28 * count)), layout="constrained")
    for axes, (metric, label, scale) in zip(figure.subplots(1, len(wanted), sharey=True), wanted, strict=True):
        _bars(axes, sweep, metric, scale)
        axes.set_xlabel(label)
    axes.invert_yaxis()  # of one, and so of all, which share it
    return figure


def points(sweep: Sweep) -> pd.DataFrame:
    """Seconds and joules of each group: means and standard deviations of totals (of rounds, in an assignment study)."""
    study = sweep.task == "assignment"
    names = (
        (metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J) if study else (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
    )
    rows = []
    for runs in sweep.groups().values():
        both = [[run.series(name).mean() if study else run.last(name) for run in runs] for name in names]
        known = {
            "series": describe(runs[0], [key for key in sweep.keys if key not in (LAMBDA, H)]) or sweep.name,
            "point": describe(runs[0], [key for key in sweep.keys if key in (LAMBDA, H)]),
            "lambda": runs[0].config.cost.delay_weight,
        }
        spreads = [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in both]
        rows.append(known | {"delay_s": np.mean(both[0]), "energy_j": np.mean(both[1]), "delay_std": spreads[0],
                             "energy_std": spreads[1]})  # fmt: skip
    return pd.DataFrame(rows).dropna(subset=["delay_s", "energy_j"])


def pareto(sweep: Sweep) -> Figure:
    """Seconds against joules, a point for each group; points of one series that differ in λ or H are joined."""
    table = points(sweep)
    if table.empty:
        raise ConfigError(f"{sweep.title}: no run logged delay and energy; run it again, or leave this figure out")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, rows) in enumerate(table.groupby("series", sort=False)):
        rows = rows.sort_values(["lambda", "delay_s"])
        tint = colour(str(name), number)
        axes.errorbar(rows["delay_s"], rows["energy_j"], xerr=rows["delay_std"], yerr=rows["energy_std"], color=tint,
                      marker=MARKERS[number % 8], ms=5, ls=DASHES[number % 4], lw=1, label=str(name))  # fmt: skip
        if number == 0 or len(table) <= 12:
            for row in rows.itertuples():
                axes.annotate(str(row.point), (row.delay_s, row.energy_j), xytext=(5, 4), textcoords="offset points",
                              fontsize=7, color=tint)  # fmt: skip
    if len(table) > 1 and table["delay_s"].max() > 8 * table["delay_s"].min():
        axes.set_xscale("log")
    if len(table) > 1 and table["energy_j"].max() > 8 * table["energy_j"].min():
        axes.set_yscale("log")
    per = "a round" if sweep.task == "assignment" else "in total"
    axes.set_xlabel(f"Simulated time delay {per} (s)")
    axes.set_ylabel(f"Simulated energy {per} (J)")
    axes.legend(fontsize=8)
    return figure


def assignment_bars(sweep: Sweep) -> Figure:
    """Figure 6: T, E and objective of the assigners, means over the fleets, and how long they took to decide.

    Several deployments of one assigner are one bar, with their standard deviation as a whisker.
    """
    for metric in (metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J, metrics.ROUND_OBJECTIVE, metrics.WALL_ASSIGN_S):
        _need(sweep, metric)
    table = study(sweep)
    wanted = (("delay_s", "Time delay $T_i$ (s)"), ("energy_j", "Energy consumption $E_i$ (J)"),
              ("objective", "Objective $E_i + λT_i$ (J)"), ("latency_ms_median", "Latency, median (ms)"))  # fmt: skip
    figure = Figure(figsize=(12, max(2.0, 0.9 + 0.3 * len(table))), layout="constrained")
    for axes, (column, label) in zip(figure.subplots(1, 4, sharey=True), wanted, strict=True):
        known = [[float(run[column]) for run in runs] for runs in table.values()]
        spreads = [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in known]
        bars = axes.barh(
            range(len(table)),
            [np.mean(values) for values in known],
            xerr=spreads if any(spreads) else None,
            color=list(tints(sweep).values()),
            height=0.7,
        )
        axes.bar_label(bars, fmt="{:,.4g}", padding=3, fontsize=7)
        axes.set_yticks(range(len(table)), list(table), fontsize=8)
        axes.set_xlabel(label)
        axes.margins(x=0.18)
    axes.set_xscale("log")  # of the last, latency
    axes.invert_yaxis()
    return figure


FRAMEWORK = (
    (metrics.TOTAL_OBJECTIVE, "Objective $E + λT$ (J)", 1.0),
    (metrics.TOTAL_DELAY_S, "Time delay $T$ (s)", 1.0),
    (metrics.TOTAL_ENERGY_J, "Energy consumption $E$ (J)", 1.0),
    (metrics.ROUND_MESSAGE_BITS, "Messages a round (MB)", 1 / 8e6),
    (metrics.TOTAL_MESSAGE_BITS, "Messages in total (MB)", 1 / 8e6),
)


def framework(sweep: Sweep) -> Figure:
    """Figure 7: accuracy by round for each data set, then objective, T, E and messages against H, to the target.

    A hollow point: not all of its runs reached the target, so that it is what they had cost by their last round.
    """
    _need(sweep, metrics.ACCURACY)
    by_data: dict[str, dict[int, list[Run]]] = {}
    for run in sorted(sweep.runs, key=lambda run: run.config.scheduling.num_scheduled):
        groups = by_data.setdefault(pretty(run.config.data.name), {})
        groups.setdefault(run.config.scheduling.num_scheduled, []).append(run)
    figure = Figure(figsize=(13, 6), layout="constrained")
    grid = list(figure.subplots(2, 4).flat)
    for axes, (name, groups) in zip(grid, by_data.items(), strict=False):
        for number, (scheduled, runs) in enumerate(groups.items()):
            values = over_seeds(runs, metrics.ACCURACY) * 100
            tint = COLOURS[number % len(COLOURS)]
            axes.plot(values.index, values["mean"], DASHES[number % 4], color=tint, label=f"H = {scheduled}", lw=1.4)
            axes.fill_between(
                values.index, values["mean"] - values["std"], values["mean"] + values["std"], color=tint, alpha=0.2
            )
        target = next(iter(groups.values()))[0].config.target_accuracy
        if target:
            axes.axhline(100 * target, color="0.4", lw=0.8, ls=":")
        axes.set(title=name, xlabel="Round", ylabel="Test accuracy (%)")
        axes.legend(fontsize=7)
    after = grid[len(by_data) :]
    for axes, (metric, label, scale) in zip(after, FRAMEWORK, strict=False):
        for number, (name, groups) in enumerate(by_data.items()):
            tint, marker = COLOURS[number], MARKERS[number]
            totals = {h: np.array([run.last(metric) * scale for run in runs]) for h, runs in groups.items()}
            means = [v.mean() for v in totals.values()]
            spreads = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in totals.values()]
            axes.errorbar(list(totals), means, yerr=spreads, color=tint, ls=DASHES[number], lw=1.2, label=name)
            for h, mean in zip(totals, means, strict=True):
                full = all(run.reached(run.config.target_accuracy or 2) for run in groups[h])
                axes.plot(h, mean, marker, ms=6, color=tint, mfc=tint if full else "white")
        axes.set(xlabel="Scheduled devices $H$", ylabel=label)
        axes.legend(fontsize=7)
    for axes in after[len(FRAMEWORK) :]:
        axes.set_visible(False)
    return figure


def learning(sweep: Sweep) -> Figure:
    """Figure 5: what an episode returns while the assigner learns."""
    return curves(sweep, metrics.ASSIGNER_RETURN, "Return of an episode", 1.0)


Draw = Callable[[Sweep], Figure]
BY_TASK: dict[str, dict[str, Draw]] = {
    "experiment": {metrics.ACCURACY: curves, "cost": cost_bars, "pareto": pareto},
    "clustering": {"clustering": clustering_bars},
    "assignment": {"assignment": assignment_bars, "pareto": pareto},
    "train_assigner": {"learning": learning},
}


def save(draw: Draw, sweep: Sweep, folder: Path, stem: str) -> list[Path]:
    """Draw and write ``STEM.png`` and ``STEM.svg``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure = draw(sweep)
        paths = [folder / f"{stem}.png", folder / f"{stem}.svg"]
        figure.savefig(paths[0], dpi=160, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
