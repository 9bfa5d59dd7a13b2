"""Draw the pictures of the README and of the page *Inside the round* from the exported runs.

The command is ``python docs/images/make.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from hflray import metrics  # noqa: E402
from hflray.report.exports import read_exhibit  # noqa: E402
from hflray.report.figures import MARKERS, STYLE  # noqa: E402
from hflray.report.labels import COLOURS  # noqa: E402
from hflray.report.runs import RunRecord, SweepRecord  # noqa: E402
from tests.training.answers import accuracy, grouped  # noqa: E402

RESULTS = ROOT / "tests" / "data" / "results"
EXPORT = RESULTS / "fig6_assignment"
# The rows of the picture: the name, the assigner, and the settings that tell it from others.
ROWS = (
    ("geographic (nearest edge)", "geographic", {}),
    ("best gain", "best_gain", {}),
    (
        "HFEL-300 (the paper's search)",
        "hfel",
        {"assignment.exchanges": 300, "assignment.start": None, "allocation.coupling": "per_edge"},
    ),
    ("D3QN, shipped, one pass", "d3qn", {"assignment.policy": None, "assignment.polish_ms": None}),
    ("local search", "local_search", {"allocation.coupling": "per_edge"}),
    ("local search, one deadline", "local_search", {"allocation.coupling": "joint"}),
    ("D3QN, polished, one deadline", "d3qn", {"assignment.polish_ms": "optimum", "allocation.coupling": "joint"}),
)


def runs_of(sweep: SweepRecord, assigner: str, settings: dict[str, object]) -> list[RunRecord]:
    """Return the runs of an assigner with these settings, one for each deployment."""
    wanted = {"assignment.name": assigner, **settings}
    return [run for run in sweep.runs if all(run.settings[key] == value for key, value in wanted.items())]


def draw() -> Figure:
    """Draw E + λT and the gap to the bound, as means over the deployments of each deployment's mean over its fleets."""
    sweep = read_exhibit(EXPORT)
    figure = Figure(figsize=(9, 2.7), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric in zip(panels, (metrics.ROUND_OBJECTIVE, metrics.ASSIGNMENT_GAP), strict=True):
        row = metrics.describe(metric)
        means = []
        for name, assigner, settings in ROWS:
            runs = runs_of(sweep, assigner, settings)
            if len(runs) != 5:
                raise SystemExit(f"{name}: {len(runs)} runs in {EXPORT}, expected one for each of five deployments")
            means.append(sum(run.series(metric).mean() for run in runs) / len(runs) * row.scale)
        ours = [name.startswith(("D3QN", "local")) for name, _, _ in ROWS]
        bars = axes.barh(range(len(ROWS)), means, color=["#1f77b4" if one else "#9aa4ad" for one in ours], height=0.7)
        axes.bar_label(bars, [f"{mean:,.1f}" for mean in means], padding=3, fontsize=8)
        axes.set_yticks(range(len(ROWS)), [name for name, _, _ in ROWS])
        axes.margins(x=0.12)
    panels[0].set_xlabel("Objective E + λT of a round (J)")
    panels[1].set_xlabel("Gap to the proven lower bound (%)")
    panels[0].invert_yaxis()
    return figure


def spread(axes: Any, x: float, values: list[float], **style: Any) -> None:
    """Draw a mean with its standard deviation over seeds."""
    axes.errorbar([x], [np.mean(values)], yerr=[np.std(values, ddof=1)], capsize=2, elinewidth=0.9, **style)


def draw_compressors(axes: Any) -> None:
    """Draw joules against seconds to the target of each compressor with the optimal allocation."""
    sweep = read_exhibit(RESULTS / "compression")

    def key(run: RunRecord) -> tuple[str, ...]:
        section = run.config.compression.device
        return run.config.allocation.method, " ".join([section.name, *(f"{v:g}" for v in section.options.values())])

    groups = {name: runs for (method, name), runs in grouped(sweep, key).items() if method == "newton"}
    for number, (name, runs) in enumerate(groups.items()):
        ends = [
            [run.rounds[metric].iloc[-1] for run in runs.values()]
            for metric in (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J)
        ]
        axes.plot(*ends, MARKERS[number], color=COLOURS[number], alpha=0.35, ms=4, mew=0)
        label = "whole models" if name == "none" else name
        axes.plot(*map(np.mean, ends), MARKERS[number], color=COLOURS[number], ms=7, label=label)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Seconds to 90 % accuracy")
    axes.set_ylabel("Joules to 90 % accuracy")
    axes.legend(fontsize=7.5, loc="upper left")


def draw_privacy(axes: Any) -> None:
    """Draw the accuracy after the last round against ε, and without privacy."""
    sweep = read_exhibit(RESULTS / "privacy")
    groups = grouped(sweep, lambda run: (f"{run.config.scheduling.num_scheduled}", f"{_noise(run):g}"))
    for number, scheduled in enumerate(sorted({key[0] for key in groups})):
        style = {"fmt": MARKERS[number], "ms": 5, "color": COLOURS[number]}
        curve = {}
        for runs in (runs for (own, noise), runs in groups.items() if own == scheduled and noise != "0"):
            curve[np.mean([run.last(metrics.PRIVACY_EPSILON) for run in runs.values()])] = list(
                map(accuracy, runs.values())
            )
        axes.plot(sorted(curve), [np.mean(curve[epsilon]) for epsilon in sorted(curve)], color=COLOURS[number], lw=1.2)
        for epsilon, values in curve.items():
            spread(axes, epsilon, values, **style)
        without = list(map(accuracy, groups[scheduled, "0"].values()))
        spread(axes, (40, 46)[number], without, **style, label=f"H = {scheduled}")
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 43], ["0.5", "1", "2", "5", "10", "20", "none"])
    axes.minorticks_off()
    axes.axvline(28, color="0.4", lw=0.8, ls=":")
    axes.set_xlabel("ε of the device that uploaded most")
    axes.set_ylabel("Accuracy after 40 rounds (%)")
    axes.legend(fontsize=8, loc="upper left")


def _noise(run: RunRecord) -> float:
    return 0.0 if run.config.privacy.clip is None else run.config.privacy.noise_multiplier


def draw_aggregators(axes: Any) -> None:
    """Draw the accuracy after the last round of each aggregator with each kind of faulty devices."""
    sweep = read_exhibit(RESULTS / "faulty")
    kinds = {"nobody": "nobody", "noise": "noise", "zero": "nothing new", "sign_flip": "backwards"}
    names = ("mean", "median", "trimmed_mean", "krum", "multi_krum", "geometric_median")
    groups = grouped(
        sweep,
        lambda run: (
            run.config.world.faulty.kind if run.config.world.faulty.share else "nobody",
            run.config.aggregation.edge.name,
        ),
    )
    for number, name in enumerate(names):
        for place, kind in enumerate(kinds):
            values = list(map(accuracy, groups[kind, name].values()))
            x = place + 0.13 * (number - 2.5)
            if np.isfinite(values).all():
                label = name.replace("_", " ") if not place else None
                spread(axes, x, values, fmt=MARKERS[number], ms=4.5, color=COLOURS[number], label=label)
            elif np.isfinite(values).any():
                raise SystemExit(f"{kind}, {name}: some runs diverged; the picture has no place for them")
            else:
                axes.annotate("diverges", (x, 3), color=COLOURS[number], rotation=90, ha="center", fontsize=7.5)
    axes.set_xticks(range(len(kinds)), list(kinds.values()))
    axes.set_ylim(0, 100)
    axes.set_xlabel("What a fifth of the devices sends")
    axes.set_ylabel("Accuracy after 30 rounds (%)")
    axes.legend(fontsize=7, loc="lower left", ncols=2, columnspacing=0.8, handletextpad=0.2)


def draw_inside() -> Figure:
    """Draw what compressors save, what privacy costs, and which aggregator stands faulty devices."""
    figure = Figure(figsize=(11, 3.3), layout="constrained")
    for draw_panel, axes in zip(
        (draw_compressors, draw_privacy, draw_aggregators), figure.subplots(1, 3, width_ratios=(1, 1, 1.3)), strict=True
    ):
        draw_panel(axes)
    return figure


if __name__ == "__main__":
    with rc_context(STYLE | {"svg.fonttype": "path"}):
        for name, made in {"assigners": draw, "inside": draw_inside}.items():
            made().savefig(HERE / f"{name}.svg", metadata={"Date": None})
            print(HERE / f"{name}.svg")
