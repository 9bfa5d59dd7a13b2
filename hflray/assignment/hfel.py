"""HFEL: random transfers and then random exchanges, each of which is kept if it lowers the round's objective.

HFEL is a benchmark of the paper (section VI: HFEL-100 and HFEL-300) and the teacher of its learned assigner (section
V). It is from Luo et al., "HFEL: Joint Edge Association and Resource Allocation". The paper gives 100 transfers and 100
or 300 exchanges. It says neither where the search starts nor what counts as a try. Here the search starts from the
geographic assignment, and a try draws a device and an edge, or two devices, uniformly. A try that changes nothing (the
edge is the device's own, or both devices are at one edge) counts, as in the figures of docs/design.md, D8. With
`redraw` every try changes the assignment, which is about a quarter more changes at M = 5 and a stronger search.

The objective is ``Σ E_m + λ max T_m`` with the per-edge allocation (27), and only the two edges that change are solved
again. With ``coupling="joint"`` the objective is the optimum of (17), with one deadline for all edges
(`hflray.assignment.joint_round`). The same draws give the same tries for both.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.allocation.kernels.jit import kernel
from hflray.assignment.joint_round import TIGHT, begin_joint, try_move
from hflray.assignment.objective import (
    RoundProblem,
    Start,
    all_costs,
    assigned_edge_cost,
    assigned_objective,
    check_coupling,
    check_start,
    round_problem,
    starting_assignment,
)
from hflray.assignment.state import State, blank_state
from hflray.cost import Workload, hops
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray


class HFEL:
    """Random search over transfers and exchanges.

    Args:
        transfers: number of transfers tried (the paper: 100).
        exchanges: number of exchanges tried (the paper: 100 or 300).
        start: ``geographic``, ``best_gain`` or ``random``.
        method: ``newton``, or ``cvxpy`` as in the paper, which is a thousand times slower.
        redraw: whether to draw only moves that change the assignment.
        coupling: ``per_edge`` as in the paper, or ``joint``, which needs method ``newton``.
    """

    def __init__(
        self,
        transfers: int = 100,
        exchanges: int = 300,
        start: Start = "geographic",
        method: Literal["newton", "cvxpy"] = "newton",
        redraw: bool = False,
        coupling: Coupling = "per_edge",
    ) -> None:
        for name, value in (("transfers", transfers), ("exchanges", exchanges)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"assignment.{name}: got {value!r}; a whole number of at least 0 is needed")
        if method not in ("newton", "cvxpy"):
            raise ConfigError(f"assignment.method: unknown method '{method}'; known: newton, cvxpy")
        if method == "cvxpy" and check_coupling(coupling) == "joint":
            raise ConfigError(
                "allocation.coupling: 'joint' needs allocation.method 'newton'; the CVXPY reference solves each edge "
                "by itself; set allocation.method: newton, or allocation.coupling: per_edge"
            )
        self.transfers, self.exchanges, self.start, self.method = transfers, exchanges, check_start(start), method
        self.redraw, self.coupling = bool(redraw), check_coupling(coupling)

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices. The same `rng` state gives the same answer.

        Raises:
            ConfigError: an index is not in the fleet, or a value is not finite and above 0.
        """
        problem, scheduled = round_problem(fleet, work, devices)
        assignment = starting_assignment(self.start, fleet, scheduled, rng)
        # All draws are made before the search, so that both methods try the same proposals.
        draws = rng.random((self.transfers + self.exchanges, 2))
        if self.coupling == "joint":
            state, trial = blank_state(problem, assignment, False, 0), blank_state(problem, assignment, False, 0)
            search_joint(problem, state, trial, assignment, self.transfers, draws, self.redraw)
            return state.assignment
        energy, delay = np.empty((2, fleet.num_edges))
        if self.method == "newton":
            search(problem, assignment, self.transfers, draws, self.redraw, energy, delay)
            return assignment
        return self._with_cvxpy(fleet, work, scheduled, problem, assignment, draws)

    def _with_cvxpy(
        self,
        fleet: Fleet,
        work: Workload,
        devices: IntArray,
        problem: RoundProblem,
        assignment: IntArray,
        draws: FloatArray,
    ) -> IntArray:
        """Run the same search as `search`, with the CVXPY reference as allocator."""
        from hflray.allocation.cvxpy import edge_round_cost

        hop_delay, hop_energy = hops(fleet, work)

        def cost(candidate: IntArray, edge: int) -> tuple[float, float]:
            energy, delay = edge_round_cost(fleet, work, devices[candidate == edge], edge)
            return energy + hop_energy[edge], delay + hop_delay[edge]

        edges = range(fleet.num_edges)
        energy, delay = np.array([cost(assignment, edge) for edge in edges]).T
        best = assigned_objective(problem, assignment, energy, delay)
        for trial, (u, v) in enumerate(draws):
            changed = propose(assignment, fleet.num_edges, trial < self.transfers, u, v, self.redraw)
            if changed is None:
                continue
            candidate, first, second = changed
            new_energy, new_delay = energy.copy(), delay.copy()
            for edge in (first, second):
                new_energy[edge], new_delay[edge] = cost(candidate, edge)
            value = assigned_objective(problem, candidate, new_energy, new_delay)
            if value < best:
                assignment, energy, delay, best = candidate, new_energy, new_delay, value
        return assignment


@kernel
def propose(
    assignment: IntArray, num_edges: int, transfer: bool, u: float, v: float, redraw: bool
) -> tuple[IntArray, int, int] | None:
    """Return the assignment that two draws in [0, 1) propose and the two edges that change, or None for no change."""
    a = int(u * len(assignment))
    first = assignment[a]
    if transfer:
        if num_edges == 1:
            return None
        second = (first + 1 + int(v * (num_edges - 1))) % num_edges if redraw else int(v * num_edges)
        if second == first:
            return None
        changed = assignment.copy()
        changed[a] = second
        return changed, first, second
    b = int(v * len(assignment))
    if redraw:
        elsewhere = np.flatnonzero(assignment != first)
        if len(elsewhere) == 0:
            return None
        b = elsewhere[int(v * len(elsewhere))]
    second = assignment[b]
    if second == first:
        return None
    changed = assignment.copy()
    changed[a], changed[b] = second, first
    return changed, first, second


@kernel
def search(
    problem: RoundProblem,
    assignment: IntArray,
    transfers: int,
    draws: FloatArray,
    redraw: bool,
    energy: FloatArray,
    delay: FloatArray,
) -> float:
    """Improve `assignment`, (H,), in place, fill E_m and T_m, (M,), and return the objective, J."""
    best = all_costs(problem, assignment, energy, delay)
    for trial in range(len(draws)):
        changed = propose(assignment, len(energy), trial < transfers, draws[trial, 0], draws[trial, 1], redraw)
        if changed is None:
            continue
        candidate, first, second = changed
        old = energy[first], delay[first], energy[second], delay[second]
        energy[first], delay[first] = assigned_edge_cost(problem, candidate, first)
        energy[second], delay[second] = assigned_edge_cost(problem, candidate, second)
        value = assigned_objective(problem, candidate, energy, delay)
        if value < best:
            best = value
            assignment[:] = candidate
        else:
            energy[first], delay[first], energy[second], delay[second] = old
    return best


@kernel
def search_joint(
    problem: RoundProblem,
    state: State,
    trial: State,
    assignment: IntArray,
    transfers: int,
    draws: FloatArray,
    redraw: bool,
) -> float:
    """Improve `assignment`, (H,), under one deadline for all edges, and return the joint objective, J.

    `state` holds the improved assignment, and `trial` is scratch of the same size. A try is kept if it lowers the
    objective by more than `joint_round.TIGHT`, the relative error of the objective.
    """
    best = begin_joint(problem, state, assignment)
    for i in range(len(draws)):
        changed = propose(state.assignment, len(state.solved.size), i < transfers, draws[i, 0], draws[i, 1], redraw)
        if changed is None:
            continue
        candidate, _, second = changed
        a = int(draws[i, 0] * len(candidate))
        b, exchange = second, i >= transfers
        if exchange:
            for h in range(len(candidate)):
                if h != a and candidate[h] != state.assignment[h]:
                    b = h
        best = min(best, try_move(problem, state, trial, a, b, exchange, best * (1.0 - TIGHT)))
    return best
