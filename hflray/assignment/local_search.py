"""Best-improvement local search over all transfers and exchanges, to a true local optimum.

This search is not in the paper. The paper's benchmark HFEL tries a few hundred random moves; an allocation that is
solved in microseconds allows all moves to be tried. Each step makes the transfer that lowers ``Σ E_m + λ max T_m``
most. If no transfer lowers it, the step makes the best exchange, and if no exchange lowers it either, the search ends.
The start is the best-gain assignment, which is a better start than the geographic one (docs/design.md, D8).

With `restarts` the search starts again from the best assignment after a few random transfers. With `budget_ms` it does
so until the time is over, which also ends the first search, and returns the best assignment so far. With a budget the
result depends on the machine's speed; without one it depends on the generator only.

With ``coupling="joint"`` the objective is that of one deadline shared by all edges, and
`hflray.assignment.joint_search` searches.

The tables of all moves grow with H × M and H × H. From `LARGE` links on, or with `candidates`, the search is that of
`hflray.assignment.candidates`, which tries only transfers to the strongest edges of each device.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.assignment.candidates import search_candidates
from hflray.assignment.joint_search import JointSearch
from hflray.assignment.neighbours import GAIN, SHORTLIST, best_exchange, best_transfer, near_links
from hflray.assignment.objective import (
    RoundProblem,
    Start,
    check_coupling,
    check_start,
    round_problem,
    starting_assignment,
)
from hflray.assignment.search import Search
from hflray.assignment.state import blank_state, restart, settle, state_objective
from hflray.cost import Workload, check_assignment
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

LARGE = 100_000  # candidate lists are used from this H·M on
CANDIDATES = 12  # number of a device's strongest edges that are its candidates


class LocalSearch:
    """Local search over transfers and exchanges.

    Args:
        start: ``best_gain``, ``geographic`` or ``random``.
        exchanges: False tries transfers only, for thousands of devices (the tables of exchanges are H × H).
        restarts: number of further searches, each from the best assignment after `kick` random transfers.
        kick: number of random transfers before a restart.
        budget_ms: time of the search and its restarts, in ms; None: no limit.
        candidates: number of strongest edges of each device to which transfers are tried, without exchanges and
            restarts; 0 searches over all edges; None is 0 below 100,000 links (H·M) and 12 from there on.
        coupling: with ``per_edge`` the objective is ``Σ E_m + λ max T_m`` with each edge's own allocation (27); with
            ``joint`` it is the optimum of (17), with one shared deadline. Candidates need ``per_edge``.
    """

    def __init__(
        self,
        start: Start = "best_gain",
        exchanges: bool = True,
        restarts: int = 0,
        kick: int = 4,
        budget_ms: float | None = None,
        candidates: int | None = None,
        coupling: Coupling = "per_edge",
    ) -> None:
        counts = (("restarts", restarts, 0), ("kick", kick, 1), ("candidates", candidates or 0, 0))
        for name, value, least in counts:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"assignment.{name}: got {value!r}; a whole number of at least {least} is needed")
        if budget_ms is not None and not budget_ms > 0:
            raise ConfigError(f"assignment.budget_ms: got {budget_ms!r}; a number above 0 or null is needed")
        self.start, self.exchanges, self.restarts, self.kick = check_start(start), bool(exchanges), restarts, kick
        self.budget_ms, self.candidates, self.coupling = budget_ms, candidates, check_coupling(coupling)

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices.

        Raises:
            ConfigError: an index is outside the fleet, a value is not finite and above 0, or candidates are combined
                with restarts or with coupling ``joint``.
        """
        stop = time.perf_counter() + (self.budget_ms / 1e3 if self.budget_ms is not None else np.inf)
        count = self.candidates
        if count is None:
            count = CANDIDATES if np.size(devices) * fleet.num_edges >= LARGE else 0
        if count:
            if self.restarts:
                raise ConfigError(
                    f"assignment.restarts: got {self.restarts} with {count} candidate edges a device; accepted: 0; "
                    "set candidates to 0 to search over all edges"
                )
            if self.coupling == "joint":
                # That search estimates transfers by the per-edge objective only.
                raise ConfigError(
                    f"allocation.coupling: got 'joint' with {count} candidate edges a device ({np.size(devices)} "
                    f"devices at {fleet.num_edges} edges; candidates are used from {LARGE:,} links on): that search "
                    "knows the per_edge objective only; set assignment.options: {coupling: per_edge} to search by that "
                    "and allocate jointly, or {candidates: 0} to search over all edges"
                )
            scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
            return search_candidates(fleet, work, scheduled, self.start, count, rng, stop)
        problem, scheduled = round_problem(fleet, work, devices)
        search = search_for(problem, self.exchanges, self.coupling)
        best = search.run(starting_assignment(self.start, fleet, scheduled, rng), stop)
        best_assignment = search.assignment.copy()
        searches = 0
        while fleet.num_edges > 1 and (time.perf_counter() < stop if self.budget_ms else searches < self.restarts):
            searches += 1
            candidate = best_assignment.copy()
            candidate[rng.integers(len(candidate), size=self.kick)] = rng.integers(fleet.num_edges, size=self.kick)
            value = search.run(candidate, stop)
            if value < best * (1.0 - GAIN):
                best, best_assignment = value, search.assignment.copy()
        return best_assignment


class PerEdgeSearch(Search):
    """A local search on the per-edge objective; see `Search`."""

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        super().__init__(problem, exchanges)
        self._state = blank_state(problem, np.zeros(len(problem.cycles), dtype=np.intp), exchanges, 2)
        # Transfers to weaker links are tried only if no transfer to a strong link helps.
        self._links = (near_links(problem), np.ones(problem.snr.T.shape, dtype=np.bool_))

    @property
    def assignment(self) -> IntArray:
        """The present assignment, (H,)."""
        return self._state.assignment

    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (H,), and return its objective, J; unchanged edges keep their solutions."""
        restart(self.problem, self._state, assignment)
        return state_objective(self.problem, self._state)

    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make the best transfer, or else the best exchange; see `Search.improve`."""
        problem, state, enough = self.problem, self._state, value * (1.0 - GAIN)
        for links in self._links:
            objective, device, edge = best_transfer(problem, state, links)
            if objective < enough:
                return self._move(np.array([device]), np.array([edge]))
        complete = not self.exchanges
        while not complete:
            # The tables keep the exchanges that are solved.
            objective, a, b, complete = best_exchange(problem, state, SHORTLIST, enough, at_once)
            if objective < enough:
                pair = np.array([a, b])
                return self._move(pair, state.assignment[pair[::-1]])
            complete |= time.perf_counter() >= stop
        return math.inf

    def _move(self, devices: IntArray, edges: IntArray) -> float:
        """Give devices their new edges, solve the changed edges, and return the objective, J."""
        state = self._state
        changed = dict.fromkeys((*state.assignment[devices], *edges))
        state.assignment[devices] = edges
        for m in changed:
            settle(self.problem, state, m)
        return state_objective(self.problem, state)


def search_for(problem: RoundProblem, exchanges: bool, coupling: Coupling) -> Search:
    """Return the local search on the objective of `coupling`."""
    return (JointSearch if coupling == "joint" else PerEdgeSearch)(problem, exchanges)
