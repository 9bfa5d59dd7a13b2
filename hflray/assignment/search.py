"""A local search by single moves, which knows nothing of the objective.

This search is not in the paper. `hflray.assignment.local_search.PerEdgeSearch` searches on the per-edge objective, with
the exact cost of every move, and `hflray.assignment.joint_search.JointSearch` on the joint objective, with estimates
and bounds. `alternate` takes turns with a search that also replaces scheduled devices by others.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from hflray.assignment.neighbours import AT_ONCE, GAIN
from hflray.assignment.objective import Hop, RoundProblem
from hflray.support.arrays import BoolArray, IntArray

NOWHERE = -1  # the edge of a candidate that is not scheduled


class Search(ABC):
    """A search from an assignment to a local optimum.

    Args:
        problem: H devices and M edges.
        exchanges: whether exchanges are tried as well as transfers.
    """

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        self.problem, self.exchanges = problem, exchanges

    @property
    @abstractmethod
    def assignment(self) -> IntArray:
        """The present assignment, (H,)."""

    @abstractmethod
    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (H,), and return its objective, J."""

    @abstractmethod
    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make a move that lowers the objective `value`, J, by more than the fraction `GAIN`.

        Returns:
            The objective after the move, J; at least ``value * (1 - GAIN)`` if there is none, or the time is over.
        """

    def run(self, assignment: IntArray, stop: float = np.inf, at_once: int = AT_ONCE) -> float:
        """Search from `assignment`, (H,), to a local optimum, or until `time.perf_counter` passes `stop`.

        At most `at_once` exchanges are solved between two checks of the clock. Solutions of an earlier search may be
        used again. Returns the objective, J.
        """
        value = self.begin(assignment)
        while time.perf_counter() < stop:
            objective = self.improve(value, stop, at_once)
            if not objective < value * (1.0 - GAIN):
                break
            value = objective
        return value


def alternate(
    problem: RoundProblem,
    present: IntArray,
    value: float,
    search: Callable[[RoundProblem, bool], Search],
    replace: Callable[[IntArray], tuple[IntArray, float]],
) -> tuple[IntArray, float]:
    """Search over the scheduled devices, and replace some of them by others, in turns until neither helps.

    Args:
        problem: C candidates and M edges.
        present: the edge of each candidate, (C,); `NOWHERE` for those that are not scheduled.
        value: its objective, J, or inf.
        search: builds the search over the edges of the scheduled devices.
        replace: replaces scheduled devices until that helps no more; returns the assignment, (C,), and its objective.

    Returns:
        The best assignment, (C,), and its objective, J.
    """
    everywhere = np.ones(len(problem.bandwidth), dtype=np.bool_)
    while True:
        scheduled = np.flatnonzero(present != NOWHERE)
        best = search(part_of(problem, scheduled, everywhere), True)
        if not best.run(present[scheduled]) < value * (1.0 - GAIN):
            return present, value
        present[scheduled] = best.assignment
        present, value = replace(present)


def part_of(problem: RoundProblem, devices: IntArray, usable: BoolArray) -> RoundProblem:
    """Return the problem of some of the devices and of the usable edges only."""
    return problem._replace(
        snr=np.ascontiguousarray(problem.snr[usable][:, devices]),
        cycles=problem.cycles[devices],
        power=problem.power[devices],
        cap=problem.cap[devices],
        bandwidth=problem.bandwidth[usable],
        hop=Hop(problem.hop.delay[usable], problem.hop.energy[usable]),
    )


def among(edges: IntArray, assignment: IntArray) -> IntArray:
    """Return the place of each candidate's edge, (C,), in the sorted `edges`; `NOWHERE` stays."""
    return np.where(assignment == NOWHERE, NOWHERE, np.searchsorted(edges, assignment))


def named(edges: IntArray, present: IntArray) -> IntArray:
    """Return the edges of which `among` gave the places, (C,)."""
    return np.where(present == NOWHERE, NOWHERE, edges[present])
