"""hflray.training.plan: balance, a round's plan, and the size of the pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.aggregation.fixed_point import fraction_bits
from hflray.config import load_config
from hflray.cost import Schedule
from hflray.training.iterations import Iterations
from hflray.training.method import Method
from hflray.training.plan import balance, pool_size
from hflray.training.state import TrainingSetting
from tests.conftest import cases

SIZES = (9, 7, 5, 4, 3, 2)
DEVICES = np.array([0, 1, 2, 4, 5])
EDGES = np.array([2, 0, 2, 0, 2])  # edge 1 stays empty


def plan_of(samples, devices, edges, hosts: int, participates) -> Iterations:
    samples = np.array(samples)
    setting = TrainingSetting(Method(), 0, samples, 4, np.ones_like(samples), 0.1, (1,))
    return Iterations(setting, 1, Schedule(devices, edges), participates, hosts)


@settings(deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 9))
def test_longest_first_is_within_four_thirds_of_the_best(load, hosts) -> None:
    total = np.bincount(balance(np.array(load), hosts), np.array(load), minlength=hosts)
    # This is Graham's bound relative to the lower bounds of any schedule.
    lower = max(max(load), sum(load) / hosts, sum(sorted(load)[-hosts - 1 :][:2]) if len(load) > hosts else 0)
    assert total.sum() == sum(load)
    assert total.max() <= lower * (4 / 3) + max(load) / 3


def test_balance_by_hand() -> None:
    # 7 → host 0, 6 → host 1, 5 → host 1 (6 < 7), 4 → host 0 (7 < 11), 3 → host 0 (11 = 11, the first)
    np.testing.assert_array_equal(balance(np.array([3, 7, 5, 4, 6]), 2), [0, 0, 1, 0, 1])


def test_a_plan_holds_each_device_once_at_its_edge() -> None:
    plan = plan_of(np.array(SIZES), DEVICES, EDGES, 2, np.ones((3, 5), dtype=bool))
    assert len(plan.plans) == 3
    for iteration in plan.plans:
        shares = iteration.shares
        pairs = sorted((device, edge) for share in shares for edge, devices in share.items() for device in devices)
        assert pairs == sorted(zip(DEVICES.tolist(), EDGES.tolist(), strict=True))
        assert iteration.edge_weights == {0: 7 + 3, 2: 9 + 5 + 2}
    assert plan.fraction_bits == fraction_bits(26)


def test_a_plan_leaves_out_rows_that_do_not_count() -> None:
    counts = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], dtype=bool)
    plan = plan_of(np.array(SIZES), DEVICES, EDGES, 2, counts)
    whole = plan_of(np.array(SIZES), DEVICES, EDGES, 2, np.ones((3, 5), dtype=bool))
    assert plan.fraction_bits == whole.fraction_bits
    assert plan.plans[0] == whole.plans[0]
    assert plan.plans[1].edge_weights == {0: 7, 2: 5 + 2}
    for share, all_of_it in zip(plan.plans[1].shares, whole.plans[1].shares, strict=True):
        for edge, devices in share.items():
            assert set(devices) <= set(all_of_it[edge])  # a device stays with its host
    assert plan.plans[2].edge_weights == {}
    assert plan.last == {0: 1, 2: 1}


@pytest.mark.parametrize("settings, scheduled, cpus, gpus, expected", cases("training/pools"))
def test_the_size_of_a_pool(settings: str, scheduled: int, cpus: int, gpus: float, expected: tuple) -> None:
    config = load_config(None, [f"training.{setting}" for setting in settings.split()]).training
    size = pool_size(config, scheduled, cpus, gpus)
    assert list(size) == expected
    assert type(size.actors) is int


def test_a_host_without_devices_has_an_empty_share() -> None:
    (iteration,) = plan_of(np.array([4, 6]), np.array([1]), np.array([2]), 3, np.ones((1, 1), dtype=bool)).plans
    assert sorted(iteration.shares, key=len) == [{}, {}, {2: (1,)}]
    assert iteration.edge_weights == {2: 6}
