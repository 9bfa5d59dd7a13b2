"""The searches over assignments, for any access, computing, download and limits, on the general allocator.

The paper's physics has kernels of its own (`hflray.assignment.search`). Here all moves of a step are the problems of
edges whose sets of devices change, and `hflray.allocation.exact.solve` solves them at once. A cost of a set holds until
the devices of its edge change.

With a deadline for all edges, a move is estimated by the prices of the edges' delays, whose sum is λ (weak duality). It
is made if the exact solution confirms it, the most promising ones first. An edge that cannot meet a limit, or that has
fewer blocks than devices, costs `PENALTY_J` a device, so that a search leaves it first. With
``allocation.limits.drop``, a device that meets the limits at no edge costs nothing anywhere, because it will be left
out. Blocks are priced as if they could be split, which is a lower bound of what the allocation then finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hflray.allocation.exact import solve, solve_together
from hflray.allocation.general import beyond_limits, problems
from hflray.assignment.search import GAIN, Search
from hflray.assignment.state import NOBODY, NOWHERE
from hflray.cost import Workload, hops
from hflray.fleet import Fleet
from hflray.support.arrays import BoolArray, FloatArray, IntArray

TOL = 1e-7  # of a cost
PENALTY_J = 1e15


class GeneralSearch(Search):
    """The costs of a round's edges, and a search by single moves.

    Args:
        fleet: N devices and M edges.
        work: the round.
        devices: the candidates, (C,).
        coupling: ``per_edge`` or ``joint``.
        group, stays: as in `hflray.assignment.choice.search_choice`; None: nobody is replaced.
        usable: whether devices may be assigned to an edge, (M,), as not to one that is down, which has no hop; None: to
            all.
        exchanges: whether exchanges are tried as well as transfers.
    """

    def __init__(
        self,
        fleet: Fleet,
        work: Workload,
        devices: IntArray,
        coupling: str = "per_edge",
        exchanges: bool = True,
        group: IntArray | None = None,
        stays: BoolArray | None = None,
        usable: BoolArray | None = None,
    ) -> None:
        self._fleet, self._work, self._devices, self._coupling = fleet, work, devices, coupling
        self._exchanges, self._group, self._stays = exchanges, group, stays
        self._usable = np.ones(fleet.num_edges, dtype=bool) if usable is None else usable
        self._hop_s, self._hop_j = hops(fleet.with_edges_up(self._usable), work)
        self._weight = np.full(fleet.num_edges, work.delay_weight)
        self._counts = np.ones(len(devices), dtype=bool)  # whether an edge's set of devices depends on the device, (C,)
        if work.limits.drop:
            self._counts = ~beyond_limits(fleet, work, devices, np.flatnonzero(self._usable))

    # ---- costs of sets of devices

    def _costs(self, edge: IntArray, members: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return E_m, J, and T_m, s, of some sets, (S,): those of `members`, (S, n), at each `edge`, (S,).

        `NOBODY` fills the rows of smaller sets.
        """
        is_in = (members != NOBODY) & self._counts[members]
        row, _ = np.nonzero(is_in)
        devices = self._devices[members[is_in]]
        sets, received_j = problems(self._fleet, self._work, devices, edge[row], row, len(edge))
        solved = solve(replace(sets, weight=self._weight[edge]), tolerance=TOL, whole=False)
        spent_j = solved.energy_j + np.bincount(row, received_j, len(edge))
        q = self._work.edge_iterations
        energy_j = np.where(solved.feasible, q * spent_j, PENALTY_J * is_in.sum(axis=1)) + self._hop_j[edge]
        return energy_j, np.where(solved.feasible, q * solved.deadline_s, 0.0) + self._hop_s[edge]

    def _sizes(self) -> IntArray:
        """Return how many devices each edge has, (M,)."""
        return np.bincount(self.assignment[self.assignment != NOWHERE], minlength=len(self._hop_s))

    def _members(self) -> IntArray:
        """Return the devices of each edge, (M, n), filled with `NOBODY`."""
        size = self._sizes()
        members = np.full((len(size), int(size.max(initial=0))), NOBODY)
        for m in range(len(size)):
            members[m, : size[m]] = np.flatnonzero(self.assignment == m)
        return members

    def _changed(self, edge: IntArray, leaves: IntArray, joins: IntArray) -> IntArray:
        """Return the sets, (S, n + 1), of edges (S,) that one device leaves and one joins; `NOBODY` for none."""
        sets = self._members()[edge]
        sets[(sets == leaves[:, None]) & (sets != NOBODY)] = NOBODY
        return np.column_stack([sets, joins])

    # ---- the state

    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (C,), `NOWHERE` for those that are not scheduled; return its objective, J."""
        self.assignment, self._known = np.array(assignment), dict[int, tuple[float, float]]()
        self._energy_j, self._delay_s = np.zeros((2, len(self._hop_s)))
        return self._settle(np.arange(len(self._hop_s)))

    def _settle(self, edges: IntArray) -> float:
        """Solve edges whose devices have changed, and forget what was known of their moves; return the objective, J."""
        if self._coupling == "joint":
            # Prices of the delays: an edge that ends before the others has none.
            self.value, self._weight = self._together(self.assignment)
            edges = np.arange(len(self._hop_s))
        self._energy_j[edges], self._delay_s[edges] = self._costs(edges, self._members()[edges])
        changed, size = set(edges.tolist()), (len(self.assignment) + 1) ** 2
        self._known = {code: cost for code, cost in self._known.items() if code // size not in changed}
        if self._coupling == "per_edge":
            self.value = float(self._energy_j.sum() + self._work.delay_weight * self._round_s(self._delay_s))
        return self.value

    def _together(self, assignment: IntArray) -> tuple[float, FloatArray]:
        """Return the objective, J, under one deadline, and the price of each edge's delay, (M,), J/s."""
        order = np.argsort(assignment, kind="stable")
        order = order[(assignment[order] != NOWHERE) & self._counts[order]]
        edge = assignment[order]
        problem, received_j = problems(self._fleet, self._work, self._devices[order], edge, edge, len(self._hop_s))
        weight, q = self._work.delay_weight, self._work.edge_iterations
        solved = solve_together(problem, q, self._hop_s, weight, TOL, whole=False)
        if not solved.feasible.all():
            return PENALTY_J * int((~solved.feasible[edge]).sum()), np.full(len(self._hop_s), weight / len(self._hop_s))
        delay_s = q * solved.deadline_s + self._hop_s
        energy_j = q * solved.energy_j.sum() + q * received_j.sum()
        price = np.bincount(edge, solved.time_price, len(self._hop_s))
        return float(energy_j + self._hop_j.sum() + weight * delay_s.max()), np.maximum(price, 1e-9 * weight)

    def _round_s(self, delay_s: FloatArray, size: IntArray | None = None) -> FloatArray:
        """Return T of edges with T_m, (…, M), s: the largest, or the mean over edges with devices."""
        if self._work.minimise == "round":
            return np.asarray(delay_s.max(axis=-1))
        used = (self._sizes() if size is None else size) > 0
        return np.asarray((delay_s * used).sum(axis=-1) / np.maximum(used.sum(axis=-1), 1))

    # ---- moves: device a goes to edge k, and device b takes its place, or is scheduled instead of it

    def _costs_after(self, edge: IntArray, leaves: IntArray, joins: IntArray) -> FloatArray:
        """Return E_m, J, and T_m, s, (2, S), of edges, (S,), that one device leaves and one joins; `NOBODY` for none.

        Those that are not known are solved at once.
        """
        count = len(self.assignment) + 1
        set_code = (edge * count + leaves + 1) * count + joins + 1
        codes, first, back = np.unique(set_code, return_index=True, return_inverse=True)
        new = first[[code not in self._known for code in codes.tolist()]]
        if len(new):
            costs = self._costs(edge[new], self._changed(edge[new], leaves[new], joins[new]))
            self._known.update(zip(set_code[new].tolist(), zip(*costs, strict=True), strict=True))
        return np.array([self._known[code] for code in codes.tolist()])[back].T

    def _values(self, moves: IntArray) -> FloatArray:
        """Return the objective after each move, (n,), J; under one deadline, an estimate of it."""
        a, b, k = moves.T
        m, rows = self.assignment[a], np.arange(len(a))
        alone, same = b == NOBODY, k == m
        replaced = ~alone & (self.assignment[np.maximum(b, 0)] == NOWHERE)
        goes = alone | (replaced & ~same)  # a leaves its edge, and nobody joins it
        leaves = np.concatenate([a, np.where(goes, NOBODY, np.where(same, a, b))])
        joins = np.concatenate([np.where(goes, NOBODY, b), np.where(replaced, b, a)])
        costs = self._costs_after(np.concatenate([m, k]), leaves, joins)
        left, joined = costs[:, : len(a)], costs[:, len(a) :]
        energy_j = self._energy_j.sum() - self._energy_j[m] + left[0]
        energy_j += np.where(same, 0.0, joined[0] - self._energy_j[k])
        if self._coupling == "joint":
            priced = self._weight[m] * (left[1] - self._delay_s[m])
            priced += np.where(same, 0.0, self._weight[k] * (joined[1] - self._delay_s[k]))
            return np.asarray(self.value + (energy_j - self._energy_j.sum()) + priced)
        delay_s = np.tile(self._delay_s, (len(a), 1))
        delay_s[rows, k] = np.where(same, left[1], joined[1])
        delay_s[rows, m] = left[1]
        size = np.tile(self._sizes(), (len(a), 1))
        size[rows, m] -= alone | replaced
        size[rows, k] += alone | replaced
        return np.asarray(energy_j + self._work.delay_weight * self._round_s(delay_s, size))

    def _moves(self) -> Iterator[IntArray]:
        """Yield the transfers, the exchanges, and the replacements, (n, 3) each."""
        scheduled, edges = np.flatnonzero(self.assignment != NOWHERE), np.flatnonzero(self._usable)
        a, k = (index.ravel() for index in np.meshgrid(scheduled, edges, indexing="ij"))
        elsewhere = self.assignment[a] != k
        yield np.column_stack([a, np.full(len(a), NOBODY), k])[elsewhere]
        a, b = (scheduled[index] for index in np.triu_indices(len(scheduled) if self._exchanges else 0, 1))
        elsewhere = self.assignment[a] != self.assignment[b]
        yield np.column_stack([a, b, self.assignment[b]])[elsewhere]
        if self._group is not None and self._stays is not None:
            unscheduled = np.flatnonzero(self.assignment == NOWHERE)
            may = scheduled[~self._stays[scheduled]]
            a, b, k = (index.ravel() for index in np.meshgrid(may, unscheduled, edges, indexing="ij"))
            yield np.column_stack([a, b, k])[self._group[a] == self._group[b]]

    def _after(self, move: IntArray) -> IntArray:
        """Return the assignment after a move, (C,)."""
        (a, b, k), after = move.tolist(), self.assignment.copy()
        replaced = b != NOBODY and after[b] == NOWHERE
        if b != NOBODY:
            after[b] = k if replaced else after[a]
        after[a] = NOWHERE if replaced else k
        return after

    def make_first(self, moves: IntArray, enough: float) -> int | None:
        """Make the first of some moves, (n, 3), after which the objective is below `enough`, J; return its number."""
        values = self._values(moves)
        for number in np.flatnonzero(values < enough).tolist():  # an estimate is a lower bound
            after = self._after(moves[number])
            if self._coupling == "per_edge" or self._together(after)[0] < enough:
                changed = np.unique([*self.assignment[after != self.assignment], *after[after != self.assignment]])
                self.assignment = after
                self._settle(changed[changed != NOWHERE])
                return number
        return None

    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make the best move of the first kind that helps; `at_once` has no meaning here. See `Search.improve`."""
        for moves in self._moves():
            best = moves[np.argsort(self._values(moves), kind="stable")] if len(moves) else moves
            if len(best) and self.make_first(best, value - GAIN * abs(value)) is not None:
                return self.value
        return np.inf
