"""hflray.report.figures: the figures show the values of the runs."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import image
from matplotlib.text import Text

from hflray import metrics, registry
from hflray.errors import ConfigError
from hflray.report import figures
from hflray.report.labels import DEPLOYMENT
from hflray.report.runs import RunRecord
from hflray.reproduction.protocol import PAPERS, paper
from hflray.sweep.tasks import TASKS
from tests.conftest import says
from tests.hostile import NAMES
from tests.report.fabricated import run
from tests.report.fabricated import sweep as fabricated


def test_each_scheduler_has_a_line_with_its_mean(sweep, records) -> None:
    runs = sweep.groups()["IKC"]
    both = np.array([[record.accuracy for record in records[run.name]] for run in runs])
    figure = figures.curves(sweep)
    (axes,) = [axes for axes in figure.axes if axes.get_visible()]
    assert [line.get_label() for line in axes.lines] == ["IKC", "FedAvg"]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * both.mean(axis=0))
    assert "%" in axes.get_ylabel()
    assert axes.get_xlabel() == "Round"
    assert len(axes.collections) == 2  # the shaded deviations


def test_a_line_looks_the_same_in_every_panel() -> None:
    """The panel of H = 10 has a line more, which stands before the other one."""

    def trained(scheduled: int, precision: str) -> RunRecord:
        fixed = ("scheduling.name=ikc", f"scheduling.num_scheduled={scheduled}", f"training.precision={precision}")
        return run({metrics.ACCURACY: [0.1, 0.2]}, *fixed)

    figure = figures.curves(fabricated("fig4", [trained(10, "float32"), trained(10, "bf16"), trained(30, "bf16")]))
    looks = [
        {line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines}
        for axes in figure.axes
        if axes.get_visible()
    ]
    assert len(looks) == 2
    assert len(looks[0]) == 2
    (shared,) = looks[0].keys() & looks[1].keys()
    assert looks[0][shared] == looks[1][shared]
    assert len(set(looks[0].values())) == 2


def test_names_of_any_length_stand_below_the_panels(tmp_path) -> None:
    """In a legend within the panel, long names had narrowed it to nothing."""
    names = ("training.batch_size", "training.weight_decay", "training.momentum")

    def trained(scheduled: int, *values: float) -> RunRecord:
        fixed = [f"{name}={value:g}" for name, value in zip(names, values, strict=True)]
        return run({metrics.ACCURACY: [0.1, 0.2]}, f"scheduling.num_scheduled={scheduled}", *fixed)

    variants = [trained(10, 16, 0, 0), trained(10, 64, 0.005, 0), trained(30, 64, 0, 0.9)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (png, _) = figures.save(figures.curves, fabricated("variants", variants), tmp_path, "variants")
    assert png.is_file()
    figure = figures.curves(fabricated("variants", variants))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert len(legend.get_texts()) == 3
    for axes in figure.axes:
        assert axes.get_tightbbox().y0 >= box.y1
        assert axes.bbox.width > 0.3 * figure.bbox.width


def test_sixteen_lines_look_different() -> None:
    runs = [run({metrics.ACCURACY: [0.1, 0.2]}, f"training.momentum={step / 20}") for step in range(16)]
    lines = figures.curves(fabricated("momenta", runs)).axes[0].lines
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == 16


@pytest.mark.parametrize("name", ["curves", "cost_bars", "pareto"])
def test_files_can_be_opened_and_are_reproducible(name, sweep, tmp_path) -> None:
    png, svg = figures.save(registry.resolve("figure", name), sweep, tmp_path, name)
    pixels = image.imread(png)
    assert pixels[..., :3].min() < 0.5 < pixels[..., :3].max()
    assert svg.read_text().startswith("<?xml")
    first = svg.read_bytes()
    figures.save(registry.resolve("figure", name), sweep, tmp_path, name)
    assert svg.read_bytes() == first


def test_readings_are_drawn_by_updates_beside_the_ceilings_of_their_networks() -> None:
    def learned(returns: list[float], start: str, *overrides: str) -> RunRecord:
        fixed = ("learning.features=paper_db", f"learning.teacher.start={start}", "learning.hidden=64", *overrides)
        return run({metrics.ASSIGNER_GREEDY_RETURN: returns}, *fixed, steps=[3000, 6000])

    runs = [
        learned([1.0, 2.0], "best_gain", "learning.train_batch=150", "learning.update_every=50"),
        learned([3.0, 4.0], "geographic", "learning.train_batch=150", "learning.update_every=1"),
        learned([16.0, 17.0], "best_gain", "learning.ce=1", "learning.td=0", "learning.architecture=bilstm"),
    ]
    figure = figures.readings(fabricated("fig5_readings", runs, "train_assigner"))
    best, geographic = figure.axes
    assert [axes.get_title() for axes in figure.axes] == [
        "gains in dB, best gain start",
        "gains in dB, geographic start",
    ]
    few, ceiling = best.lines
    assert says(few.get_label(), "64 units, 3 draws")
    np.testing.assert_allclose(few.get_xdata(), [60, 120])  # an update each 50 steps
    np.testing.assert_allclose(few.get_ydata(), [1, 2])
    np.testing.assert_allclose(ceiling.get_ydata(), [17, 17])
    (many,) = geographic.lines
    np.testing.assert_allclose(many.get_xdata(), [3000, 6000])


def test_readings_of_other_settings_have_lines_of_their_own() -> None:
    runs = [run({metrics.ASSIGNER_GREEDY_RETURN: [value] * 2}, f"learning.learning_rate={rate}", f"seed={seed}",
                steps=[100, 200]) for rate, value in ((0.001, 40.0), (0.1, -20.0)) for seed in (0, 1)]  # fmt: skip
    lines = figures.readings(fabricated("fig5_readings", runs, "train_assigner")).axes[0].lines
    values = {line.get_label(): list(line.get_ydata()) for line in lines}
    (name,) = {label.rpartition(", ")[0] for label in values}
    rates = ("learning rate 0.001", "learning rate 0.1")
    assert values == {f"{name}, {rate}": [value] * 2 for rate, value in zip(rates, (40.0, -20.0), strict=True)}
    (alone,) = figures.readings(fabricated("fig5_readings", runs[:2], "train_assigner")).axes[0].lines
    assert alone.get_label() == name


def test_the_deployments_of_an_assigner_form_one_bar_with_their_spread() -> None:
    names = (metrics.ROUND_DELAY_S, metrics.ROUND_ENERGY_J, metrics.ROUND_OBJECTIVE, metrics.WALL_ASSIGN_S,
             metrics.ASSIGNMENT_GAP)  # fmt: skip
    runs = [run({name: [value] for name in names}, "assignment.name=hfel", settings={DEPLOYMENT: seed})
            for seed, value in ((0, 1.0), (1, 3.0))]  # fmt: skip
    runs.append(run({name: [5.0] for name in names}, "assignment.name=geographic", settings={DEPLOYMENT: 0}))
    axes = figures.assignment_bars(fabricated("fig6_assignment", runs, "assignment")).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [2.0, 5.0]
    whiskers = axes.containers[0]
    (segments,) = whiskers.lines[2]
    assert [float(line[1][0] - line[0][0]) for line in segments.get_segments()] == pytest.approx([2 * 2**0.5, 0.0])


@pytest.mark.parametrize("draw", [figures.clustering_bars, figures.learning])
def test_a_metric_that_was_not_logged_is_an_error_of_one_line(draw, sweep) -> None:
    if draw is figures.clustering_bars:  # only IKC's runs logged the costs of clustering
        sweep = type(sweep)(sweep.name, sweep.title, sweep.task, "", sweep.groups()["FedAvg"])
    with pytest.raises(ConfigError, match="no run of its task 'experiment' logged") as caught:
        draw(sweep)
    assert len(str(caught.value).splitlines()) == 1


def test_tasks_and_exhibits_draw_registered_figures_and_no_figure_is_left_out() -> None:
    drawn = {name for task in TASKS.values() for name in task.shown.figures.values()}
    drawn |= {name for key in PAPERS for shown in paper(key).exhibits.values() for name in shown.drawings.values()}
    assert drawn == set(registry.BUILTIN["figure"])


def test_what_is_no_figure_is_refused(sweep, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"mine: got 3; accepted: a matplotlib.figure.Figure"):
        figures.save(lambda sweep: 3, sweep, tmp_path, "mine")


def data_of(name: str) -> str:
    """Return the override that names a data file."""
    return "data.name='" + name.replace("'", "''") + ".npz'"


DRAWS = (figures.cost_bars, figures.pareto, figures.framework)


@pytest.mark.parametrize(
    "draw, name", [(figures.curves, name) for name in NAMES] + [(draw, r"$\frac$") for draw in DRAWS]
)
def test_a_name_is_drawn_as_it_is(draw, name, tmp_path) -> None:
    """A name such as ``$\\frac$`` would raise as a formula."""
    totals = (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J, metrics.TOTAL_OBJECTIVE, metrics.TOTAL_MESSAGE_BITS)
    values = {key: [0.1, 0.5] for key in (metrics.ACCURACY, metrics.ROUND_MESSAGE_BITS, *totals)}
    figure = draw(fabricated("mine", [run(values, data_of(name)), run(values, data_of("other"))]))
    figure.savefig(tmp_path / "figure.svg")
    shown = [text.get_text().replace(r"\$", "$").strip() for text in figure.findobj(Text)]
    assert f"{name}.npz" in shown


@pytest.mark.parametrize("factor", [9, 30, 1e4])
def test_the_ticks_of_a_front_over_decades_are_plain_numbers_that_do_not_overlap(factor: float) -> None:
    runs = [
        run({metrics.TOTAL_DELAY_S: [90 * factor / place], metrics.TOTAL_ENERGY_J: [11.0 * place]},
                       f"cost.delay_weight={place}")
        for place in (1, factor)
    ]  # fmt: skip
    drawn = figures.pareto(fabricated("mine", runs))
    drawn.canvas.draw()
    for axis, side in ((drawn.axes[0].xaxis, 0), (drawn.axes[0].yaxis, 1)):
        texts = [text for text in axis.get_ticklabels(which="both") if text.get_text()]
        boxes = sorted((text.get_window_extent().get_points()[:, side] for text in texts), key=lambda ends: ends[0])
        assert len(boxes) >= 2
        assert all(one[1] < other[0] for one, other in pairwise(boxes))
        assert all("$" not in text.get_text() for text in texts)
