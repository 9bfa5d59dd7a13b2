"""hflray.report.series: curves, bars and points have the values computed by hand."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from hflray import metrics
from hflray.report import series
from hflray.report.labels import BLUE, DEPLOYMENT, VERMILION
from hflray.report.runs import RunRecord
from tests.report.fabricated import accuracy, run, sweep

MB = 8e6  # bits


def test_it_imports_no_drawing_library() -> None:
    """A notebook can use the numbers of a chart without a drawing library."""
    code = "import sys, hflray.report.series; print(*({'matplotlib', 'plotly', 'jinja2'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_mean_and_the_deviation_are_those_of_the_records(sweep, records) -> None:
    runs = sweep.groups()["IKC"]
    table = series.over_seeds(runs, metrics.ACCURACY)
    both = np.array([[record.accuracy for record in records[run.name]] for run in runs])
    np.testing.assert_allclose(table["mean"], both.mean(axis=0))
    np.testing.assert_allclose(table["std"], both.std(axis=0, ddof=1))


class Learned:
    """A run with values at these steps."""

    def __init__(self, points: dict[int, float]) -> None:
        self.points = points

    def series(self, metric: str) -> pd.Series:
        return pd.Series(self.points)


def test_curves_with_unequal_steps_are_interpolated_and_averaged() -> None:
    table = series.over_seeds([Learned({10: 0.0, 20: 2.0, 35: 5.0}), Learned({10: 1.0, 15: 2.0, 20: 3.0})], "return")
    assert list(table.index) == [10, 15, 20, 35]
    np.testing.assert_allclose(table["mean"], [0.5, 1.5, 2.5, 5.0])  # the first run's value at 15 is interpolated
    assert list(table["runs"]) == [2, 2, 2, 1]


def test_a_curve_is_in_the_displayed_unit() -> None:
    runs = [accuracy(10, "ikc", curve, seed) for seed, curve in enumerate(([0.1, 0.5], [0.3, 0.5]))]
    runs += [accuracy(30, "ikc", [0.4, 0.8])]
    panels = series.curves(sweep("fig3", runs), metrics.ACCURACY)
    assert {panel: list(lines) for panel, lines in panels.items()} == {"": ["H = 10", "H = 30"]}
    ten, thirty = panels[""].values()
    np.testing.assert_allclose(ten["mean"], [20.0, 50.0])  # percent
    std = 10 * 2**0.5  # the deviation of 10 and 30, with n − 1 degrees of freedom
    np.testing.assert_allclose(ten["low"], [20 - std, 50.0])
    np.testing.assert_allclose(ten["high"], [20 + std, 50.0])
    assert ten.index.tolist() == [1.0, 2.0]
    assert thirty.to_numpy().tolist() == [[40.0] * 3, [80.0] * 3]
    assert not series.curves(sweep("fig3", runs), metrics.TEST_LOSS)[""]["H = 10"].size


def test_accuracies_on_other_test_samples_have_panels_of_their_own() -> None:
    splits = [{"data.split": split, "data.validation": size} for split, size in (("stratified", 0), ("official", 2000))]
    runs = [accuracy(10, name, [0.1, 0.5], settings=split) for split in splits for name in ("ikc", "fedavg")]
    assert {panel: list(lines) for panel, lines in series.curves(sweep("fig3", runs), metrics.ACCURACY).items()} == {
        "stratified split, validation 0": ["IKC", "FedAvg"], "official split, validation 2000": ["IKC", "FedAvg"],
    }  # fmt: skip


def test_bars_are_the_last_values_in_the_colours_of_their_schedulers() -> None:
    def one(scheduler: str, seed: int, *bits: float) -> RunRecord:
        rounds = {metrics.TOTAL_MESSAGE_BITS: bits} if bits else {metrics.TOTAL_DELAY_S: [1.0]}
        return run(rounds, f"scheduling.name={scheduler}", f"seed={seed}")

    runs = [one("ikc", 0, 1.0, 2 * MB), one("ikc", 1, 1.0, 6 * MB), one("fedavg", 0, 5 * MB), one("vkc", 0)]
    ikc, vkc, fedavg = series.bars(sweep("mine", runs), metrics.TOTAL_MESSAGE_BITS)
    assert (ikc.label, ikc.colour, ikc.mean) == ("IKC", BLUE, 4.0)
    assert ikc.spread == pytest.approx(8**0.5)
    assert (fedavg.label, fedavg.colour, fedavg.mean, fedavg.spread) == ("FedAvg", VERMILION, 5.0, 0.0)
    assert (vkc.values, vkc.spread) == ([], 0.0)
    assert np.isnan(vkc.mean)


def test_bars_of_an_assignment_study_are_means_over_fleets_and_the_median_of_the_latency() -> None:
    names = (metrics.ROUND_DELAY_S, metrics.WALL_ASSIGN_S)
    runs = [
        run(dict.fromkeys(names, values), "assignment.name=hfel", settings={DEPLOYMENT: number})
        for number, values in enumerate(([0.001, 0.002, 0.009], [0.004, 0.004, 0.004]))
    ]
    study = sweep("fig6_assignment", runs, "assignment")
    (delay,), (latency,) = (series.bars(study, name) for name in names)
    assert delay.values == pytest.approx([0.004, 0.004])  # seconds
    assert latency.values == pytest.approx([2.0, 4.0])  # milliseconds
    assert latency.mean == pytest.approx(3.0)
    assert latency.spread == pytest.approx(2**0.5)


def test_groups_that_differ_only_in_h_have_one_colour() -> None:
    runs = [accuracy(h, name, [0.5]) for h in (10, 30) for name in ("ikc", "fedavg")]
    assert series.group_colours(sweep("fig3", runs)) == {
        "IKC, H = 10": BLUE, "FedAvg, H = 10": VERMILION, "IKC, H = 30": BLUE, "FedAvg, H = 30": VERMILION,
    }  # fmt: skip


def bill(weight: float, name: str, seed: int, delay_s: float, energy_j: float) -> RunRecord:
    rounds = {metrics.TOTAL_DELAY_S: [1.0, delay_s], metrics.TOTAL_ENERGY_J: [1.0, energy_j]}
    return run(rounds, f"cost.delay_weight={weight}", f"scheduling.name={name}", f"seed={seed}")


def test_points_are_delays_and_energies_in_the_order_of_lambda() -> None:
    runs = [bill(10, "ikc", 0, 2.0, 9.0), bill(1, "ikc", 0, 5.0, 3.0), bill(1, "ikc", 1, 7.0, 3.0)]
    runs += [
        bill(1, "fedavg", 0, 8.0, 4.0),
        run({metrics.ACCURACY: [0.5]}, "scheduling.name=vkc"),
    ]  # the last run has neither delay nor energy
    table = series.points(sweep("lambda_sweep", runs))
    assert set(table["series"]) == {"IKC", "FedAvg"}
    lines = series.fronts(table)
    assert lines["IKC"]["point"].tolist() == ["λ = 1", "λ = 10"]
    assert lines["IKC"][["delay_s", "energy_j", "energy_std"]].to_numpy().tolist() == [[6.0, 3.0, 0.0], [2.0, 9.0, 0.0]]
    assert lines["IKC"]["delay_std"].tolist() == pytest.approx([2**0.5, 0.0])
    assert lines["FedAvg"][["delay_s", "energy_j"]].to_numpy().tolist() == [[8.0, 4.0]]


def test_totals_against_h_say_whether_all_runs_reached_the_target() -> None:
    def one(h: int, seed: int, reached: float, joules: float) -> RunRecord:
        rounds = {metrics.ACCURACY: [0.1, reached], metrics.TOTAL_ENERGY_J: [1.0, joules]}
        rounds |= {metrics.ROUNDS_TO_TARGET: [2.0, 2.0]} if reached >= 0.5 else {}
        return run(rounds, f"scheduling.num_scheduled={h}", f"seed={seed}", "target_accuracy=0.5")

    runs = [one(30, 0, 0.6, 8.0), one(10, 0, 0.6, 2.0), one(10, 1, 0.4, 4.0)]
    ((name, groups),) = series.by_scheduled(sweep("fig7_framework", runs)).items()
    assert (name, list(groups)) == ("digits", [10, 30])
    table = series.against_scheduled(groups, metrics.TOTAL_ENERGY_J)
    assert table["mean"].to_dict() == {10: 3.0, 30: 8.0}
    assert table["std"].tolist() == pytest.approx([2**0.5, 0.0])
    assert table["reached"].tolist() == [False, True]


def test_equal_runs_count_as_one_seed_in_every_chart() -> None:
    again = ((0, "training.num_actors=1"), (0, "training.num_actors=2"), (1, "training.num_actors=1"))
    runs = [run({metrics.TOTAL_ENERGY_J: [10.0 + 30 * seed]}, f"seed={seed}", more) for seed, more in again]
    twice = sweep("mine", runs)
    (bar,), (lines,) = series.bars(twice, metrics.TOTAL_ENERGY_J), series.curves(twice, metrics.TOTAL_ENERGY_J).values()
    (line,), (groups,) = lines.values(), series.by_scheduled(twice).values()
    means = [bar.mean, *line["mean"], *series.against_scheduled(groups, metrics.TOTAL_ENERGY_J)["mean"]]
    assert means == [25.0] * 3


def test_what_differs_in_more_than_h_is_never_one_point() -> None:
    h = "scheduling.num_scheduled"
    runs = [run({metrics.TOTAL_ENERGY_J: [joules]}, f"scheduling.name={name}", f"{h}={count}", f"seed={seed}")
            for name, joules in (("ikc", 3.0), ("fedavg", 27.0)) for count in (10, 30) for seed in (0, 1)]  # fmt: skip
    groups = series.by_scheduled(sweep("mine", runs))
    assert {name: list(by_h) for name, by_h in groups.items()} == {"IKC": [10, 30], "FedAvg": [10, 30]}
    table = series.against_scheduled(groups["FedAvg"], metrics.TOTAL_ENERGY_J)
    assert table[["mean", "std"]].to_numpy().tolist() == [[27.0, 0.0]] * 2


def test_a_run_under_way_does_not_shorten_the_curve_of_those_that_have_ended() -> None:
    row = metrics.describe(metrics.ACCURACY)
    ended = [run({metrics.ACCURACY: [0.1, 0.2, 0.3]}, f"seed={seed}") for seed in (0, 1)]
    under_way = run({metrics.ACCURACY: [0.9]}, "seed=2", status="RUNNING")
    assert series.mean_curve([*ended, under_way], row)["mean"].tolist() == pytest.approx([10, 20, 30])
    assert series.mean_curve([under_way], row)["mean"].tolist() == pytest.approx([90])
