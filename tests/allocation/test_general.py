"""Allocation of any physics, with limits: it agrees with the paper's kernels, and what cannot be is one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray.allocation import allocate_round, exact, kept_by_limits
from hflray.allocation.general import allocate, edges_of
from hflray.assignment import build_assigner
from hflray.config import CostConfig, FleetConfig
from hflray.config.decisions import LimitsConfig
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError, InfeasibleError
from hflray.fleet import Fleet, sample_fleet
from hflray.physics import Access, Link
from hflray.support.arrays import FloatArray
from tests.conftest import refusal

DEVICES, EDGES = np.arange(10), np.arange(10) % 3


def drawn(cost: dict[str, object] | None = None) -> Fleet:
    fleet = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0))
    return fleet if cost is None else fleet.with_physics(CostConfig.model_validate(cost))


def limited(**limits: object) -> Workload:
    return Workload(model_bits=448 * 8192, limits=LimitsConfig(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_it_agrees_with_the_kernels(coupling: str) -> None:
    fleet, work = drawn(), limited()
    expected = round_cost(fleet, work, DEVICES, EDGES, allocate_round(fleet, work, DEVICES, EDGES, coupling=coupling))  # type: ignore[arg-type]
    general = allocate(fleet, work, DEVICES, EDGES, "newton", coupling)
    assert round_cost(fleet, work, DEVICES, EDGES, general).objective == pytest.approx(expected.objective, rel=1e-6)


def test_limits_that_do_not_bind_change_nothing_and_others_are_kept() -> None:
    fleet = drawn()
    free = round_cost(fleet, limited(), DEVICES, EDGES, allocate_round(fleet, limited(), DEVICES, EDGES))
    of_device_j = 5 * (free.compute_energy_j + free.upload_energy_j)
    loose = limited(device_energy_j=2 * of_device_j.max(), device_delay_s=2 * free.delay_s)
    bill = round_cost(fleet, loose, DEVICES, EDGES, allocate_round(fleet, loose, DEVICES, EDGES))
    assert bill.objective == pytest.approx(free.objective, rel=1e-6)
    tight = limited(device_energy_j=0.9 * of_device_j.max())
    bill = round_cost(fleet, tight, DEVICES, EDGES, allocate_round(fleet, tight, DEVICES, EDGES))
    assert (5 * (bill.compute_energy_j + bill.upload_energy_j)).max() <= 0.9 * of_device_j.max() * (1 + 1e-6)


def test_the_device_that_cannot_meet_a_limit_is_named_with_what_it_needs() -> None:
    names = tuple(f"pi-{i}" for i in range(12))
    fleet = Fleet.of(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0), device_names=names)  # type: ignore[arg-type]
    with refusal(InfeasibleError, "device_delay_s: got 60", "device pi-5 at edge 2", "needs at least 2368 s", "drop"):
        allocate_round(fleet, limited(device_delay_s=60.0), DEVICES, EDGES)
    alone = allocate_round(fleet, limited(), [5], [2], "equal")  # all of the edge, at f_max
    needs = 5 * float(round_cost(fleet, limited(), [5], [2], alone).iteration_delay_s[0])
    assert needs == pytest.approx(2368, rel=1e-3)
    enough = limited(device_delay_s=1.01 * needs)
    assert len(allocate_round(fleet, enough, DEVICES[[5]], EDGES[[5]]).share) == 1  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError, match=r"device_energy_j: got 0\.0001"):
        allocate_round(fleet, limited(device_energy_j=1e-4), DEVICES, EDGES)


def test_the_devices_that_stay_can_meet_the_limits() -> None:
    fleet = drawn({"download": {"name": "unicast"}})
    for seconds in (60.0, 10.0, 1e-3):
        work = limited(device_delay_s=seconds, drop=True)
        kept = kept_by_limits(fleet, work, DEVICES, EDGES)
        assert kept.any() == (seconds > 1)
        if kept.any():
            assert not kept.all()
            chosen = DEVICES[kept], EDGES[kept]
            bill = round_cost(fleet, work, *chosen, allocate_round(fleet, work, *chosen))
            assert (5 * bill.iteration_delay_s).max() <= seconds * (1 + 1e-6)


@pytest.mark.parametrize("seconds", [10.0, 15.0, 20.0, 25.0])
def test_of_equal_devices_as_many_stay_as_the_limits_allow(seconds: float) -> None:
    one = drawn().take(np.zeros(10, dtype=int))
    ones, edges = np.ones(10), np.zeros(10, dtype=int)
    fleet = replace(one, gain=np.full((10, 3), 1e-11), samples=np.full(10, 500), cycles_per_sample=5e4 * ones,
                    power_w=0.1 * ones)  # fmt: skip
    work = limited(device_delay_s=seconds, drop=True)
    most = [count for count in range(1, 11) if _is_feasible(fleet, work, count)]
    assert 1 < max(most) < 10
    assert kept_by_limits(fleet, work, DEVICES, edges).sum() == max(most)


def _is_feasible(fleet: Fleet, work: Workload, count: int) -> bool:
    problem, _ = edges_of(fleet, work, np.arange(count), np.zeros(count, dtype=int))
    return bool(exact.solve(problem).feasible[0])


def test_a_download_that_is_too_long_for_one_device_does_not_empty_its_edge() -> None:
    fleet = drawn({"download": {"name": "broadcast"}})
    gain = fleet.gain.copy()
    gain[0] *= 1e-7
    fleet, work = replace(fleet, gain=gain), limited(device_delay_s=600.0, device_energy_j=1e6, drop=True)
    kept = kept_by_limits(fleet, work, np.arange(4), np.zeros(4, dtype=int))
    assert kept.tolist() == [False, True, True, True]


def test_an_edge_needs_a_block_for_each_device() -> None:
    fleet = drawn({"access": {"name": "ofdma", "options": {"blocks": 3}}})
    with refusal(ConfigError, "blocks: got 3", "edge 0 has 4 devices", "4 or more"):
        allocate_round(fleet, limited(), DEVICES, EDGES)
    shares = allocate_round(
        drawn({"access": {"name": "ofdma", "options": {"blocks": 7}}}), limited(), DEVICES, EDGES, "equal"
    ).share
    assert shares is not None
    np.testing.assert_allclose(shares * 7, [2, 3, 3, 2, 2, 2, 2, 2, 2, 1])


def test_what_prices_frequency_division_alone_says_so() -> None:
    fleet, rng = drawn({"access": {"name": "tdma"}}), np.random.default_rng(0)
    for method in ("cvxpy", "fixed_cpu"):
        with pytest.raises(ConfigError, match=f"allocation.method: got {method}"):
            allocate_round(fleet, limited(), DEVICES, EDGES, method)  # type: ignore[arg-type]
    for name in ("geographic", "random", "best_gain", "load_balanced", "even_gain"):
        edges = build_assigner(name).assign(fleet, limited(), DEVICES, rng)
        assert allocate_round(fleet, limited(), DEVICES, edges).share is not None
    with pytest.raises(ConfigError, match="share: got an allocation without shares"):
        round_cost(fleet, limited(), DEVICES, EDGES, allocate_round(drawn(), limited(), DEVICES, EDGES))


def test_without_limits_what_the_parts_returned_is_said() -> None:
    class Broken(Access):
        def upload(self, share: FloatArray, link: Link, bits: float) -> tuple[FloatArray, FloatArray]:
            return np.nan * share, share

    fleet = replace(drawn(), access=Broken())
    with refusal(InfeasibleError, "no allocation at edge 0 with 4 devices", "Broken returned nan to nan s", "dvfs"):
        allocate_round(fleet, limited(), DEVICES, EDGES)
