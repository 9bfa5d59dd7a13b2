"""hflray.study: the same fleets for every assigner, billed as a round is."""

from __future__ import annotations

import pytest

from hflray import metrics
from hflray.config import ExperimentConfig, load_config
from hflray.study import run_study


def config(*overrides: str) -> ExperimentConfig:
    small = ("max_rounds=4", "fleet.num_devices=15", "fleet.num_edges=3", "scheduling.num_scheduled=8")
    return load_config(None, [*small, *overrides])


def test_better_assigners_cost_less_on_the_same_fleets() -> None:
    names = ("geographic", "hfel", "local_search")
    means = {}
    for name in names:
        records = list(run_study(config(f"assignment.name={name}")))
        assert [record.fleet for record in records] == [1, 2, 3, 4]
        means[name] = sum(record.objective for record in records)
        for record in records:
            assert record.objective == pytest.approx(record.energy_j + record.delay_s)
            assert 0 <= record.gap < 1
    assert max(means["local_search"], means["hfel"]) < means["geographic"]


def test_a_joint_deadline_costs_less_for_the_same_assignment() -> None:
    per_edge = list(run_study(config("assignment.name=best_gain")))
    joint = list(run_study(config("assignment.name=best_gain", "allocation.coupling=joint")))
    for one, other in zip(per_edge, joint, strict=True):
        assert other.objective <= one.objective * (1 + 1e-9)
    assert sum(r.objective for r in joint) < sum(r.objective for r in per_edge)


def test_it_repeats_and_depends_on_the_seed() -> None:
    def objectives(*overrides: str) -> list[float]:
        return [record.objective for record in run_study(config("assignment.name=hfel", *overrides))]

    assert objectives() == objectives()
    assert objectives() != objectives("seed=1")


def test_the_metrics_are_the_glossarys() -> None:
    record = next(run_study(config("assignment.name=random")))
    assert set(record.metrics()) == {
        metrics.ROUND_DELAY_S,
        metrics.ROUND_ENERGY_J,
        metrics.ROUND_OBJECTIVE,
        metrics.ASSIGNMENT_GAP,
        metrics.WALL_ASSIGN_S,
    }
    assert record.latency_s > 0
