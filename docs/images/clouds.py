"""Draw the turns of edges under four clouds: ``python docs/images/clouds.py``, about a minute."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from hflray.config import load_config  # noqa: E402
from hflray.experiment import Experiment  # noqa: E402
from hflray.report.figures import STYLE  # noqa: E402

UNTIL_S, SHOWN_STALENESS = 40.0, 3
SETTINGS = (
    "data.name=digits", "fleet.num_devices=40", "fleet.num_edges=4", "scheduling.name=fedavg",
    "scheduling.num_scheduled=15", "assignment.name=geographic", "training.edge_iterations=3", "model.name=mlp",
    "training.backend=serial", "training.kernel=batched", "training.threads=1", "max_rounds=60",
    "world.compute_jitter.sigma=0.3",
)  # fmt: skip
CLOUDS = {
    "synchronous": "synchronous",
    "semi-synchronous, P = 12 s": "{semi_synchronous: {period_s: 12}}",
    "asynchronous (FedAsync)": "asynchronous",
    "asynchronous with a buffer of 4 (FedBuff)": "{asynchronous: {buffer: 4}}",
}


def draw(axes: Axes, cloud: str) -> None:
    """Draw the edge iterations, uploads and updates of a run until `UNTIL_S`."""
    colours, begin_s = mpl.colormaps["viridis"], 0.0
    with Experiment(load_config(None, [*SETTINGS, f"clock.cloud={cloud}"]), cpus=1) as experiment:
        for record in experiment:
            table, delay_s = record.timeline.table(), record.cost.delay_s
            bars: dict[tuple[int, int, int], tuple[float, float, int]] = {}
            for row in range(len(table["edge"])):
                edge, turn, start_s = table["edge"][row], table["turn"][row], table["start_s"][row] + begin_s
                end_s = table["end_s"][row] + begin_s
                if table["device"][row] is None:
                    axes.plot([start_s, end_s], [edge, edge], color="0.4", linewidth=1)
                    if table["staleness"][row] >= SHOWN_STALENESS and end_s < UNTIL_S:
                        axes.text(end_s, edge + 0.36, table["staleness"][row], ha="center", va="bottom", fontsize=7)
                    continue
                key = edge, turn, table["edge_iteration"][row]
                first, last, _ = bars.get(key, (start_s, end_s, 0))
                version = table["version"][row] if record.timeline.runs is not None else record.round - 1
                bars[key] = min(first, start_s), max(last, end_s), version
            for (edge, _, _), (first, last, version) in bars.items():
                axes.barh(edge, last - first, 0.7, first, color=colours(version % 9 / 9), linewidth=0)
                axes.plot([last, last], [edge - 0.35, edge + 0.35], color="white", linewidth=0.3)
            begin_s += delay_s
            axes.axvline(begin_s, color="0.85", linewidth=0.6, zorder=0)
            if begin_s > UNTIL_S:
                break
    axes.set_xlim(0, UNTIL_S)


def main() -> None:
    """Write ``clouds.png``."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, (title, cloud) in zip(panels.flat, CLOUDS.items(), strict=True):
            draw(axes, cloud)
            axes.set_title(title, fontsize=9)
            axes.set_yticks(range(4), [f"edge {edge}" for edge in range(4)], fontsize=8)
            axes.grid(visible=False)
        for axes in panels[1]:
            axes.set_xlabel("simulated seconds", fontsize=8)
        figure.savefig(HERE / "clouds.png", dpi=110)
    print(HERE / "clouds.png")


if __name__ == "__main__":
    main()
