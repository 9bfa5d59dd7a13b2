"""hflray.reproduction.tsdp.assigners: the division of two edges by hand, and against every assignment."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.config import load_config
from hflray.cost import round_cost
from hflray.errors import ConfigError
from hflray.experiment.study import Instance
from hflray.reproduction.tsdp.assigners import Exhaustive, TwinSorting, delays_s, divide, slowness_s

SETTINGS = ("fleet.num_devices=20", "cost.model_kb=448", "allocation.method=equal")


def instance(index: int, num_edges: int, num_scheduled: int) -> Instance:
    more = (f"fleet.num_edges={num_edges}", f"scheduling.num_scheduled={num_scheduled}")
    return Instance.of(load_config(None, [*SETTINGS, *more]), index)


def delay_s(one: Instance, plan: np.ndarray) -> float:
    """Return the round's delay as it is billed."""
    allocation = allocate_round(one.fleet, one.work, one.devices, plan, method="equal")
    return round_cost(one.fleet, one.work, one.devices, plan, allocation).delay_s


def test_a_division_by_hand() -> None:
    """Three devices take 1, 2 and 4 s alone at edge 0 and n times that with n; at edge 1 they take 3, 3 and 3 s.

    All at edge 0: 12 s. Two there, the quick ones: 4 s, and 3 s for the other. One there: 1 s, and 6 s for two.
    """
    alone = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    delays = alone[:, None, :] * np.arange(4)[None, :, None]
    first, value = divide(delays)
    assert first.tolist() == [True, True, False]
    assert value == 4.0
    assert slowness_s(delays, np.array([0, 0, 1])).tolist() == [4.0, 3.0]


def test_an_edge_without_devices_still_waits_for_its_hop() -> None:
    """Edge 1 is hopeless for devices, and its hop alone takes 50 s."""
    delays = np.zeros((2, 3, 2))
    delays[0] = [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    delays[1] = [[50.0, 50.0], [900.0, 900.0], [900.0, 900.0]]
    first, value = divide(delays)
    assert first.all()
    assert value == 50.0


def test_the_delays_are_those_of_the_bill() -> None:
    one = instance(3, 3, 6)
    rng = np.random.default_rng(0)
    delays = delays_s(one.fleet, one.work, one.devices)
    for _ in range(20):
        plan = rng.integers(0, 3, 6)
        assert slowness_s(delays, plan).max() == pytest.approx(delay_s(one, plan), rel=1e-12)


@pytest.mark.parametrize("index", range(1, 31))
def test_two_edges_are_divided_as_well_as_by_every_assignment(index: int) -> None:
    one, rng = instance(index, 2, 7), np.random.default_rng(0)
    plans = [assigner.assign(one.fleet, one.work, one.devices, rng) for assigner in (TwinSorting(), Exhaustive())]
    best = min(delay_s(one, np.array(plan)) for plan in product(range(2), repeat=7))
    assert [delay_s(one, plan) for plan in plans] == pytest.approx([best, best], rel=1e-12)


def test_three_edges_end_where_no_pair_with_the_slowest_gains() -> None:
    worse = 0
    for index in range(1, 31):
        one, rng = instance(index, 3, 6), np.random.default_rng(0)
        plan = TwinSorting().assign(one.fleet, one.work, one.devices, rng)
        best = Exhaustive().assign(one.fleet, one.work, one.devices, rng)
        delays = delays_s(one.fleet, one.work, one.devices)
        ours, least = slowness_s(delays, plan), slowness_s(delays, best).max()
        assert least == pytest.approx(min(
            delay_s(one, np.array(each)) for each in product(range(3), repeat=6)
        ), rel=1e-12) if index == 1 else True  # fmt: skip
        slowest = int(ours.argmax())
        for other in {0, 1, 2} - {slowest}:
            members = np.flatnonzero((plan == slowest) | (plan == other))
            _, value = divide(delays[[slowest, other]][:, : len(members) + 1, members])
            assert value >= ours.max() * (1 - 1e-9)
        worse += ours.max() > least * (1 + 1e-9)
    assert worse < 15


def test_one_edge_has_all_devices() -> None:
    one = instance(1, 1, 4)
    assert TwinSorting().assign(one.fleet, one.work, one.devices, np.random.default_rng(0)).tolist() == [0] * 4


def test_too_many_assignments_are_refused() -> None:
    one = instance(1, 3, 20)
    with pytest.raises(ConfigError, match=r"scheduling\.num_scheduled: 3 edges and 20 devices have 3,486,784,401"):
        Exhaustive().assign(one.fleet, one.work, one.devices, np.random.default_rng(0))
