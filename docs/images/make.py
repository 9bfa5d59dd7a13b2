"""Draw the picture of the README from the exported runs: ``python docs/images/make.py``."""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from hflray import metrics  # noqa: E402
from hflray.report.exports import read_exhibit  # noqa: E402
from hflray.report.figures import STYLE  # noqa: E402
from hflray.report.runs import Run, Sweep  # noqa: E402

EXPORT = ROOT / "tests" / "data" / "results" / "fig6_assignment"
# The rows of the picture: the name, the assigner, and the settings that tell it from others.
ROWS = (
    ("geographic (nearest edge)", "geographic", {}),
    ("best gain", "best_gain", {}),
    ("HFEL-300 (the paper's search)", "hfel", {"assignment.exchanges": 300, "allocation.coupling": "per_edge"}),
    ("D3QN, shipped, one pass", "d3qn", {"assignment.policy": None, "assignment.polish_ms": None}),
    ("local search", "local_search", {"allocation.coupling": "per_edge"}),
    ("local search, one deadline", "local_search", {"allocation.coupling": "joint"}),
    ("D3QN, polished, one deadline", "d3qn", {"assignment.polish_ms": "optimum", "allocation.coupling": "joint"}),
)


def runs_of(sweep: Sweep, assigner: str, settings: dict[str, object]) -> list[Run]:
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


if __name__ == "__main__":
    with rc_context(STYLE | {"svg.fonttype": "path"}):
        draw().savefig(HERE / "assigners.svg", metadata={"Date": None})
    print(HERE / "assigners.svg")
