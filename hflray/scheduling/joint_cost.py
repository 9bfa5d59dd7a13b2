"""Scheduling and assignment in one step: the devices and edges of the lowest objective within IKC's cluster quotas.

IKC draws its devices without regard to what they cost, and an assigner can then only make the best of them. Here the
same numbers of devices of each cluster are chosen together with their edges by a local search on the round's
``Σ E_m + λ max T_m``, or on its optimum with one deadline for all edges (`hflray.assignment.choice`). This scheduler
is not in the paper.

If the cheapest devices trained in every round, the data of the others would never be learned. `max_wait` therefore
bounds the number of rounds that a device is passed over: a device that has waited longer goes first, and of several
those that have waited longest. On digits, the default of 2 rounds lowers the objective to the target most often
(``docs/results/measured.md``, "Devices and edges in one step").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from hflray.allocation import Coupling, is_general
from hflray.allocation.general import beyond_limits
from hflray.assignment.choice import search_choice
from hflray.assignment.general_search import GeneralSearch
from hflray.assignment.objective import round_problem
from hflray.assignment.state import NOWHERE
from hflray.config.options import one_of, whole
from hflray.scheduling.base import QuotaScheduler, option
from hflray.scheduling.context import RoundContext, best_edges, nominal_iteration
from hflray.support.arrays import BoolArray, FloatArray, IntArray

MOST = 1000  # candidates of a search, whose tables grow with their square


@dataclass(kw_only=True, eq=False, repr=False)
class JointCost(QuotaScheduler):
    """Schedules the devices, and assigns them the edges, of the lowest objective of the round.

    The objective is that of the optimal allocation, also where ``allocation.method`` is a baseline.

    Args:
        num_devices: N.
        num_scheduled: H; at most `MOST`.
        clusters: see `Scheduler`.
        max_wait: number of rounds for which a device may be passed over while its cluster's quota has room for it; 0
            lets the devices of a cluster take turns, and None sets no limit, with which training may stall.
        coupling: ``per_edge`` for a deadline of each edge, ``joint`` for one of all; in an experiment it is
            ``allocation.coupling`` by default.
    """

    auxiliary: ClassVar[Literal["mini", "global"] | None] = "mini"

    max_wait: int | None = 2
    coupling: str = option("per_edge", one_of, get_args(Coupling))

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("scheduling.num_scheduled", self.num_scheduled, 1, MOST)
        if self.max_wait is not None:
            whole("scheduling.options.max_wait", self.max_wait, 0)

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        return self.schedule_and_assign(context)[0]

    def schedule_and_assign(self, context: RoundContext) -> tuple[IntArray, IntArray]:
        """Return the round's devices, sorted, and the edge of each, both (min(H, available),)."""
        delay_s, energy_j = nominal_iteration(context, self.num_scheduled)
        # What a device adds to the objective is estimated by its joules and its share of an edge's seconds.
        score = energy_j + context.work.delay_weight * delay_s * context.fleet.num_edges / self.num_scheduled
        available = context.available
        if context.work.limits.drop:  # a device that meets the limits nowhere would be due in each round
            edges = np.flatnonzero(context.edges_up)
            available = available & ~beyond_limits(context.fleet, context.work, np.arange(self.num_devices), edges)
        wait = np.where(available, context.round - 1 - context.last_round, -1)
        chosen, stays, candidates = (np.zeros(self.num_devices, dtype=bool) for _ in range(3))
        group = np.empty(self.num_devices, dtype=np.intp)
        quotas = self._available_quotas(available)
        for k, (members, quota) in enumerate(zip(self.clusters, quotas, strict=True)):
            group[members] = k
            limit = max(1, MOST * quota // max(1, quotas.sum()))
            must, may = self._split(members[available[members]], int(quota), wait, score)
            chosen[must] = stays[must] = chosen[may[: quota - len(must)]] = True
            candidates[must] = candidates[may[:limit]] = True
        self.advance()
        # Where too few meet the limits, the number is made up by others, which the round's planning drops.
        missing = min(self.num_scheduled, int(context.available.sum())) - int(quotas.sum())
        rest = np.flatnonzero(context.available & ~available)[:missing]
        devices, best = np.flatnonzero(candidates), best_edges(context)
        if not len(devices):
            return rest, best[rest]
        start, up = np.where(chosen, best, NOWHERE)[devices], np.array(context.edges_up)
        if is_general(context.fleet, context.work):
            search = GeneralSearch(
                context.fleet, context.work, devices, self.coupling, True, group[devices], stays[devices], up
            )
            search.run(start)
            edge = search.assignment
        else:
            problem, _ = round_problem(context.fleet.with_edges_up(up), context.work, devices)
            edge, _ = search_choice(problem, group[devices], stays[devices], start, up, self.coupling)
        scheduled = edge != NOWHERE
        of_round = np.append(devices[scheduled], rest)
        order = np.argsort(of_round)
        return of_round[order], np.append(edge[scheduled], best[rest])[order]

    def _available_quotas(self, available: BoolArray) -> IntArray:
        """Return the quotas of the round, (K,); what a cluster lacks is spread over the others in turn."""
        room = np.array([int(available[members].sum()) for members in self.clusters])
        quotas: IntArray = np.minimum(self.quotas(), room)
        missing = min(self.num_scheduled, int(room.sum())) - int(quotas.sum())
        while missing:
            open_clusters = np.flatnonzero(quotas < room)[:missing]
            quotas[open_clusters] += 1
            missing -= len(open_clusters)
        return quotas

    def _split(self, members: IntArray, quota: int, wait: IntArray, score: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the members that must be scheduled, and those of which the others are chosen, cheapest first."""
        due = members[wait[members] > self.max_wait] if self.max_wait is not None else members[:0]
        may = np.setdiff1d(members, due, assume_unique=True)
        if len(due) > quota:  # the longest waits go first; there is a choice among those of the same wait
            shortest = np.sort(wait[due])[len(due) - quota] if quota else wait.max() + 1
            due, may = due[wait[due] > shortest], due[wait[due] == shortest]
        return due, may[np.argsort(score[may], kind="stable")]
