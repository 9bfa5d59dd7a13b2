"""HFEL lowers the objective, draws uniformly, and accepts the same moves with Newton and CVXPY."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.assignment.hfel import HFEL, propose, search
from hflray.assignment.objective import all_costs, round_problem
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet


def random_round(seed, num_devices=100, num_edges=5, scheduled=50):
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_devices=num_devices, num_edges=num_edges), rng)
    return fleet, np.sort(rng.choice(num_devices, scheduled, replace=False))


def objective(fleet, work, devices, assignment):
    return round_cost(fleet, work, devices, assignment, allocate_round(fleet, work, devices, assignment)).objective


@pytest.mark.parametrize("hop", [True, False])
def test_the_kernel_objective_is_the_cost_modules(hop):
    fleet, devices = random_round(0)
    work = Workload(model_bits=448 * 8192, delay_weight=0.7, cloud_hop=hop)
    problem, scheduled_devices = round_problem(fleet, work, devices)
    for assignment in (fleet.distance_m[scheduled_devices].argmin(axis=1), np.full(50, 2)):
        energy, delay = np.empty((2, 5))
        value = all_costs(problem, assignment, energy, delay)
        cost = round_cost(fleet, work, devices, assignment, allocate_round(fleet, work, devices, assignment))
        assert value == pytest.approx(cost.objective, rel=1e-8)
        np.testing.assert_allclose(energy, cost.edge_energy_j, rtol=1e-8)
        np.testing.assert_allclose(delay, cost.edge_delay_s, rtol=1e-8)


@pytest.mark.parametrize("start", ["geographic", "best_gain", "random"])
@pytest.mark.parametrize("hop", [True, False])
def test_more_tries_are_never_worse(start, hop):
    work = Workload(model_bits=448 * 8192, cloud_hop=hop)
    for seed in range(5):
        fleet, devices = random_round(seed)
        values = [
            objective(
                fleet,
                work,
                devices,
                build_assigner("hfel", transfers=t, exchanges=e, start=start).assign(
                    fleet, work, devices, np.random.default_rng(seed)
                ),
            )
            for t, e in ((0, 0), (100, 0), (100, 100), (100, 300))
        ]
        # The generator is the same, so each run starts with the tries of the run before it.
        assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(values))
        assert values[-1] < 0.95 * values[0]


def test_the_same_generator_gives_the_same_answer_and_leaves_global_state_alone():
    fleet, devices = random_round(1)
    work = Workload(model_bits=448 * 8192)
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the test is about the global state
    one, two, other = (build_assigner("hfel").assign(fleet, work, devices, np.random.default_rng(s)) for s in (4, 4, 5))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize("num_edges, scheduled", [(1, 10), (5, 1), (1, 1), (2, 2)])
def test_one_edge_or_one_device_is_assigned(num_edges, scheduled):
    fleet, devices = random_round(2, num_edges=num_edges, scheduled=scheduled)
    edges = build_assigner("hfel").assign(fleet, Workload(model_bits=1e6), devices, np.random.default_rng(0))
    assert edges.shape == (scheduled,)
    assert ((edges >= 0) & (edges < num_edges)).all()


def test_a_try_draws_devices_and_edges_uniformly():
    assignment = np.array([0, 0, 1, 2])
    counts = np.zeros((4, 3), dtype=int)
    pairs = np.zeros((4, 4), dtype=int)
    for u in (np.arange(12) + 0.5) / 12:
        for v in (np.arange(12) + 0.5) / 12:
            a = int(u * 4)
            changed = propose(assignment, 3, True, u, v, False)
            counts[a, changed[2] if changed else assignment[a]] += 1
            assert changed is None or (np.flatnonzero(changed[0] != assignment) == [a]).all()
            changed = propose(assignment, 3, False, u, v, False)
            if changed is not None:
                pairs[tuple(np.flatnonzero(changed[0] != assignment))] += 1
    assert (counts == 12).all()  # the device's own edge is drawn as often as any other, and such a try changes nothing
    assert pairs.sum() == 10 * 9  # all ordered pairs except those at one edge: (0, 0), (1, 1), ..., (0, 1), (1, 0)
    assert set(map(tuple, np.argwhere(pairs))) == {(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}


def test_redraw_is_a_stronger_search():
    work = Workload(model_bits=448 * 8192)
    values = []
    for seed in range(20):
        fleet, devices = random_round(seed)
        values.append(
            [
                objective(
                    fleet,
                    work,
                    devices,
                    build_assigner("hfel", redraw=redraw).assign(fleet, work, devices, np.random.default_rng(seed)),
                )
                for redraw in (False, True)
            ]
        )
    plain, redrawn = np.median(values, axis=0)
    assert redrawn < plain


def test_with_redraw_every_proposal_changes_the_assignment():
    assignment = np.array([0, 0, 1, 2, 2, 2])
    rng = np.random.default_rng(0)
    transfers = set()
    for u, v in rng.random((3000, 2)):
        candidate, first, second = propose(assignment, 4, True, u, v, True)
        (a,) = np.flatnonzero(candidate != assignment)
        assert (assignment[a], candidate[a]) == (first, second)
        transfers.add((int(a), int(second)))
        candidate, first, second = propose(assignment, 4, False, u, v, True)
        a, b = np.flatnonzero(candidate != assignment)
        assert {candidate[a], candidate[b]} == {first, second} == {assignment[a], assignment[b]}
    assert len(transfers) == 6 * 3  # every possible transfer
    assert propose(np.zeros(4, dtype=np.intp), 1, True, 0.5, 0.5, True) is None
    assert propose(np.zeros(4, dtype=np.intp), 3, False, 0.5, 0.5, True) is None


def check_decisions(seeds, transfers, exchanges, **sizes):
    """Compare each decision of the search with Newton to the decision by CVXPY's costs; return their number."""
    from hflray.allocation.cvxpy import edge_round_cost
    from hflray.cost import cloud_hop

    work = Workload(model_bits=448 * 8192)
    compared = 0
    for seed in seeds:
        fleet, devices = random_round(seed, **sizes)
        hop_delay, hop_energy = cloud_hop(fleet, work.model_bits)
        problem, _ = round_problem(fleet, work, devices)
        costs_of = {}

        def reference(assignment, fleet=fleet, devices=devices, costs_of=costs_of, delay=hop_delay, energy=hop_energy):
            costs = []
            for edge in range(fleet.num_edges):
                members = devices[assignment == edge]
                key = (edge, members.tobytes())
                if key not in costs_of:
                    costs_of[key] = edge_round_cost(fleet, work, members, edge)
                costs.append(costs_of[key])
            e, t = np.array(costs).T
            return (e + energy).sum() + work.delay_weight * (t + delay).max()

        assignment = fleet.distance_m[devices].argmin(axis=1)
        draws = np.random.default_rng(seed).random((transfers + exchanges, 2))
        for trial, (u, v) in enumerate(draws):
            changed = propose(assignment, fleet.num_edges, trial < transfers, u, v, False)
            if changed is None:
                continue
            before, after = reference(assignment), reference(changed[0])
            step = assignment.copy()
            search(
                problem,
                step,
                transfers if trial < transfers else 0,
                draws[trial : trial + 1],
                False,
                *np.empty((2, fleet.num_edges)),
            )
            if abs(after - before) > 1e-5 * before:
                compared += 1
                np.testing.assert_array_equal(step, changed[0] if after < before else assignment)
            assignment = step
    return compared


def test_newton_and_cvxpy_accept_the_same_moves():
    assert check_decisions(range(3), 12, 12, num_devices=30, num_edges=3, scheduled=15) > 40


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_newton_and_cvxpy_accept_the_same_moves_on_20_instances():
    assert check_decisions(range(20), 100, 100) > 3000


def test_method_cvxpy_gives_the_same_assignment():
    fleet, devices = random_round(3, num_devices=20, num_edges=3, scheduled=9)
    work = Workload(model_bits=448 * 8192)
    answers = [
        build_assigner("hfel", transfers=6, exchanges=6, method=m).assign(
            fleet, work, devices, np.random.default_rng(1)
        )
        for m in ("newton", "cvxpy")
    ]
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"exchanges": -1}, "exchanges.*-1"),
        ({"transfers": 1.5}, "transfers.*1.5"),
        ({"start": "nowhere"}, "start.*nowhere.*geographic"),
        ({"method": "magic"}, "method.*magic.*newton"),
        ({"exchange": 3}, "exchange"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        build_assigner("hfel", **options)


def test_a_bad_link_to_any_edge_is_named():
    fleet, devices = random_round(0)
    gain = fleet.gain.copy()
    gain[devices[7], 2] = 0.0
    with pytest.raises(ConfigError, match=f"gain\\[{devices[7]}, 2\\]"):
        build_assigner("hfel").assign(
            dataclasses.replace(fleet, gain=gain), Workload(model_bits=1e6), devices, np.random.default_rng(0)
        )


def joint_objective(fleet, work, devices, assignment):
    allocation = allocate_round(fleet, work, devices, assignment, coupling="joint")
    return round_cost(fleet, work, devices, assignment, allocation).objective


@pytest.mark.parametrize("redraw", [False, True])
def test_under_one_deadline_hfel_decides_as_the_exact_joint_solver(redraw):
    accepted = 0
    for seed in range(3):
        fleet, devices = random_round(seed, num_devices=30, num_edges=4, scheduled=14)
        work = Workload(model_bits=448 * 8192, cloud_hop=bool(seed % 2))
        result = build_assigner("hfel", transfers=40, exchanges=40, redraw=redraw, coupling="joint").assign(
            fleet, work, devices, np.random.default_rng(seed)
        )
        expected = fleet.distance_m[devices].argmin(axis=1)
        best = joint_objective(fleet, work, devices, expected)
        for trial, (u, v) in enumerate(np.random.default_rng(seed).random((80, 2))):
            changed = propose(expected, 4, trial < 40, u, v, redraw)
            if changed is not None and (value := joint_objective(fleet, work, devices, changed[0])) < best * (1 - 1e-9):
                expected, best, accepted = changed[0], value, accepted + 1
        np.testing.assert_array_equal(result, expected)
    assert accepted > 10


def test_under_one_deadline_more_tries_are_never_worse():
    work = Workload(model_bits=448 * 8192)
    for seed in range(5):
        fleet, devices = random_round(seed)
        values = [
            joint_objective(
                fleet,
                work,
                devices,
                build_assigner("hfel", transfers=t, exchanges=e, coupling="joint").assign(
                    fleet, work, devices, np.random.default_rng(seed)
                ),
            )
            for t, e in ((0, 0), (100, 0), (100, 100), (100, 300))
        ]
        assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(values))
        assert values[-1] < 0.95 * values[0]


@pytest.mark.parametrize("num_edges, scheduled", [(1, 10), (5, 1), (1, 1), (2, 2), (6, 3)])
def test_one_edge_or_one_device_is_assigned_under_one_deadline(num_edges, scheduled):
    fleet, devices = random_round(2, num_edges=num_edges, scheduled=scheduled)
    edges = build_assigner("hfel", coupling="joint").assign(
        fleet, Workload(model_bits=1e6), devices, np.random.default_rng(0)
    )
    assert edges.shape == (scheduled,)
    assert ((edges >= 0) & (edges < num_edges)).all()


def test_one_deadline_with_cvxpy_is_refused():
    with pytest.raises(
        ConfigError, match=r"allocation\.coupling: 'joint' needs .*'newton'.*set allocation\.method: newton"
    ):
        build_assigner("hfel", method="cvxpy", coupling="joint")
    with pytest.raises(ConfigError, match="unknown coupling 'shared'"):
        build_assigner("hfel", coupling="shared")


def test_without_options_it_is_the_papers_hfel_300():
    assert (HFEL().transfers, HFEL().exchanges) == (100, 300)
    assert HFEL().redraw is False  # a try that changes nothing counts, as in the figures of docs/design.md, D8
    fleet, devices = random_round(6, num_devices=30, num_edges=3, scheduled=12)
    work = Workload(model_bits=448 * 8192)
    spelt_out = HFEL(100, 300, "geographic", "newton", False, "per_edge")
    one, two = (h.assign(fleet, work, devices, np.random.default_rng(0)) for h in (HFEL(), spelt_out))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["transfers", "exchanges"])
def test_a_number_of_tries_is_a_whole_number_from_zero_on(name):
    assert getattr(HFEL(**{name: 0}), name) == 0
    for bad in (True, False, -1, 2.0, "3", None):
        with pytest.raises(ConfigError, match=rf"assignment\.{name}: got {bad!r}; a whole number of at least 0"):
            HFEL(**{name: bad})


def test_transfers_come_first_and_exactly_as_many_as_asked():
    """An exchange keeps the number of devices of each edge, and a transfer changes it."""
    fleet, devices = random_round(8, num_devices=30, num_edges=3, scheduled=12)
    work = Workload(model_bits=448 * 8192)
    start = np.bincount(fleet.distance_m[devices].argmin(axis=1), minlength=3)
    for coupling in ("per_edge", "joint"):
        only_exchanges = HFEL(0, 200, coupling=coupling).assign(fleet, work, devices, np.random.default_rng(0))
        np.testing.assert_array_equal(np.bincount(only_exchanges, minlength=3), start)
        # After 60 transfers, exchanges change no number any more.
        moved = [HFEL(60, e, coupling=coupling).assign(fleet, work, devices, np.random.default_rng(0)) for e in (0, 90)]
        counts = [np.bincount(edges, minlength=3).tolist() for edges in moved]
        assert counts[0] == counts[1] != start.tolist()
        assert (moved[0] != moved[1]).any()


@pytest.mark.parametrize("redraw", [True, False])
def test_the_search_with_cvxpy_is_the_search_with_newton(redraw):
    fleet, devices = random_round(8, num_devices=20, num_edges=3, scheduled=8)
    fleet = dataclasses.replace(fleet, cloud_bandwidth_hz=1e5)  # hops of 3, 10 and 2 s, which change what is best
    answers = []
    for hop in (True, False):
        work = Workload(model_bits=448 * 8192, delay_weight=0.6, cloud_hop=hop)
        for method in ("newton", "cvxpy"):
            search_with = HFEL(8, 8, method=method, redraw=redraw)
            answers.append(search_with.assign(fleet, work, devices, np.random.default_rng(2)).tolist())
    assert answers[0] == answers[1]
    assert answers[2] == answers[3] != answers[0]


def test_search_returns_the_objective_of_the_assignment_that_it_leaves():
    fleet, devices = random_round(7, num_devices=30, num_edges=4, scheduled=15)
    work = Workload(model_bits=448 * 8192, delay_weight=3.0)
    problem, _ = round_problem(fleet, work, devices)
    assignment = fleet.distance_m[devices].argmin(axis=1)
    energy, delay = np.empty((2, 4))
    value = search(problem, assignment, 30, np.random.default_rng(0).random((60, 2)), False, energy, delay)
    cost = round_cost(fleet, work, devices, assignment, allocate_round(fleet, work, devices, assignment))
    assert value == pytest.approx(cost.objective, rel=1e-8)
    np.testing.assert_allclose(energy, cost.edge_energy_j, rtol=1e-8)
    np.testing.assert_allclose(delay, cost.edge_delay_s, rtol=1e-8)


@pytest.mark.parametrize("method", ["newton", "cvxpy"])
def test_a_try_that_does_not_lower_the_objective_is_not_kept(method):
    """Two devices that are alike in everything: an exchange of them leaves the objective as it is, to the bit."""
    fleet, _ = random_round(0, num_devices=3, num_edges=2, scheduled=1)
    twins = fleet.take([1, 1])
    work = Workload(model_bits=448 * 8192)

    def assign(tries, seed):
        return HFEL(0, tries, start="random", method=method).assign(
            twins, work, [0, 1], np.random.default_rng(seed)
        ).tolist()  # fmt: skip

    seed = next(seed for seed in range(20) if len(set(assign(0, seed))) == 2)  # the twins start at different edges
    # Each further try may exchange them once more, so that a kept tie would show after some number of tries.
    assert {tuple(assign(tries, seed)) for tries in range(1, 9)} == {tuple(assign(0, seed))}


@pytest.mark.parametrize("method, solves", [("newton", False), ("cvxpy", True)])
def test_only_method_cvxpy_solves_with_cvxpy(monkeypatch, method, solves):
    from hflray.allocation import cvxpy as reference

    calls, solve = [], reference.edge_round_cost

    def note(*arguments):
        calls.append(arguments)
        return solve(*arguments)

    monkeypatch.setattr(reference, "edge_round_cost", note)
    fleet, devices = random_round(0, num_devices=6, num_edges=2, scheduled=3)
    HFEL(1, 1, method=method).assign(fleet, Workload(model_bits=1e6), devices, np.random.default_rng(0))
    assert bool(calls) == solves
