"""Local search on the joint objective: one deadline for all edges (`hflray.assignment.joint_round`).

Each step makes the transfer with the lowest estimate that is confirmed: the joint problem of the new assignment is
solved as far as it takes to be certain that its objective is lower (`try_move`). When no estimate promises a transfer,
the exchanges that promise most are looked at; when none of them is confirmed either, every transfer and every exchange
is solved at the present prices. By weak duality most are ruled out so, and each that is not is tried. So where the
search ends by itself, no transfer and no exchange lowers the joint objective by more than `neighbours.GAIN` of it.
"""

from __future__ import annotations

import time

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.arrays import IntArray
from hflray.assignment.joint_moves import (
    Optimum,
    optimum_of,
    rank_exchanges,
    rank_transfers,
    solve_exchanges,
)
from hflray.assignment.joint_round import begin_joint, try_move
from hflray.assignment.neighbours import AT_ONCE, GAIN, SHORTLIST, near_links
from hflray.assignment.objective import RoundProblem
from hflray.assignment.state import State, blank_state

PROMISING = 8  # moves tried, best estimate first, before others are looked for
TRIED_AT_ONCE = 16  # moves tried between looks at the clock


class JointSearch:
    """A local search on the joint objective.

    Args:
        problem: H devices and M edges.
        exchanges: False: transfers only.
    """

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        nowhere = np.zeros(len(problem.cycles), dtype=np.intp)
        self.problem, self.exchanges = problem, exchanges
        self.state, self.trial = blank_state(problem, nowhere, exchanges, 4), blank_state(problem, nowhere, False, 0)
        self.near, self.everywhere = near_links(problem), np.ones(problem.snr.T.shape, dtype=np.bool_)
        self.pairs = np.column_stack(np.triu_indices(len(nowhere) if exchanges else 0, 1))

    @property
    def assignment(self) -> IntArray:
        """The assignment found, (H,)."""
        return self.state.assignment

    def run(self, assignment: IntArray, stop: float = np.inf, at_once: int = AT_ONCE) -> float:
        """Search from `assignment`, (H,), to a local optimum, or until `time.perf_counter` passes `stop`.

        At most `at_once` exchanges are solved between looks at the clock. Returns the joint objective, J.
        """
        value = begin_joint(self.problem, self.state, assignment)
        while time.perf_counter() < stop:
            enough = value * (1.0 - GAIN)
            now = optimum_of(self.problem, self.state, value)
            found = self._promising(now, enough)
            if not found < enough:
                found = self._any(now, enough, stop, at_once)
            if not found < enough:
                break
            value = found
        return value

    def _promising(self, now: Optimum, enough: float) -> float:
        """Make the move that the estimates put first and that is confirmed; return the objective, inf without one."""
        problem, state, trial = self.problem, self.state, self.trial
        for allowed in (self.near, self.everywhere):
            moves = rank_transfers(problem, state, now, allowed, False, enough)
            found = make_first(problem, state, trial, moves[:PROMISING], False, enough)
            if found < enough:
                return found
        if not self.exchanges:
            return np.inf
        moves = rank_exchanges(problem, state, now, SHORTLIST)
        moves = solve_exchanges(problem, state, now, moves, False, enough)
        return make_first(problem, state, trial, moves[:PROMISING], True, enough)

    def _any(self, now: Optimum, enough: float, stop: float, at_once: int) -> float:
        """Make a move that lowers the objective if there is one; inf if there is none, or the time is over."""
        problem, state = self.problem, self.state
        found = self._try(rank_transfers(problem, state, now, self.everywhere, True, enough), False, enough, stop)
        if found < enough or not self.exchanges:
            return found
        edge = state.assignment
        pairs = self.pairs[edge[self.pairs[:, 0]] != edge[self.pairs[:, 1]]]
        for i in range(0, len(pairs), at_once):
            if time.perf_counter() >= stop:
                break
            moves = solve_exchanges(problem, state, now, pairs[i : i + at_once], True, enough)
            found = self._try(moves, True, enough, stop)
            if found < enough:
                return found
        return np.inf

    def _try(self, moves: IntArray, exchange: bool, enough: float, stop: float) -> float:
        for i in range(0, len(moves), TRIED_AT_ONCE):
            if time.perf_counter() >= stop:
                break
            some = moves[i : i + TRIED_AT_ONCE]
            found = make_first(self.problem, self.state, self.trial, some, exchange, enough)
            if found < enough:
                return found
        return np.inf


@kernel
def make_first(
    problem: RoundProblem, state: State, trial: State, moves: IntArray, exchange: bool, enough: float
) -> float:
    """Make the first of `moves` (n, 2) that brings the joint objective below `enough`; return it, or inf."""
    for i in range(len(moves)):
        found = try_move(problem, state, trial, moves[i, 0], moves[i, 1], exchange, enough)
        if found < enough:
            return found
    return np.inf
