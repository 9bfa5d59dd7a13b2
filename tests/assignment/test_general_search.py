"""The searches on the general allocator: those of the kernels on the paper's physics, and true costs on any other."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hflray import FleetConfig, Workload, allocate_round, build_assigner, round_cost, sample_fleet
from hflray.allocation import kept_by_limits
from hflray.assignment.general_search import GeneralSearch
from hflray.assignment.hfel import HFEL
from hflray.assignment.local_search import LocalSearch
from hflray.assignment.state import NOBODY, NOWHERE
from hflray.config.decisions import LimitsConfig
from hflray.physics.access import Broadcast, Ofdma, Tdma, Unicast

WORK = Workload(model_bits=3.6e6, edge_iterations=5, download_bits=3.6e6)


def fleet_of(seed: int = 0, num_edges: int = 3, **parts):
    fleet = sample_fleet(FleetConfig(num_devices=30, num_edges=num_edges), np.random.default_rng(seed))
    return replace(fleet, **parts)


def objective(fleet, work, devices, edges, coupling: str = "per_edge") -> float:
    allocation = allocate_round(fleet, work, devices, edges, coupling=coupling)
    return round_cost(fleet, work, devices, edges, allocation).objective


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_on_the_papers_physics_it_ends_as_well_as_the_kernels(coupling):
    fleet, devices = fleet_of(), np.arange(0, 30, 3)
    search = GeneralSearch(fleet, WORK, devices, coupling)
    value = search.run(fleet.strongest_edges(devices)[:, 0])
    kernels = LocalSearch(coupling=coupling).assign(fleet, WORK, devices, np.random.default_rng(0))
    assert value == pytest.approx(objective(fleet, WORK, devices, search.assignment, coupling), rel=1e-6)
    assert value <= objective(fleet, WORK, devices, kernels, coupling) * (1 + 1e-5)


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_hfel_makes_the_tries_of_the_kernels(coupling):
    fleet, devices = fleet_of(1), np.arange(12)
    hfel = HFEL(30, 60, coupling=coupling)
    rng = np.random.default_rng(5)
    draws = np.random.default_rng(5).random((90, 2))
    start = fleet.nearest_edges(devices)[:, 0]
    general = hfel._search_generally(fleet, WORK, devices, start, draws)
    assert general.tolist() == hfel.assign(fleet, WORK, devices, rng).tolist()


@pytest.mark.parametrize(
    "parts",
    [{"access": Tdma()}, {"access": Ofdma(12)}, {"download": Broadcast()}, {"access": Tdma(), "download": Unicast()}],
)
@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
@pytest.mark.parametrize("minimise", ["round", "mean_edge"])
def test_no_single_move_is_better_and_costs_are_those_of_the_bill(parts, coupling, minimise):
    if coupling == "joint" and minimise == "mean_edge":
        return
    fleet, devices, work = fleet_of(2, **parts), np.arange(5), replace_work(minimise=minimise)
    search = GeneralSearch(fleet, work, devices, coupling)
    value = search.run(np.zeros(5, dtype=np.intp))

    def billed(edges) -> float:
        allocation = allocate_round(fleet, work, devices, edges, coupling=coupling)
        cost = round_cost(fleet, work, devices, edges, allocation)
        used = cost.edge_devices > 0
        delay_s = cost.edge_delay_s[used].mean() if minimise == "mean_edge" else cost.delay_s
        return cost.energy_j + work.delay_weight * delay_s

    if "access" in parts and parts["access"].blocks:  # priced as if blocks could be split
        assert 0.9 * billed(search.assignment) < value < billed(search.assignment) * (1 + 1e-6)
        return
    assert value == pytest.approx(billed(search.assignment), rel=1e-6)
    for n, m in itertools.product(range(5), range(3)):
        moved = search.assignment.copy()
        moved[n] = m
        assert billed(moved) >= value * (1 - 2e-6)
    for a, b in itertools.combinations(range(5), 2):
        swapped = search.assignment.copy()
        swapped[[a, b]] = swapped[[b, a]]
        assert billed(swapped) >= value * (1 - 2e-6)


def replace_work(**values) -> Workload:
    return Workload(model_bits=3.6e6, edge_iterations=5, download_bits=3.6e6, **values)


def test_it_leaves_edges_that_cannot_meet_a_limit_first():
    fleet, devices = fleet_of(3, access=Tdma()), np.arange(6)
    free = GeneralSearch(fleet, WORK, devices)
    free.run(fleet.strongest_edges(devices)[:, 0])
    allocation = allocate_round(fleet, WORK, devices, free.assignment)
    bill = round_cost(fleet, WORK, devices, free.assignment, allocation)
    limited = replace_work(limits=LimitsConfig(device_delay_s=float(1.02 * (bill.iteration_delay_s * 5).max())))
    search = GeneralSearch(fleet, limited, devices)
    assert search.begin(np.zeros(6, dtype=np.intp)) > 1e14
    assert search.run(np.zeros(6, dtype=np.intp)) < 1e6
    objective(fleet, limited, devices, search.assignment)  # it can be allocated


def test_a_choice_of_devices_keeps_groups_and_is_better_than_the_start():
    fleet, devices = fleet_of(4, access=Tdma(), cloud_gain=np.array([1e-9, 1e-9, 1e-25])), np.arange(12)
    group, stays = np.repeat([0, 1], 6), np.zeros(12, dtype=bool)
    stays[0] = True
    start = np.full(12, NOWHERE)
    start[[0, 1, 6, 7]] = 0
    search = GeneralSearch(fleet, WORK, devices, "per_edge", True, group, stays, np.array([True, True, False]))
    before, after = search.begin(start), search.run(start)
    chosen = np.flatnonzero(search.assignment != NOWHERE)
    assert after < before
    assert np.bincount(group[chosen]).tolist() == [2, 2]
    assert search.assignment[0] != NOWHERE
    assert set(search.assignment[chosen]) <= {0, 1}
    usable = fleet.take_edges([0, 1])  # the hop of the other edge takes hours, and is not made
    assert after == pytest.approx(objective(usable, WORK, chosen, search.assignment[chosen]), rel=1e-6)


@pytest.mark.parametrize("name", ["hfel", "local_search", "d3qn"])
def test_assigners_search_on_the_physics_of_the_fleet(name):
    fleet, devices = fleet_of(5, 5, access=Tdma(), download=Broadcast()), np.arange(10)
    options = {"polish_ms": "optimum"} if name == "d3qn" else {}
    edges = build_assigner(name, **options).assign(fleet, WORK, devices, np.random.default_rng(0))
    nearest = fleet.nearest_edges(devices)[:, 0]
    assert objective(fleet, WORK, devices, edges) < objective(fleet, WORK, devices, nearest)
    if name != "hfel":
        search = GeneralSearch(fleet, WORK, devices)
        value = search.begin(edges)
        assert (
            search.make_first(
                np.array([[n, NOBODY, m] for n in range(10) for m in range(5) if m != edges[n]]), value * (1 - 1e-5)
            )
            is None
        )


@pytest.mark.parametrize("assigner", [LocalSearch(), HFEL(60, 120)])
def test_a_device_that_will_be_left_out_does_not_move_the_others(assigner):
    fleet = fleet_of(11)
    gain = fleet.gain.copy()
    gain[0] *= 1e-7
    fleet, work = replace(fleet, gain=gain), replace(WORK, limits=LimitsConfig(device_delay_s=120.0, drop=True))

    def cost(devices):
        edges = assigner.assign(fleet, work, devices, np.random.default_rng(0))
        kept = kept_by_limits(fleet, work, devices, edges)
        return objective(fleet, work, devices[kept], edges[kept]), devices[~kept].tolist()

    (whole, left_out), (without, nobody) = cost(np.arange(12)), cost(np.arange(1, 12))
    assert (left_out, nobody) == ([0], [])
    assert whole < 1.15 * without
