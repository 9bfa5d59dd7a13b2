"""hflray.report.ranking: ranks, ratios and tests by hand, blocks, and what is not counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hflray import metrics
from hflray.pairs import LEAST_PAIRS
from hflray.report import figures
from hflray.report.ranking import blocks, holm, mean_ranks, ranking
from hflray.report.runs import Run
from tests.report.fabricated import run, sweep


def to_target(scheduler: str, joules: float | None, seed: int = 0, assigner: str = "hfel", *more: str) -> Run:
    """Return a run that needed some joules to its target; None if it did not reach it."""
    columns = {metrics.ACCURACY: [0.5, 0.9]}
    if joules is not None:
        names = (metrics.ENERGY_TO_TARGET_J, metrics.DELAY_TO_TARGET_S, metrics.OBJECTIVE_TO_TARGET)
        columns |= {name: [joules, joules] for name in names} | {metrics.ROUNDS_TO_TARGET: [2.0, 2.0]}
    return run(
        columns,
        f"scheduling.name={scheduler}",
        f"seed={seed}",
        f"assignment.name={assigner}",
        "data.name=digits",
        *more,
    )


def test_holms_adjustment_by_hand() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": np.nan})
    assert [adjusted[name] for name in "abc"] == pytest.approx([0.03, 0.06, 0.06])
    assert np.isnan(adjusted["d"])


def test_ranks_within_a_block_and_their_mean() -> None:
    runs = [to_target("ikc", 5), to_target("fedavg", None), to_target("vkc", None), to_target("oort", 2),
            to_target("ikc", 5, 1), to_target("fedavg", 3, 1)]  # fmt: skip
    ranks = mean_ranks(blocks(runs), metrics.ENERGY_TO_TARGET_J)
    assert ranks == {"IKC": (2 + 2) / 2, "FedAvg": (3.5 + 1) / 2, "Oort": 1, "VKC": 3.5}


def test_a_scheduler_that_assigns_counts_once() -> None:
    runs = [
        to_target(name, 4, 0, assigner) for name, assigner in product(("ikc", "joint_cost"), ("hfel", "local_search"))
    ]
    by_contestant = blocks(runs)
    assert [len(by_contestant[name]) for name in ("IKC", "joint_cost")] == [2, 1]


def test_options_make_another_contestant_and_runs_under_way_do_not_count() -> None:
    options = "scheduling.options={max_wait: %s}"
    runs = [to_target("joint_cost", 4, 0, "local_search", options % wait) for wait in ("2", "null")]
    under_way = run({metrics.ACCURACY: [0.5]}, "scheduling.name=vkc", status="RUNNING")
    assert list(blocks([*runs, under_way])) == ["joint_cost, max_wait 2", "joint_cost, max_wait none"]


def test_the_table() -> None:
    seeds = range(LEAST_PAIRS)
    runs = [to_target("ikc", 4 + seed / 10, seed) for seed in seeds]
    runs += [to_target("oort", 2 + seed / 10, seed) for seed in seeds]
    runs += [to_target("fastest", None, seed) for seed in seeds[:3]]
    table = ranking(sweep("mine", runs))
    assert table is not None
    rows = table.set_index("").to_dict("index")
    assert list(rows) == ["Oort", "IKC", "fastest"]
    assert rows["Oort"]["reached"] == "10 of 10"
    assert rows["Oort"]["joules: rank"] == "1.0"
    assert rows["Oort"]["joules × IKC's"] == "0.55 (p = 0.002)"
    assert rows["Oort"]["rounds × IKC's"] == "1.00 (p = 1.000)"
    assert rows["IKC"]["joules × IKC's"] == "1"
    assert (rows["fastest"]["reached"], rows["fastest"]["pairs"]) == ("0 of 3", "3")
    assert rows["fastest"]["joules × IKC's"] == "not reached (not tested)"
    drawn = figures.ranks(sweep("mine", runs))
    assert [bar.get_width() for bar in drawn.axes[2].patches] == pytest.approx([1, 2, 3])


def test_there_is_no_table_without_the_reference_or_a_target() -> None:
    assert ranking(sweep("mine", [to_target("vkc", 1), to_target("oort", 1)])) is None
    assert ranking(sweep("mine", [to_target("ikc", None), to_target("oort", None)])) is None
    assert ranking(sweep("mine", [to_target("ikc", 1)])) is None


def test_another_reference_takes_the_place_of_ikc() -> None:
    runs = [to_target("energy_aware", 4.0, seed) for seed in range(LEAST_PAIRS)]
    runs += [to_target("ikc", 2.0 + seed / 100, seed) for seed in range(LEAST_PAIRS)]
    table = ranking(sweep("mine", runs), "energy_aware")
    assert table is not None
    rows = table.set_index("").to_dict("index")
    assert rows["IKC"]["joules × energy-aware's"] == "0.51 (p = 0.002)"
    assert rows["energy-aware"]["joules × energy-aware's"] == "1"


def test_each_data_set_is_ranked_by_itself() -> None:
    runs = [to_target(name, 1) for name in ("ikc", "oort")]
    runs += [run({metrics.ACCURACY: [1.0], metrics.ROUNDS_TO_TARGET: [1.0]}, f"scheduling.name={name}",
                 "data.name=synthetic") for name in ("ikc", "oort")]  # fmt: skip
    table = ranking(sweep("mine", runs))
    assert table is not None
    assert list(table["data"]) == ["digits", "digits", "synthetic", "synthetic"]
