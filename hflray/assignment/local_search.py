"""Best-improvement local search over all transfers and exchanges, to a true local optimum.

Not in the paper: HFEL (its benchmark) tries a few hundred random moves; with an allocation solved in microseconds all
of them can be tried. Each step makes the transfer that lowers ``Σ E_m + λ max T_m`` most; when none lowers it, the best
of the exchanges; when none does either, no single move improves the assignment. The start is the best-gain assignment
(a better one than the geographic, design, decision 5.8).

`restarts` kicks the best assignment found with a few random transfers and searches again; `budget_ms` does so for as
long as there is time (and stops the first search too, when it runs out: the best so far is returned). With a budget the
answer depends on the machine's speed; without one, on the generator only.

With ``coupling="joint"`` the objective is that of one deadline shared by all edges, and the search is that of
`hflray.assignment.joint_search`.

The tables of all moves grow with H × M and H × H. From `LARGE` links on, or if asked to, `hflray.assignment.candidates`
takes over: transfers only, to the strongest edges of each device.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.arrays import IntArray
from hflray.assignment.candidates import search_candidates
from hflray.assignment.joint_search import JointSearch
from hflray.assignment.neighbours import AT_ONCE, GAIN, SHORTLIST, best_exchange, best_transfer, near_links
from hflray.assignment.objective import (
    RoundProblem,
    Start,
    check_coupling,
    check_start,
    round_problem,
    starting_assignment,
)
from hflray.assignment.state import State, new_state, restart, settle, state_objective
from hflray.cost import Workload, check_assignment
from hflray.errors import ConfigError
from hflray.fleet import Fleet

LARGE = 100_000  # H·M from which on candidate lists are used
CANDIDATES = 12  # strongest edges of a device that are its candidates then


class LocalSearch:
    """Local search over transfers and exchanges.

    Args:
        start: ``best_gain``, ``geographic`` or ``random``.
        exchanges: False: transfers only, for schedules of thousands of devices (the tables of exchanges are H × H).
        restarts: further searches, each from the best assignment with `kick` random transfers.
        kick: transfers of a kick.
        budget_ms: stop after so many milliseconds, and restart until then; None: no limit.
        candidates: strongest edges of each device to look at, in transfers only and without restarts; 0: all edges,
            exchanges and restarts; None: 0 below 100,000 links (H·M), 12 from there on.
        coupling: ``per_edge``: the objective is ``Σ E_m + λ max T_m`` with each edge's own allocation (27); ``joint``:
            with the allocation of one shared deadline, the optimum of (17); not with candidates.
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
            ConfigError: an index not of the fleet, a value no allocation can work with, or candidates with restarts or
                with coupling ``joint``.
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
                # The estimates of a transfer there, and its relief of the slowest edge, are of the per-edge objective.
                raise ConfigError(
                    f"allocation.coupling: got 'joint' with {count} candidate edges a device ({np.size(devices)} "
                    f"devices at {fleet.num_edges} edges; candidates are used from {LARGE:,} links on): that search "
                    "knows the per_edge objective only; set assignment.options: {coupling: per_edge} to search by that "
                    "and allocate jointly, or {candidates: 0} to search over all edges"
                )
            chosen, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
            return search_candidates(fleet, work, chosen, self.start, count, rng, stop)
        problem, chosen = round_problem(fleet, work, devices)
        search = search_for(problem, self.exchanges, self.coupling)
        best = search.run(starting_assignment(self.start, fleet, chosen, rng), stop)
        kept = search.assignment.copy()
        searches = 0
        while fleet.num_edges > 1 and (time.perf_counter() < stop if self.budget_ms else searches < self.restarts):
            searches += 1
            candidate = kept.copy()
            candidate[rng.integers(len(candidate), size=self.kick)] = rng.integers(fleet.num_edges, size=self.kick)
            value = search.run(candidate, stop)
            if value < best * (1.0 - GAIN):
                best, kept = value, search.assignment.copy()
        return kept


class PerEdgeSearch:
    """A local search on the per-edge objective.

    Args:
        problem: H devices and M edges.
        exchanges: False: transfers only.
    """

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        self.problem, self.exchanges = problem, exchanges
        self.state: State | None = None
        self.assignment = np.zeros(0, dtype=np.intp)

    def run(self, assignment: IntArray, stop: float = np.inf, at_once: int = AT_ONCE) -> float:
        """`descend` from `assignment`, (H,), and keep what is found there; return the objective, J.

        What an earlier search has solved is used again.
        """
        if self.state is None:
            self.state = new_state(self.problem, assignment, self.exchanges)
        else:
            restart(self.problem, self.state, assignment)
        self.assignment = self.state.assignment
        return descend(self.problem, self.state, self.exchanges, stop, at_once)


def search_for(problem: RoundProblem, exchanges: bool, coupling: Coupling) -> PerEdgeSearch | JointSearch:
    """The local search on the objective of `coupling`: ``run`` searches, ``assignment`` is what it found."""
    return (JointSearch if coupling == "joint" else PerEdgeSearch)(problem, exchanges)


def descend(
    problem: RoundProblem, state: State, exchanges: bool, stop: float = np.inf, at_once: int = AT_ONCE
) -> float:
    """Move `state` to a local optimum, or until the clock `time.perf_counter` passes `stop`; return the objective.

    At most `at_once` exchanges are solved between looks at the clock.
    """
    # Transfers to weaker links are looked at when those to the strongest are used up.
    everywhere, near = np.ones(problem.snr.T.shape, dtype=np.bool_), near_links(problem)
    value = state_objective(problem, state)
    while time.perf_counter() < stop:
        enough = value * (1.0 - GAIN)
        found, device, edge = best_transfer(problem, state, near)
        if not found < enough:
            found, device, edge = best_transfer(problem, state, everywhere)
        if found < enough:
            changed = (int(state.assignment[device]), edge)
            state.assignment[device] = edge
        elif exchanges:
            found, a, b, complete = best_exchange(problem, state, SHORTLIST, enough, at_once)
            if not found < enough:
                if complete:
                    break
                continue  # to look at the clock; the tables keep what has been solved
            changed = (int(state.assignment[a]), int(state.assignment[b]))
            state.assignment[a], state.assignment[b] = changed[1], changed[0]
        else:
            break
        for m in changed:
            settle(problem, state, m)
        value = state_objective(problem, state)
    return value
