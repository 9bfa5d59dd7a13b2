"""hflray.report.ranking: ranks, ratios and tests by hand, seeds, fields, and what is not counted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hflray import metrics
from hflray.errors import ConfigError
from hflray.report import figures
from hflray.report.ranking import compare, fields, mean_ranks, ranking, unranked
from hflray.report.runs import RunRecord
from hflray.support.pairs import signed_rank_p
from tests.report.fabricated import run, sweep

SEEDS = range(10)
TOTALS = (metrics.TOTAL_ENERGY_J, metrics.TOTAL_DELAY_S, metrics.TOTAL_OBJECTIVE)


def to_target(
    scheduler: str, joules: float | None, seed: int = 0, assigner: str = "hfel", *more: str, spent: float = 9.0
) -> RunRecord:
    """Return a run that needed some joules to its target; None if it missed it, having spent `spent`."""
    columns = {metrics.ACCURACY: [0.5, 0.9]}
    columns |= {name: [0.0, spent if joules is None else joules] for name in TOTALS}
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


def only(runs: list[RunRecord]) -> dict:
    """Return the contestants of the only field."""
    (contestants,) = fields(runs).values()
    return contestants


@pytest.mark.parametrize(
    "own, other", [(["max_rounds=9"], ["max_rounds=1"]), (["target_accuracy=0.8"], ["target_accuracy=0.5"])]
)
def test_contestants_with_other_targets_or_fewer_rounds_are_not_ranked_beside_each_other(own, other) -> None:
    """IKC has reached its target in round 2; FedAvg had one round, or another target."""
    missed = own[0].startswith("max_rounds")
    runs = [to_target("ikc", 4, seed, "hfel", *own) for seed in SEEDS]
    runs += [to_target("fedavg", None if missed else 2, seed, "hfel", *other) for seed in SEEDS]
    assert [list(contestants) for contestants in fields(runs).values()] in (
        [["IKC"], ["FedAvg"]],
        [["FedAvg"], ["IKC"]],
    )
    assert ranking(sweep("mine", runs)) is None


def test_data_sets_may_have_targets_of_their_own() -> None:
    runs = [to_target(name, 1, 0, "hfel", f"data.name={data}", f"target_accuracy={target}")
            for name in ("ikc", "oort") for data, target in (("digits", 0.9), ("synthetic", 0.8))]  # fmt: skip
    assert list(fields(runs)) == ["digits", "synthetic"]


def test_ranks_within_a_seed_and_their_mean() -> None:
    runs = [to_target("ikc", 5), to_target("fedavg", None), to_target("vkc", None), to_target("oort", 2),
            to_target("ikc", 5, 1), to_target("fedavg", 3, 1)]  # fmt: skip
    for quantity in ("joules", "rounds"):
        # Both that missed the target have spent 9, which is beyond the others; their own order is not known.
        ranks = mean_ranks(only(runs), quantity)
        ties = {"joules": ((2 + 2) / 2, (3.5 + 1) / 2, 1), "rounds": ((1.5 + 1.5) / 2, (3.5 + 1.5) / 2, 1.5)}[quantity]
        assert ranks == dict(zip(("IKC", "FedAvg", "Oort"), ties, strict=True)) | {"VKC": 3.5}


def test_a_run_that_missed_its_target_early_has_no_certain_rank() -> None:
    runs = [to_target("ikc", 5), to_target("fedavg", None, spent=2.0), to_target("oort", 1)]
    assert mean_ranks(only(runs), "joules") == {"IKC": 2.5, "FedAvg": 2.5, "Oort": 1}


def test_assigners_of_a_seed_are_one_unit() -> None:
    """The steps of a seed are the mean logarithms over the assigners that both contestants have."""
    runs = [to_target("ikc", 4, seed, assigner) for seed in (0, 1) for assigner in ("hfel", "local_search")]
    runs += [to_target("oort", 2, 0, "hfel"), to_target("oort", 8, 0, "local_search"), to_target("oort", 1, 1, "hfel")]
    contestants = only(runs)
    pair = compare(contestants["Oort"], contestants["IKC"], "joules")
    np.testing.assert_allclose(pair.steps, [0.0, np.log(1 / 4)], atol=1e-12)
    missed = [to_target("oort", None, 0, "hfel"), to_target("oort", 8, 0, "local_search")]
    contestants = only([*runs[:4], *missed])
    assert compare(contestants["Oort"], contestants["IKC"], "reached").steps.tolist() == [-0.5]


def test_each_partition_is_ranked_by_itself_and_with_its_own_family() -> None:
    runs = []
    for fraction, seed in product((0.5, 1.0), SEEDS):
        more = ("data.partition=majority", f"data.majority_fraction={fraction}")
        runs += [to_target("ikc", 4, seed, "hfel", *more), to_target("oort", 2 + seed / 10, seed, "hfel", *more)]
        if fraction == 1.0:
            runs += [to_target("vkc", 4 + seed / 10, seed, "hfel", *more)]
    assert list(fields(runs)) == ["majority 50%", "majority 100%"]
    table = ranking(sweep("mine", runs))
    assert table is not None
    rows = {(row["data"], row[""]): row for row in table.records}
    assert list(table["data"]) == ["majority 50%"] * 2 + ["majority 100%"] * 3
    assert rows["majority 50%", "Oort"]["joules × IKC's (p)"] == "0.61 (0.002)"  # 2/1024
    assert rows["majority 100%", "Oort"]["joules × IKC's (p)"] == "0.61 (0.004)"  # 2 · 2/1024
    assert rows["majority 100%", "VKC"]["joules × IKC's (p)"] == "1.11 (0.004)"  # nine differ: 2/512
    drawn = figures.ranks(sweep("mine", runs))
    assert len(drawn.axes) == 8


def test_censored_pairs_are_counted_in_print_and_bound_the_ratio() -> None:
    runs = [to_target("ikc", 4.0, seed) for seed in SEEDS]
    # Six missed the target after 8 J, two after 2 J, and two reached it with 6 J.
    needs = [None] * 8 + [6.0] * 2
    runs += [to_target("oort", needs[seed], seed, spent=8.0 if seed < 6 else 2.0) for seed in SEEDS]
    table = ranking(sweep("mine", runs))
    assert table is not None
    (row,) = [row for row in table.records if row[""] == "Oort"]
    p = signed_rank_p([2.0] * 6 + [0.0] * 2 + [1.5] * 2)
    assert row["joules × IKC's (p)"] == f"≥ 2.00 ({p:.3f}, 2 uncertain)"
    assert row["rounds × IKC's (p)"] == f"not reached ({signed_rank_p([1.0] * 8 + [0.0] * 2):.3f})"
    assert row["reached"] == f"2 of 10 ({signed_rank_p([-1.0] * 8 + [0.0] * 2):.3f})"


def test_a_scheduler_that_assigns_counts_once() -> None:
    runs = [
        to_target(name, 4, 0, assigner) for name, assigner in product(("ikc", "joint_cost"), ("hfel", "local_search"))
    ]
    contestants = only(runs)
    assert [len(contestants[name][0]) for name in ("IKC", "joint_cost")] == [2, 1]


def test_options_make_another_contestant_and_runs_under_way_do_not_count() -> None:
    options = "scheduling.options={max_wait: %s}"
    runs = [to_target("joint_cost", 4, 0, "local_search", options % wait) for wait in ("2", "null")]
    under_way = run({metrics.ACCURACY: [0.5]}, "scheduling.name=vkc", status="RUNNING")
    assert list(only([*runs, under_way])) == ["joint_cost, max_wait 2", "joint_cost, max_wait none"]


def test_the_table() -> None:
    runs = [to_target("ikc", 4 + seed / 10, seed) for seed in SEEDS]
    runs += [to_target("oort", 2 + seed / 10, seed) for seed in SEEDS]
    runs += [to_target("fastest", None, seed) for seed in SEEDS[:3]]
    table = ranking(sweep("mine", runs))
    assert table is not None
    rows = {row[""]: row for row in table.records}
    assert list(rows) == ["Oort", "IKC", "fastest"]
    assert rows["Oort"]["reached"] == "10 of 10"
    assert rows["Oort"]["joules: rank"] == "1.0"
    assert rows["Oort"]["joules × IKC's (p)"] == "0.55 (0.002)"
    assert rows["Oort"]["rounds × IKC's (p)"] == "1.00 (1.000)"
    assert rows["IKC"]["joules × IKC's (p)"] == "1"
    assert (rows["fastest"]["reached"], rows["fastest"]["seeds"]) == ("0 of 3 (–)", "3")
    assert rows["fastest"]["rounds × IKC's (p)"] == "not reached (–)"
    assert rows["fastest"]["joules × IKC's (p)"] == "≥ 2.20 (–)"
    drawn = figures.ranks(sweep("mine", runs))
    assert [bar.get_width() for bar in drawn.axes[2].patches] == pytest.approx([1, 2, 3])


def test_there_is_no_table_without_the_reference_or_a_target() -> None:
    assert ranking(sweep("mine", [to_target("vkc", 1), to_target("oort", 1)])) is None
    assert ranking(sweep("mine", [to_target("ikc", None), to_target("oort", None)])) is None
    assert ranking(sweep("mine", [to_target("ikc", 1)])) is None


def test_a_data_set_on_which_no_run_reached_its_target_is_named() -> None:
    runs = [to_target(name, 1) for name in ("ikc", "oort")]
    short = ("data.name=synthetic", "target_accuracy=0.8")
    runs += [run({metrics.ACCURACY: [0.4, 0.748, 0.7]}, f"scheduling.name={name}", *short) for name in ("ikc", "oort")]
    table = ranking(sweep("mine", runs))
    assert table is not None
    assert list(table[""]) == ["IKC", "Oort"]
    (sentence,) = unranked(sweep("mine", runs))
    assert sentence == "synthetic: not ranked, because none of 2 runs reached its target (at most 74.8%)."
    assert unranked(sweep("mine", runs[:2])) == []
    drawn = figures.ranks(sweep("mine", runs))
    assert len(drawn.axes) == 4, "the figure leaves the data set out, too"
    with pytest.raises(ConfigError, match="mine: nothing can be ranked, because no run reached its target"):
        figures.ranks(sweep("mine", runs[2:]))


def test_another_reference_takes_the_place_of_ikc() -> None:
    runs = [to_target("energy_aware", 4.0, seed) for seed in SEEDS]
    runs += [to_target("ikc", 2.0 + seed / 100, seed) for seed in SEEDS]
    table = ranking(sweep("mine", runs), "energy_aware")
    assert table is not None
    rows = {row[""]: row for row in table.records}
    assert rows["IKC"]["joules × energy-aware's (p)"] == "0.51 (0.002)"
    assert rows["energy-aware"]["joules × energy-aware's (p)"] == "1"


def test_deployments_of_a_seed_are_one_unit() -> None:
    places = [f"fleet.deployment_seed={number}" for number in (0, 1)]
    runs = [to_target("ikc", 4, 0, "hfel", place) for place in places]
    runs += [to_target("oort", joules, 0, "hfel", place) for joules, place in zip((2, 8), places, strict=True)]
    contestants = only(runs)
    assert len(contestants["Oort"][0]) == 2, "no run of a deployment replaces another's"
    np.testing.assert_allclose(compare(contestants["Oort"], contestants["IKC"], "joules").steps, [0.0], atol=1e-12)


def test_a_scheduler_that_assigns_is_ranked_with_any_assigner() -> None:
    runs = [to_target("ikc", 4, 0, "geographic"), to_target("joint_cost", 2, 0, "geographic")]
    assert [*only(runs)] == ["IKC", "joint_cost"]
    both = [*runs, to_target("ikc", 4, 0, "local_search"), to_target("joint_cost", 3, 0, "local_search")]
    (members,) = only(both)["joint_cost"].values()
    assert [one.last(metrics.TOTAL_ENERGY_J) for one in members.values()] == [3]


def test_what_is_not_ranked_says_so_by_its_own_metric() -> None:
    names = ("scheduling.name=ikc", "scheduling.name=fedavg")
    missed = [run({metrics.R2: [0.2, 0.4]}, name, "target={metric: r2, value: 0.9}") for name in names]
    assert unranked(sweep("s", missed)) == [": not ranked, because none of 2 runs reached its target (at most 0.400)."]
    free = [run({metrics.ACCURACY: [0.4]}, name) for name in names]
    assert unranked(sweep("s", free)) == [": not ranked, because its runs have no target."]
