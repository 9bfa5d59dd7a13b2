"""Whole blocks: how many of a node's K blocks each device gets, exactly.

With a deadline T, the joules of a device fall in its blocks, ever more slowly. The greedy choice, which gives the next
block to whom it saves most, is therefore exact: V(T). The best T minimises V(T) + λT, which falls and rises many times.
A search halves intervals of T and discards those whose bound is no better than the best T so far. Two bounds hold for
an interval from T₁ to T₂: V(T₂) + λT₁, because V falls; and, because each count's joules are convex in T, the line
through T₂ and a later deadline, which lies below them, for which the price of a block bounds the best counts.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.interior import minimise
from hflray.allocation.problem import Edges
from hflray.support.arrays import FloatArray, IntArray

CLOSE = 1e-8  # of the objective, by which another deadline may be better
MOST_LEVELS, PIECES = 40, 4
MOST_NUMBERS = 2_000_000  # of a table that is computed at once


class _Node:
    """The seconds and joules of the devices of one edge for each count of blocks, (n, k)."""

    def __init__(self, edges: Edges, blocks: int) -> None:
        n = len(edges.node)
        self.blocks, self.most = blocks, blocks - n + 1
        self.edges = edges
        if self.most < 1:
            return
        share = np.tile(np.arange(1, self.most + 1) / blocks, n)
        with np.errstate(all="ignore"):
            seconds, joules = self.repeated(np.repeat(np.arange(n), self.most)).upload(share)
        self.seconds, self.joules = seconds.reshape(n, -1), joules.reshape(n, -1)

    def repeated(self, index: IntArray) -> Edges:
        """Return the problem of these entries."""
        return self.edges.part(index, np.zeros(len(index), dtype=np.intp), 1, self.edges.weight)

    def costs(self, deadline: FloatArray) -> FloatArray:
        """Return the least joules with each deadline and count, (g, n, k); infinite where a constraint is broken."""
        from hflray.allocation.exact import setting_for

        edges, n, count = self.edges, len(self.edges.node), len(deadline)
        allowed = np.minimum(deadline[:, None], edges.most_s) - edges.before_s  # (g, n)
        left = (allowed[:, :, None] - self.seconds).ravel()
        repeated = self.repeated(np.tile(np.repeat(np.arange(n), self.most), count))
        with np.errstate(all="ignore"):
            if edges.compute.has_setting:
                setting = setting_for(repeated, 0, left)
                late = ~np.isfinite(setting)
                used = repeated.run(np.where(late, 1.0, setting))[1]
            else:
                took, used = repeated.run(np.ones(len(left)))
                late = ~(took <= left)
            used = np.where(late, np.inf, used).reshape(count, n, -1) + self.joules
        return np.where(used <= edges.most_j[:, None], used, np.inf)

    def best(self, costs: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """Return the least sums of costs, (g,), their counts of blocks, (g, n), and a lower bound on the sums, (g,)."""
        g, n, _ = costs.shape
        finite = np.isfinite(costs)
        least = finite.argmax(axis=2)
        spare = self.blocks - least.sum(axis=1) - n
        possible = np.all(np.any(finite, axis=2), axis=1) & (spare >= 0)
        costs, least, spare = costs[possible], least[possible], spare[possible]
        with np.errstate(invalid="ignore"):
            gains = costs[..., :-1] - costs[..., 1:]
        within = np.arange(gains.shape[2]) >= least[..., None]
        gains = np.minimum.accumulate(np.where(within, np.maximum(gains, 0.0), np.inf), axis=2)
        gains = np.where(within, gains, -1.0).reshape(len(costs), n * (self.most - 1))
        order = np.argsort(-gains, axis=1, kind="stable")
        chosen = np.zeros(gains.shape, dtype=np.bool_)
        np.put_along_axis(chosen, order, np.arange(gains.shape[1]) < spare[:, None], axis=1)
        chosen &= gains >= 0
        counts = least + chosen.reshape(len(costs), n, self.most - 1).sum(axis=2)
        price = np.where(chosen, gains, np.inf).min(axis=1, initial=np.inf)
        price = np.where(np.isfinite(price), price, np.maximum(gains.max(axis=1, initial=0.0), 0.0))
        priced = costs + price[:, None, None] * np.arange(1, costs.shape[2] + 1)
        values, bounds, all_counts = np.full(g, np.inf), np.full(g, np.inf), np.ones((g, n), dtype=np.intp)
        values[possible] = np.take_along_axis(costs, counts[..., None], axis=2)[..., 0].sum(axis=1)
        bounds[possible] = priced.min(axis=2).sum(axis=1) - price * self.blocks
        all_counts[possible] = counts + 1
        return values, all_counts, bounds


def block_shares(edges: Edges, weight: FloatArray, shift: FloatArray, floor: FloatArray, together: bool) -> FloatArray:
    """Return the best shares, (D,), of edges that all have entries; NaN where no shares keep the constraints.

    The arguments are those of `hflray.allocation.interior.minimise`, but for `shift`, which is of each edge, (E,), s.
    """
    blocks = edges.access.blocks or 1
    relaxed = minimise(edges, weight, shift[edges.node], floor, together)
    parts = np.split(np.arange(len(edges.node)), np.flatnonzero(np.diff(edges.node)) + 1)
    nodes = [_Node(edges.part(part, np.zeros(len(part), dtype=np.intp), 1, np.ones(1)), blocks) for part in parts]
    groups = [range(len(nodes))] if together else [range(m, m + 1) for m in range(len(nodes))]
    share = np.full(len(edges.node), np.nan)
    for g, members in enumerate(groups):
        if relaxed.converged[g] and all(nodes[m].most >= 1 for m in members):
            deadline = float(relaxed.deadline_s[g])
            counts_of = _search([nodes[m] for m in members], shift[list(members)], weight[g], floor[g], deadline)
            for m, counts in zip(members, counts_of, strict=False):
                share[parts[m]] = counts / blocks
    return share


def _search(nodes: list[_Node], shift: FloatArray, weight: float, floor: float, relaxed: float) -> list[IntArray]:
    """Return the best counts of each node, (n,), under one deadline, or an empty list if there are none."""

    def look(deadline: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray, list[IntArray]]:
        """Return V, a lower bound on V + λT over the intervals of a width that end at the deadlines, and counts."""
        size = max(1, MOST_NUMBERS // sum(node.most * len(node.edges.node) for node in nodes))
        value, line = np.zeros((2, len(deadline)))
        counts: list[list[IntArray]] = [[] for _ in nodes]
        for i in range(0, len(deadline), size):
            piece = slice(i, i + size)
            for node, late, count in zip(nodes, shift, counts, strict=True):
                costs = node.costs(deadline[piece] - late)
                later = node.costs(deadline[piece] + 1e-2 * width[piece] - late)
                with np.errstate(invalid="ignore"):
                    slope = np.where(np.isfinite(costs), np.maximum(costs - later, 0.0) * 1e2, 0.0)
                best, chosen, _ = node.best(costs)
                value[piece] += best
                line[piece] += node.best(costs + slope)[2]
                count.append(chosen)
        first = deadline - width
        flat = value + weight * first
        tilted = np.minimum(value + weight * deadline, line + weight * first)
        return value, np.maximum(flat, tilted), [np.concatenate(count) for count in counts]

    best = np.inf
    counts_of: list[IntArray] = []
    deadline = relaxed * np.geomspace(1.0, 1e4, 60)
    for _ in range(3):
        value, _, counts = look(deadline, 1e-3 * deadline)
        total = value + weight * deadline
        if np.isfinite(total).any():
            at = int(np.nanargmin(total))
            best, counts_of = float(total[at]), [count[at] for count in counts]
            break
        deadline = deadline * 1e4
    if not counts_of:
        return counts_of
    edge = np.geomspace(best / weight * 1e-3, best / weight * 1.001, 64)
    edge = np.concatenate([[floor], np.maximum(edge, floor)])
    width, end = np.diff(edge), edge[1:]
    for _ in range(MOST_LEVELS):
        width, end = width[width > 0], end[width > 0]
        if not len(end):
            break
        value, bound, counts = look(end, width)
        total = value + weight * end
        at = int(np.argmin(total))
        if total[at] < best:
            best, counts_of = float(total[at]), [count[at] for count in counts]
        promising = bound < best * (1 - CLOSE)
        width, end = np.repeat(width[promising] / PIECES, PIECES), end[promising]
        end = (end[:, None] - np.arange(PIECES) * width.reshape(-1, PIECES)).ravel()
    return counts_of
