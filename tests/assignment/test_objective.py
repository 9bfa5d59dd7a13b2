"""The input of the searching assigners: bad values are refused by name before any kernel runs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hflray.assignment.counterfactual import transfer_objectives
from hflray.assignment.neighbours import swap_value

from hflray.allocation import allocate_round
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment import build_assigner
from hflray.assignment.bounds import brute_force, lower_bound
from hflray.assignment.objective import RoundProblem, all_costs, round_problem, totals_of
from hflray.assignment.state import new_state
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError, InfeasibleError
from hflray.fleet import Fleet, FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)
FLEET = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0))
DEVICES = np.array([1, 4, 6, 9])

CALLS = {
    "hfel": lambda fleet, devices: build_assigner("hfel").assign(fleet, WORK, devices, np.random.default_rng(0)),
    "local_search": lambda fleet, devices: build_assigner("local_search").assign(
        fleet, WORK, devices, np.random.default_rng(0)
    ),
    "candidates": lambda fleet, devices: build_assigner("local_search", candidates=3).assign(
        fleet, WORK, devices, np.random.default_rng(0)
    ),
    "bound": lambda fleet, devices: lower_bound(fleet, WORK, devices),
    "brute force": lambda fleet, devices: brute_force(fleet, WORK, devices),
    "joint": lambda fleet, devices: allocate_round(
        fleet, WORK, devices, np.full(np.shape(devices), 2), coupling="joint"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, np.inf])
@pytest.mark.parametrize(
    "name, index",
    [
        ("gain", (4, 2)),
        ("power_w", (6,)),
        ("samples", (6,)),
        ("cycles_per_sample", (6,)),
        ("max_cpu_hz", (6,)),
        ("edge_bandwidth_hz", (1,)),
        ("cloud_gain", (1,)),
        ("edge_power_w", (1,)),
    ],
)
def test_a_bad_value_is_named_with_its_index(call, name, index, value):
    array = getattr(FLEET, name).copy()
    array[index] = value
    with pytest.raises(ConfigError, match=rf"{name}\[{', '.join(map(str, index))}\]"):
        call(dataclasses.replace(FLEET, **{name: array}), DEVICES)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "devices, text", [([], "devices"), ([1, 12], r"devices\[1\]"), ([-1], r"devices\[0\]"), ([1, 1], "twice")]
)
def test_a_bad_schedule_is_an_error(call, devices, text):
    with pytest.raises(ConfigError, match=text):
        call(FLEET, devices)


def test_an_infinite_joint_deadline_names_edge_and_device():
    gain = FLEET.gain.copy()
    gain[4] = 1e-310
    with pytest.raises(InfeasibleError, match=r"edge 2.*device 4"):
        allocate_round(dataclasses.replace(FLEET, gain=gain), WORK, DEVICES, np.full(4, 2), coupling="joint")


def mean_problem(seed: int, h: int = 6, m: int = 3) -> tuple[RoundProblem, Fleet, Workload]:
    """Return a small round whose delay is the mean over edges with devices, with its fleet and its work."""
    fleet = sample_fleet(FleetConfig(num_devices=h, num_edges=m), np.random.default_rng(seed))
    work = Workload(model_bits=448 * 8192, minimise="mean_edge", delay_weight=10.0 ** (seed % 3 - 1))
    return round_problem(fleet, work, np.arange(h))[0], fleet, work


@pytest.mark.parametrize("assignment", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1], [2] * 6])
def test_the_mean_is_over_edges_with_devices_and_agrees_with_the_bill(assignment):
    problem, fleet, work = mean_problem(3)
    energy, delay = np.empty(3), np.empty(3)
    value = all_costs(problem, np.array(assignment), energy, delay)
    cost = round_cost(fleet, work, range(6), assignment, allocate_round(fleet, work, range(6), assignment))
    used = sorted(set(assignment))
    assert value == pytest.approx(cost.energy_j + work.delay_weight * cost.edge_delay_s[used].mean(), rel=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_local_search_finds_the_optimum_of_the_mean(seed):
    problem, fleet, work = mean_problem(seed)
    _, best = brute_force(fleet, work, np.arange(6))
    found = build_assigner("local_search", restarts=30).assign(fleet, work, np.arange(6), np.random.default_rng(0))
    assert all_costs(problem, found, np.empty(3), np.empty(3)) == pytest.approx(best, rel=1e-6)


def test_every_move_is_priced_as_the_whole_objective():
    for seed in range(6):
        problem, _, _ = mean_problem(seed, h=5, m=3)
        start = np.array([0, 0, 1, 1, 1])  # edge 2 is empty, so that moves open and close edges
        objective, table = transfer_objectives(problem, start)
        assert objective == pytest.approx(all_costs(problem, start, np.empty(3), np.empty(3)), rel=1e-12)
        state = new_state(problem, start, exchanges=True)
        totals = totals_of(state.energy, state.delay, state.solved.size)
        for h, k in itertools.product(range(5), range(3)):
            moved = start.copy()
            moved[h] = k
            assert table[h, k] == pytest.approx(all_costs(problem, moved, np.empty(3), np.empty(3)), rel=1e-3)
        for a, b in itertools.product((0, 1), (2, 3, 4)):
            swapped = start.copy()
            swapped[a], swapped[b] = start[b], start[a]
            value = swap_value(problem, state, a, b, totals, scratch_with_list(8))
            assert value == pytest.approx(all_costs(problem, swapped, np.empty(3), np.empty(3)), rel=1e-6)


@pytest.mark.parametrize("options", [{"candidates": 3}, {"restarts": 1}])
def test_minimising_the_mean_gives_a_lower_mean(options):
    """Each search is better by the objective that it minimises; large searches use candidate edges."""
    fleet = sample_fleet(FleetConfig(num_devices=40, num_edges=5), np.random.default_rng(5))
    values = {}
    for minimise in ("round", "mean_edge"):
        work = Workload(model_bits=448 * 8192, minimise=minimise)
        found = build_assigner("local_search", **options).assign(fleet, work, range(40), np.random.default_rng(0))
        for judge in ("round", "mean_edge"):
            problem, _ = round_problem(fleet, dataclasses.replace(work, minimise=judge), range(40))
            values[minimise, judge] = all_costs(problem, found, np.empty(5), np.empty(5))
    assert values["mean_edge", "mean_edge"] < values["round", "mean_edge"]
    assert values["round", "round"] < values["mean_edge", "round"]


@pytest.mark.parametrize("method", ["newton", "cvxpy"])
def test_hfel_lowers_the_mean(method):
    problem, fleet, work = mean_problem(2)
    assigner = build_assigner("hfel", transfers=10, exchanges=10, method=method)
    found = assigner.assign(fleet, work, np.arange(6), np.random.default_rng(0))
    start = fleet.nearest_edges(np.arange(6))[:, 0]
    before, after = (all_costs(problem, each, np.empty(3), np.empty(3)) for each in (start, found))
    assert after < before


def test_another_word_is_refused_by_name():
    with pytest.raises(ConfigError, match="minimise: got 'all'; accepted: round, mean_edge"):
        Workload(model_bits=1.0, minimise="all")
