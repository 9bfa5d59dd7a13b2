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

import time
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling, is_general
from hflray.assignment.candidates import search_candidates
from hflray.assignment.general_search import GeneralSearch
from hflray.assignment.joint_search import JointSearch
from hflray.assignment.objective import Start, round_problem, starting_assignment
from hflray.assignment.search import GAIN, PerEdgeSearch, Search
from hflray.config.options import one_of, positive, whole
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
        self.start, self.exchanges = one_of("assignment.start", start, get_args(Start)), bool(exchanges)
        self.restarts, self.kick = whole("assignment.restarts", restarts, 0), whole("assignment.kick", kick, 1)
        self.budget_ms = None if budget_ms is None else positive("assignment.budget_ms", budget_ms)
        self.candidates = None if candidates is None else whole("assignment.candidates", candidates, 0)
        self.coupling = one_of("assignment.coupling", coupling, get_args(Coupling))

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
            if is_general(fleet, work):
                raise ConfigError(
                    f"assignment.candidates: {count} candidate edges a device ({np.size(devices)} devices at "
                    f"{fleet.num_edges} edges; candidates are used from {LARGE:,} links on), and that search prices "
                    "frequency division (fdma, dvfs) without downloads and limits alone; accepted: 0, or another "
                    "assigner; set candidates to 0 to search over all edges"
                )
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
        search, scheduled = search_for(fleet, work, devices, self.exchanges, self.coupling)
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


def search_for(
    fleet: Fleet, work: Workload, devices: ArrayLike, exchanges: bool, coupling: str
) -> tuple[Search, IntArray]:
    """Return the local search on the objective of `coupling`, and the checked indices of `devices`, (H,)."""
    if is_general(fleet, work):
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return GeneralSearch(fleet, work, scheduled, coupling, exchanges), scheduled
    problem, scheduled = round_problem(fleet, work, devices)
    return (JointSearch if coupling == "joint" else PerEdgeSearch)(problem, exchanges), scheduled
