"""Candidate lists: estimates are close, moves have their exact cost, and large rounds are assigned."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment import local_search
from hflray.assignment.candidates import candidates, greedy, improve, relieve
from hflray.assignment.transfers import added_cost, blank_place, joining, least_added_cost, place_objective, settle_all
from hflray.cost import round_cost
from hflray.errors import ConfigError
from tests.assignment.rounds import WORK, assign, objective, random_round


def large_round(seed):
    return random_round(seed, 200, 8, 100)


def solved_place(fleet, work, devices, count=4, passes=2):
    problem = candidates(fleet, work, devices, fleet.strongest_edges(devices, count))
    slot = np.zeros(len(devices), dtype=np.intp)
    greedy(problem, slot, passes)
    place = blank_place(slot, fleet.num_edges)
    settle_all(problem, place)
    return problem, place


def edges_of(problem, place):
    return problem.edge[np.arange(len(place.slot)), place.slot]


@pytest.mark.parametrize("weight", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("power_w", [(1e-4, 1e-3), (0.1, 0.3), (100.0, 300.0)])
def test_the_cheap_bound_is_just_below_the_first_estimate(weight, power_w):
    """`added_cost` with a bound that any value exceeds returns its first value."""
    work = dataclasses.replace(WORK, delay_weight=weight)
    fleet = random_round(0, 200, 8, 200)[0]
    fleet = dataclasses.replace(fleet, power_w=np.random.default_rng(0).uniform(*power_w, 200))
    problem, place = solved_place(fleet, work, np.arange(200))
    for h in range(200):
        guest = joining(problem, place, h)
        for j in range(4):
            k = problem.edge[h, j]
            if place.size[k] == 0:  # an empty edge has no prices
                continue
            first = added_cost(problem, place, h, j, -np.inf)[0]
            bound = least_added_cost(guest, problem.snr[h, j], place.price[k], place.deadline[k])
            paid = first + guest.pi * np.exp(place.deadline[k])  # without the part that the deadline gives back
            assert first - 6e-4 * paid <= bound <= first


@pytest.mark.parametrize("weight", [1e-2, 1.0, 1e3])
def test_moves_have_their_exact_cost_and_never_raise_the_objective(weight):
    work = dataclasses.replace(WORK, delay_weight=weight)
    fleet, devices = large_round(1)
    problem, place = solved_place(fleet, work, devices, passes=0)
    before = place_objective(problem, place)
    for _ in range(4):
        improve(problem, place, np.arange(100))
        gain = relieve(problem, place)
        assert gain >= 0
        value = place_objective(problem, place)
        assert value <= before
        assert value == pytest.approx(objective(fleet, devices, edges_of(problem, place), work), rel=1e-6)
        before = value
        for m in range(fleet.num_edges):  # the lists agree with the slots
            members = place.members[m, : place.size[m]]
            assert sorted(members) == np.flatnonzero(edges_of(problem, place) == m).tolist()


def test_the_result_is_close_to_the_search_over_all_edges():
    ratios = []
    for seed in range(5):
        fleet, devices = random_round(seed)
        few, every = (objective(fleet, devices, assign("local_search", fleet, devices, candidates=c)) for c in (5, 0))
        ratios.append(few / every)
    assert np.mean(ratios) < 1.05


def test_large_rounds_use_candidates_by_default_and_refuse_restarts(monkeypatch):
    fleet, devices = large_round(0)
    monkeypatch.setattr(local_search, "LARGE", 100 * 8)
    found = [assign("local_search", fleet, devices, candidates=count) for count in (None, 12)]
    np.testing.assert_array_equal(*found)
    with pytest.raises(ConfigError, match=r"assignment\.restarts: got 2"):
        assign("local_search", fleet, devices, restarts=2)


def check_scale(num_devices, scheduled, num_edges, **options):
    assign("local_search", *random_round(0), candidates=3)  # compiles the kernels
    fleet, devices = random_round(0, num_devices, num_edges, scheduled, dense=False)
    best = assign("best_gain", fleet, devices)
    start = time.perf_counter()
    edges = assign("local_search", fleet, devices, **options)
    assigned = time.perf_counter()
    allocation = allocate_round(fleet, WORK, devices, edges)
    allocated = time.perf_counter()
    assert allocation.kkt_residual <= 1e-8
    assert abs(allocation.duality_gap) <= 1e-8
    assert round_cost(fleet, WORK, devices, edges, allocation).objective < 0.9 * objective(fleet, devices, best)
    return assigned - start, allocated - assigned


def test_20000_devices_are_assigned():
    check_scale(20_000, 2_000, 50)
