"""HFEL: random transfers and then random exchanges, each of which is kept if it lowers the round's objective.

HFEL is a benchmark of the paper (section VI: HFEL-100 and HFEL-300) and the teacher of its learned assigner (section
V). It is from Luo et al., "HFEL: Joint Edge Association and Resource Allocation". The paper gives 100 transfers and 100
or 300 exchanges. It says neither where the search starts nor what counts as a try. Here the search starts from the
geographic assignment, and a try draws a device and an edge, or two devices, uniformly. A try that changes nothing (the
edge is the device's own, or both devices are at one edge) counts, as in the figures of docs/design.md, D8. With
`redraw` every try changes the assignment, which is about a quarter more changes at M = 5 and a stronger search.

The objective is ``Σ E_m + λ max T_m`` with the per-edge allocation (27), and only the two edges that change are solved
again. With ``coupling="joint"`` the objective is the optimum of (17), with one deadline for all edges
(`hflray.assignment.prices`). The same draws give the same tries for both.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling, is_general
from hflray.allocation.kernels.jit import kernel
from hflray.assignment.general_search import GeneralSearch
from hflray.assignment.objective import RoundProblem, Start, round_problem, starting_assignment
from hflray.assignment.prices import TIGHT, begin_joint, copy_state, try_move
from hflray.assignment.state import NOBODY, State, blank_state, make_move, restart
from hflray.config.options import one_of, whole
from hflray.cost import Workload, check_assignment
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray

AHEAD = 16  # tries that the general allocator solves at once


class HFEL:
    """Random search over transfers and exchanges.

    Args:
        transfers: number of transfers tried (the paper: 100).
        exchanges: number of exchanges tried (the paper: 100 or 300).
        start: ``geographic``, ``best_gain`` or ``random``.
        redraw: whether to draw only moves that change the assignment.
        coupling: ``per_edge`` as in the paper, or ``joint``.
    """

    def __init__(
        self,
        transfers: int = 100,
        exchanges: int = 300,
        start: Start = "geographic",
        redraw: bool = False,
        coupling: Coupling = "per_edge",
    ) -> None:
        self.transfers = whole("assignment.transfers", transfers, 0)
        self.exchanges = whole("assignment.exchanges", exchanges, 0)
        self.start, self.redraw = one_of("assignment.start", start, get_args(Start)), bool(redraw)
        self.coupling = one_of("assignment.coupling", coupling, get_args(Coupling))

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices. The same `rng` state gives the same answer.

        Raises:
            ConfigError: an index is not in the fleet, or a value is not finite and above 0.
        """
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        assignment = starting_assignment(self.start, fleet, scheduled, rng)
        # All draws are made before the search, so that both couplings try the same proposals.
        draws = rng.random((self.transfers + self.exchanges, 2))
        if is_general(fleet, work):
            return self._search_generally(fleet, work, scheduled, assignment, draws)
        problem, _ = round_problem(fleet, work, scheduled)
        state, trial = (blank_state(problem, 0, False) for _ in range(2))
        searches = search if self.coupling == "per_edge" else search_joint
        searches(problem, state, trial, assignment, self.transfers, draws, self.redraw)
        return state.assignment

    def _search_generally(
        self, fleet: Fleet, work: Workload, scheduled: IntArray, assignment: IntArray, draws: FloatArray
    ) -> IntArray:
        """Make the same tries on the general allocator, which solves some in advance, and again after a hit."""
        search = GeneralSearch(fleet, work, scheduled, self.coupling)
        value, done = search.begin(assignment), 0
        while done < len(draws):
            tries = range(done, min(done + AHEAD, len(draws)))
            moves = np.array([
                propose(search.assignment, fleet.num_edges, i < self.transfers, draws[i, 0], draws[i, 1], self.redraw)
                for i in tries
            ])  # fmt: skip
            changes = np.flatnonzero(moves[:, 2] != search.assignment[moves[:, 0]])
            moves[moves[:, 0] == moves[:, 1], 1] = NOBODY
            hit = search.make_first(moves[changes], value - TIGHT * abs(value)) if len(changes) else None
            if hit is not None:
                value = search.value
            done += len(tries) if hit is None else int(changes[hit]) + 1
        return search.assignment


@kernel
def propose(assignment: IntArray, num_edges: int, transfer: bool, u: float, v: float, redraw: bool) -> IntArray:
    """Return the move that two draws in [0, 1) propose, (3,); see `hflray.assignment.state`.

    If the proposal changes nothing, its edge is the present one of its first device.
    """
    a = int(u * len(assignment))
    if transfer:
        if redraw and num_edges > 1:
            return np.array([a, a, (assignment[a] + 1 + int(v * (num_edges - 1))) % num_edges])
        return np.array([a, a, int(v * num_edges)])
    b = int(v * len(assignment))
    if redraw:
        elsewhere = np.flatnonzero(assignment != assignment[a])
        b = elsewhere[int(v * len(elsewhere))] if len(elsewhere) > 0 else a
    return np.array([a, b, assignment[b]])


@kernel
def search(
    problem: RoundProblem, state: State, trial: State, start: IntArray, transfers: int, draws: FloatArray, redraw: bool
) -> None:
    """Search from `start`, (H,), by the moves of `draws`; `state` then holds the result, and `trial` is scratch."""
    best = restart(problem, state, start)
    for i in range(len(draws)):
        a, b, k = propose(state.assignment, len(problem.bandwidth), i < transfers, draws[i, 0], draws[i, 1], redraw)
        if k != state.assignment[a]:
            copy_state(state, trial)
            value = make_move(problem, trial, a, b, k)
            if value < best:
                best = value
                copy_state(trial, state)


@kernel
def search_joint(
    problem: RoundProblem, state: State, trial: State, start: IntArray, transfers: int, draws: FloatArray, redraw: bool
) -> None:
    """Search as `search` does under one deadline for all edges.

    A try is kept if it lowers the objective by more than `TIGHT`, the relative error of the objective.
    """
    best = begin_joint(problem, state, start)
    for i in range(len(draws)):
        a, b, k = propose(state.assignment, len(problem.bandwidth), i < transfers, draws[i, 0], draws[i, 1], redraw)
        if k != state.assignment[a]:
            best = min(best, try_move(problem, state, trial, a, b, k, best * (1.0 - TIGHT)))
