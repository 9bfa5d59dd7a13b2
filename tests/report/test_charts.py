"""hflray.report.charts: the numbers of the page's charts are those of the runs, group by group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from hflray import metrics
from hflray.config import load_config
from hflray.experiment import Experiment, RoundRecord
from hflray.report import charts
from hflray.report.labels import BLUE, VERMILION
from hflray.report.runs import RunRecord, SweepRecord
from tests.report import fabricated


def of(rounds: int = 3, seeds: tuple[int, ...] = (0, 1), weights: tuple[float, ...] = (0.1, 1)) -> SweepRecord:
    """Return a sweep of two schedulers; its accuracy is round + seed, and its delay 10 times the round."""
    runs = [
        fabricated.run(
            {
                metrics.ACCURACY: [number + seed for number in range(1, rounds + 1)],
                metrics.TOTAL_DELAY_S: [10 * number for number in range(1, rounds + 1)],
                metrics.TOTAL_ENERGY_J: [weight * number for number in range(1, rounds + 1)],
            },
            f"scheduling.name={name}", f"cost.delay_weight={weight}", f"seed={seed}",
        )
        for name, weight, seed in product(("ikc", "fedavg"), weights, seeds)
    ]  # fmt: skip
    return fabricated.sweep("mine", runs)


def test_a_group_has_one_style_in_all_charts_and_groups_that_differ_in_lambda_share_a_colour() -> None:
    groups = charts.groups(of())
    assert [group["label"] for group in groups] == ["λ = 0.1, IKC", "λ = 1, IKC", "λ = 0.1, FedAvg", "λ = 1, FedAvg"]
    assert [group["colour"] for group in groups] == [BLUE, BLUE, VERMILION, VERMILION]
    styles = [(group["colour"], group["dash"], group["symbol"]) for group in groups]
    assert len(set(styles)) == 4
    many = charts.groups(of(weights=tuple(range(1, 17)), seeds=(0,)))
    assert len({(group["colour"], group["dash"]) for group in many}) == 32


def test_a_setting_is_a_choice_if_it_has_a_few_values() -> None:
    few = charts.choices(of())
    assert [(choice["key"], choice["labels"]) for choice in few] == [
        ("cost.delay_weight", ["λ = 0.1", "λ = 1"]),
        ("scheduling.name", ["IKC", "FedAvg"]),
    ]
    assert few[1]["colours"] == [BLUE, VERMILION]
    for choice in few:
        assert {group["values"][choice["place"]] for group in charts.groups(of())} == set(choice["labels"])
    many = charts.choices(of(weights=tuple(range(1, 20)), seeds=(0,)))
    assert [choice["key"] for choice in many] == ["scheduling.name"]
    mixed = charts.choices(of(weights=(3, 0.1, 20), seeds=(0,)))
    assert mixed[0]["labels"] == ["λ = 0.1", "λ = 3", "λ = 20"]


def test_a_curve_has_the_mean_and_the_deviation_of_the_seeds() -> None:
    drawn = charts.curves(of())
    assert drawn is not None
    (chart,) = drawn["charts"]
    assert chart["title"] == "Test accuracy (%)"
    line = chart["lines"][0]
    assert line["mean"] == [150.0, 250.0, 350.0]
    assert line["std"] == pytest.approx([np.std([0, 100], ddof=1)] * 3, rel=1e-4)
    assert drawn["axes"] == ["Round", "Simulated time (s)", "Simulated energy (J)"]
    assert drawn["first"] == 0
    assert drawn["x"][1] == [[1, 2, 3], [10, 20, 30], [1, 2, 3]]
    alone = charts.curves(of(seeds=(0,)))
    assert alone is not None
    assert [line["std"] for line in alone["charts"][0]["lines"]] == [None] * 4


def test_curves_end_where_the_first_seed_ended_and_never_run_backwards() -> None:
    def one(seed: int, accuracy: list[float], round_s: float) -> RunRecord:
        delay_s = [round_s * number for number in range(1, len(accuracy) + 1)]
        return fabricated.run({metrics.ACCURACY: accuracy, metrics.TOTAL_DELAY_S: delay_s}, f"seed={seed}")

    drawn = charts.curves(fabricated.sweep("mine", [one(0, [0.3, 0.9], 10), one(1, [0.2, 0.3, 0.4, 0.5], 1)]))
    assert drawn is not None
    assert drawn["x"] == [[[1, 2], [5.5, 11.0]]]
    assert drawn["charts"][0]["lines"][0]["mean"] == [25.0, 60.0]


def test_time_comes_first_where_a_cloud_does_not_wait() -> None:
    sweep = of()
    values = {name: sweep.runs[0].series(name).tolist() for name in (metrics.ACCURACY, metrics.TOTAL_DELAY_S)}
    drawn = charts.curves(fabricated.sweep("mine", [*sweep.runs, fabricated.run(values, "clock.cloud=asynchronous")]))
    assert drawn is not None
    assert drawn["axes"][drawn["first"]] == "Simulated time (s)"


def test_a_group_without_the_metric_has_no_curve_and_an_axis_that_a_group_lacks_is_left_out() -> None:
    sweep = of()
    bare = fabricated.run({metrics.TEST_LOSS: [1.0, float("nan"), 3.0]}, "scheduling.name=vkc")
    drawn = charts.curves(fabricated.sweep("mine", [*sweep.runs, bare]))
    assert drawn is not None
    assert drawn["axes"] == ["Round"]
    accuracy, loss = drawn["charts"]
    place = [line is None for line in accuracy["lines"]].index(True)
    assert [line is None for line in loss["lines"]].count(False) == 1
    assert loss["lines"][place]["mean"] == [1.0, 3.0]
    assert charts.curves(fabricated.sweep("mine", [fabricated.run({metrics.TOTAL_DELAY_S: [1.0]})])) is None


def test_many_rounds_are_thinned_with_the_first_and_the_last(monkeypatch) -> None:
    monkeypatch.setattr(charts, "POINTS", 240)
    drawn = charts.curves(of(rounds=1000))
    assert drawn is not None
    rounds = drawn["x"][0][0]
    assert len(rounds) == 60
    assert (rounds[0], rounds[-1]) == (1, 1000)
    assert drawn["charts"][0]["lines"][0]["mean"] == [100 * (number + 0.5) for number in rounds]


def test_bars_and_points_belong_to_their_groups() -> None:
    sweep = of()
    bars = charts.bars(sweep, metrics.TOTAL_ENERGY_J)
    assert bars == {"title": "Energy E (J)", "mean": [0.3, 3.0, 0.3, 3.0], "std": [0.0] * 4}
    assert charts.bars(sweep, metrics.TOTAL_OBJECTIVE) is None
    front = charts.pareto(sweep)
    assert front is not None
    assert [(line["name"], line["group"], line["point"]) for line in front["lines"]] == [
        ("IKC", [0, 1], ["λ = 0.1", "λ = 1"]),
        ("FedAvg", [2, 3], ["λ = 0.1", "λ = 1"]),
    ]
    assert front["lines"][1]["energy_j"] == [0.3, 3.0]
    assert charts.pareto(fabricated.sweep("mine", [fabricated.run({metrics.ACCURACY: [1.0]})])) is None


def test_numbers_are_rounded_and_what_is_not_finite_is_none() -> None:
    assert charts.rounded([1.23456789, float("nan"), float("inf"), 123456.0]) == [1.2346, None, None, 123460.0]


SMALL_ROUNDS = (
    "data.name=digits", "fleet.num_devices=20", "fleet.num_edges=3", "scheduling.name=fedavg",
    "scheduling.num_scheduled=9", "assignment.name=best_gain", "training.edge_iterations=2", "model.name=mlp",
    "training.backend=serial", "training.kernel=batched", "training.threads=1", "max_rounds=6",
    "world.compute_jitter.sigma=0.4",
)  # fmt: skip


def rounds_of(cloud: str) -> Iterator[RoundRecord]:
    with Experiment(load_config(None, [*SMALL_ROUNDS, f"clock.cloud={cloud}"]), cpus=1) as experiment:
        yield from experiment


def test_other_clouds_have_no_turns() -> None:
    assert charts.turns_of((record.timeline, record.cost.delay_s) for record in rounds_of("synchronous")) is None


@pytest.mark.parametrize("cloud", ["asynchronous", "{asynchronous: {buffer: 2}}", "{asynchronous: {rule: fedat}}"])
def test_an_edge_begins_a_turn_when_its_model_has_arrived(cloud: str) -> None:
    records = list(rounds_of(cloud))
    turns = charts.turns_of((record.timeline, record.cost.delay_s) for record in records)
    assert turns is not None
    assert len(turns["edge"]) == sum(len(record.timeline.updates) for record in records) == 18
    assert turns["end"] == sorted(turns["end"])
    assert turns["rounds"] == pytest.approx(np.cumsum([record.cost.delay_s for record in records]), abs=1e-5)
    assert turns["end"][-1] <= turns["rounds"][-1] + 1e-5
    for edge in range(3):
        own = [i for i, each in enumerate(turns["edge"]) if each == edge]
        starts, sent, ends = ([turns[name][i] for i in own] for name in ("start", "sent", "end"))
        assert starts[0] == 0
        assert all(start < middle < end for start, middle, end in zip(starts, sent, ends, strict=True))
        # No edge starts a turn before the last one has arrived; it may wait for a plan that gives it devices.
        assert all(start >= end - 1e-5 for start, end in zip(starts[1:], ends, strict=False))
    assert turns["stale"][0] == 0
    assert max(turns["stale"]) > 0
    assert all(version >= 0 for version in turns["version"])


@pytest.mark.parametrize("cloud", ["synchronous", "asynchronous"])
def test_asynchronous_edges_have_turns_too(cloud: str) -> None:
    settings = [*SMALL_ROUNDS, f"clock.cloud={cloud}", "clock.edge=asynchronous"]
    with Experiment(load_config(None, settings), cpus=1) as experiment:
        turns = charts.turns_of((record.timeline, record.cost.delay_s) for record in experiment)
    assert turns is not None
    assert len(turns["edge"]) > 9
    assert all(
        start <= sent <= end for start, sent, end in zip(turns["start"], turns["sent"], turns["end"], strict=True)
    )
