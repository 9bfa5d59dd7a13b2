"""Draw the pictures of the README and of the documentation, from exported runs and from one run of this commit.

``python docs/images/make.py`` draws all; names after it choose: decisions, round, gallery,
screens (with Chromium), assigners, inside.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from hflray import metrics  # noqa: E402
from hflray.report.exports import read_exhibit  # noqa: E402
from hflray.report.figures import MARKERS, STYLE  # noqa: E402
from hflray.report.labels import COLOURS  # noqa: E402
from hflray.report.runs import RunRecord, SweepRecord  # noqa: E402
from tests.browser import Page  # noqa: E402
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


def draw_decisions() -> Figure:
    """Draw devices, edges and the cloud with the five decisions of a round."""
    figure = Figure(figsize=(9, 3.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(0, 3.4))
    axes.axis("off")
    rng = np.random.default_rng(3)
    colours = ("#0072b2", "#d55e00")
    edges = np.array([[4.3, 2.45], [4.3, 0.95]])
    for edge, place in enumerate(edges):
        devices = place + np.column_stack([rng.uniform(-3.2, -1.5, 7), rng.uniform(-0.6, 0.6, 7)])
        trains = rng.permutation(7) < 4
        for device, is_chosen in zip(devices, trains, strict=True):
            if is_chosen:
                width = rng.uniform(0.8, 4)
                axes.plot(*zip(device, place, strict=True), color=colours[edge], lw=width, alpha=0.5, zorder=1)
            axes.plot(*device, "o", ms=11, color=colours[edge] if is_chosen else "#cccccc", zorder=2)
        axes.plot(*zip(place, (6.9, 1.7), strict=True), color="#444444", lw=2, zorder=1)
        axes.plot(*place, "s", ms=22, color=colours[edge], zorder=2)
        axes.text(*place, "edge", color="white", ha="center", va="center", fontsize=7.5)
    axes.plot(6.9, 1.7, "o", ms=44, color="#444444")
    axes.text(6.9, 1.7, "cloud", color="white", ha="center", va="center", fontsize=10)
    for x, y, text in (
        (1.9, 3.25, "1  which devices train"), (1.9, 0.12, "2  at which edge each"),
        (4.3, 1.7, "3  with which share of\nbandwidth and CPU"), (5.7, 2.75, "4  what is sent\nand combined"),
        (7.9, 1.7, "5  when the\ncloud combines"),
    ):  # fmt: skip
        box = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": "#999999"}
        axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox=box, zorder=3)
    return figure


def draw_round(path: Path) -> None:
    """Run the sweep of ``world.yaml`` and draw its rounds as an animated WebP: the map, and what has been paid."""
    from PIL import Image

    from hflray import Experiment
    from hflray.sweep import expand, load_sweep

    (trial,) = expand(load_sweep(HERE / "world.yaml"))
    rounds, paid = [], []
    with Experiment(trial.config) as experiment:
        fleet = experiment.scenario.fleet
        for record in experiment:
            place = experiment.world.mobility.places() if experiment.world.mobility else fleet.position_m
            rounds.append((place.copy() / 1000, record))
            paid.append((experiment.totals["delay_s"], experiment.totals["energy_j"], 100 * (record.accuracy or 0)))
    delay_s, energy_j, accuracy = np.array(paid).T
    edges, frames = fleet.edge_position_m / 1000, []
    for number, (place, record) in enumerate(rounds):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        city, curve = figure.subplots(1, 2, width_ratios=(1, 1.1))
        city.plot(*place.T, "o", ms=4, color="#cccccc")
        for device, edge in zip(record.devices, record.assignment, strict=True):
            city.plot(*np.array([place[device], edges[edge]]).T, color=COLOURS[edge], lw=1, alpha=0.6)
            city.plot(*place[device], "o", ms=5, color=COLOURS[edge])
        for edge, at in enumerate(edges):
            city.plot(*at, "s", ms=9, color=COLOURS[edge])
        area_km = trial.config.fleet.area_km
        city.set(title=f"round {record.round}", xlabel="km", aspect="equal", xlim=(0, area_km), ylim=(0, area_km))
        curve.plot(delay_s[: number + 1], accuracy[: number + 1], color="#0072b2", marker="o", ms=3)
        curve.set(xlabel="simulated seconds", ylabel="accuracy (%)", xlim=(0, 1.03 * delay_s[-1]), ylim=(0, 100))
        curve.set_title(f"{delay_s[number]:.0f} s, {energy_j[number]:.0f} J")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=700, loop=0, quality=60)


# The pictures of the gallery that no other page has: the export and the figure of each.
GALLERY = {
    "fig3": ("fig3_fashion_scheduling", "curves"),
    "fig4": ("fig4_cifar_scheduling", "curves"),
    "fig7": ("fig7_framework", "framework"),
    "gossip": ("gossip", "curves"),
    "battery": ("world_battery", "curves"),
    "lambda": ("lambda_sweep", "pareto"),
}


def draw_gallery(folder: Path) -> None:
    """Draw a picture of each export of `GALLERY`."""
    from hflray import registry

    folder.mkdir(exist_ok=True)
    for name, (export, figure) in GALLERY.items():
        made = registry.resolve("figure", figure)(read_exhibit(RESULTS / export))
        made.savefig(folder / f"{name}.webp", dpi=90, metadata=None, pil_kwargs={"quality": 80})
        print(folder / f"{name}.webp")


def draw_screens() -> None:
    """Show two pages of reports in Chromium: Figure 3's from its export, and that of a run of ``world.yaml``."""
    import tempfile

    from PIL import Image

    from hflray import Experiment, keep, read_sweep
    from hflray.report import page
    from hflray.sweep import expand, load_sweep

    (trial,) = expand(load_sweep(HERE / "world.yaml", ["tracking.sinks=[]"]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Experiment(trial.config) as experiment:
            for _ in keep(experiment, "world", folder):
                pass
        page.write(read_exhibit(RESULTS / "fig3_fashion_scheduling"), folder / "report")
        page.write(read_sweep(folder, "world"), folder / "world")
        with Page(1400, 1400) as shown:
            shown.open((folder / "report" / "index.html").as_uri())
            shown.wait_for("document.querySelector('#gantt svg') !== null")
            left, right = shot(shown, "#groups", 1400), shot(shown, "#explorer", 1400)
            both = Image.new("RGB", (left.width + right.width + 20, 1400), "white")
            both.paste(left, (0, 0))
            both.paste(right, (left.width + 20, 0))
            both.resize((1600, 800 * both.height // (both.width // 2))).save(HERE / "report.webp", quality=80)
            shown.open((folder / "world" / "index.html").as_uri())
            shown.wait_for("document.querySelector('#gantt svg') !== null")
            shown.evaluate("round.value = 13; round.dispatchEvent(new Event('input'))")
            shown.wait_for("document.querySelector('#number').textContent.startsWith('14')")
            shot(shown, "#explorer", 1250).save(HERE / "world.webp", quality=80)


def shot(page: Page, selector: str, height: int) -> Any:
    """Return a picture of the page from the top of an element on, at most `height` pixels high."""
    import base64
    from io import BytesIO

    from PIL import Image

    found = f"document.querySelector({selector!r}).getBoundingClientRect()"
    clip = {name: page.evaluate(f"{found}.{name} + ({plus})") for name, plus in
            (("x", "window.scrollX"), ("y", "window.scrollY"), ("width", "24"))}  # fmt: skip
    clip |= {"height": height, "scale": 1}
    answer = page.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    return Image.open(BytesIO(base64.b64decode(answer["data"]))).convert("RGB")


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    drawn = {"assigners": draw, "inside": draw_inside, "decisions": draw_decisions}
    with rc_context(STYLE | {"svg.fonttype": "path", "svg.hashsalt": "hflray"}):
        for name in names or [*drawn, "round", "gallery", "screens"]:
            if name == "gallery":
                draw_gallery(HERE / "gallery")
            elif name == "round":
                draw_round(HERE / "round.webp")
            elif name == "screens":
                draw_screens()
            else:
                drawn[name]().savefig(HERE / f"{name}.svg", metadata={"Date": None})
            print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
