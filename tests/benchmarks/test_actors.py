"""tests/benchmarks/actors.py runs on the smallest settings."""

from __future__ import annotations

import os

import pytest

from hflray.config import load_config
from tests.benchmarks import actors

TINY = (
    "data.name=synthetic",
    "data.samples_per_device=[4, 6]",
    "fleet.num_devices=6",
    "fleet.num_edges=2",
    "scheduling.num_scheduled=3",
    "scheduling.num_clusters=2",
    "scheduling.name=fedavg",
    "assignment.name=geographic",
    "training.local_iterations=1",
    "training.edge_iterations=1",
    "training.num_actors=1",
)


@pytest.mark.slow
def test_costs_of_the_pool_can_be_measured(ray_session) -> None:
    median_s, best_s, ready_s = actors.noop(6, 1, 0.5, rounds=3)
    assert 0 < best_s <= median_s < ready_s
    pss, rss = actors.memory_mb(os.getpid())
    assert 50 < pss <= rss
    ((pss, rss),) = actors.memory(load_config(None, TINY))
    assert 50 < pss <= rss


def test_the_comparison_for_a_gpu_runs_on_cpu_tensors() -> None:
    assert min(actors.at_once("cpu", 2, 5, repeats=1)) > 0
