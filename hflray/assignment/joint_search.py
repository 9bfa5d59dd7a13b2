"""Local search on the joint objective: one deadline for all edges (`hflray.assignment.joint_round`).

Each step makes the confirmed transfer with the lowest estimate. To confirm a move, `try_move` solves the joint problem
of the new assignment until it is certain that the objective is lower. If no transfer is confirmed, the exchanges with
the lowest estimates are tried. If none of them is confirmed either, every transfer and every exchange is solved at the
present prices. Weak duality then rules out most moves, and each other move is tried. When the search ends before its
time is over, no transfer and no exchange therefore lowers the joint objective by more than the fraction
`neighbours.GAIN`.
"""

from __future__ import annotations

import time

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.assignment.joint_moves import (
    Optimum,
    optimum_of,
    rank_exchanges,
    rank_transfers,
    solve_exchanges,
)
from hflray.assignment.joint_round import begin_joint, try_move
from hflray.assignment.neighbours import GAIN, SHORTLIST, near_links
from hflray.assignment.objective import RoundProblem
from hflray.assignment.search import Search
from hflray.assignment.state import State, blank_state
from hflray.support.arrays import IntArray

PROMISING = 8  # number of moves with the best estimates that are tried
TRIED_AT_ONCE = 16  # moves tried between two checks of the clock


class JointSearch(Search):
    """A local search on the joint objective; see `Search`."""

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        super().__init__(problem, exchanges)
        blank = np.zeros(len(problem.cycles), dtype=np.intp)
        self.state, self.trial = blank_state(problem, blank, exchanges, 4), blank_state(problem, blank, False, 0)
        self.near, self.all_links = near_links(problem), np.ones(problem.snr.T.shape, dtype=np.bool_)
        self.pairs = np.column_stack(np.triu_indices(len(blank) if exchanges else 0, 1))

    @property
    def assignment(self) -> IntArray:
        """The present assignment, (H,)."""
        return self.state.assignment

    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (H,), and return its joint objective, J."""
        return begin_joint(self.problem, self.state, assignment)

    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make a confirmed move; see `Search.improve`."""
        enough, optimum = value * (1.0 - GAIN), optimum_of(self.problem, self.state, value)
        objective = self._move_by_estimate(optimum, enough)
        return objective if objective < enough else self._move_by_bound(optimum, enough, stop, at_once)

    def _move_by_estimate(self, optimum: Optimum, enough: float) -> float:
        """Make the confirmed move with the best estimate and return the objective; inf if there is none."""
        problem, state, trial = self.problem, self.state, self.trial
        for allowed in (self.near, self.all_links):
            moves = rank_transfers(problem, state, optimum, allowed, False, enough)
            objective = make_first(problem, state, trial, moves[:PROMISING], False, enough)
            if objective < enough:
                return objective
        if not self.exchanges:
            return np.inf
        moves = rank_exchanges(problem, state, optimum, SHORTLIST)
        moves = solve_exchanges(problem, state, optimum, moves, False, enough)
        return make_first(problem, state, trial, moves[:PROMISING], True, enough)

    def _move_by_bound(self, optimum: Optimum, enough: float, stop: float, at_once: int) -> float:
        """Make a move that lowers the objective and return it; inf if there is none, or the time is over."""
        problem, state = self.problem, self.state
        objective = self._try_in_batches(
            rank_transfers(problem, state, optimum, self.all_links, True, enough), False, enough, stop
        )
        if objective < enough or not self.exchanges:
            return objective
        edge = state.assignment
        pairs = self.pairs[edge[self.pairs[:, 0]] != edge[self.pairs[:, 1]]]
        for i in range(0, len(pairs), at_once):
            if time.perf_counter() >= stop:
                break
            moves = solve_exchanges(problem, state, optimum, pairs[i : i + at_once], True, enough)
            objective = self._try_in_batches(moves, True, enough, stop)
            if objective < enough:
                return objective
        return np.inf

    def _try_in_batches(self, moves: IntArray, exchange: bool, enough: float, stop: float) -> float:
        """Make the first confirmed move and return the objective; inf if there is none, or the time is over."""
        for i in range(0, len(moves), TRIED_AT_ONCE):
            if time.perf_counter() >= stop:
                break
            batch = moves[i : i + TRIED_AT_ONCE]
            objective = make_first(self.problem, self.state, self.trial, batch, exchange, enough)
            if objective < enough:
                return objective
        return np.inf


@kernel
def make_first(
    problem: RoundProblem, state: State, trial: State, moves: IntArray, exchange: bool, enough: float
) -> float:
    """Make the first of `moves`, (n, 2), that brings the joint objective below `enough`; return it, or inf."""
    for i in range(len(moves)):
        objective = try_move(problem, state, trial, moves[i, 0], moves[i, 1], exchange, enough)
        if objective < enough:
            return objective
    return np.inf
