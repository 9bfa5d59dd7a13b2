"""Whole blocks: how many of a node's K blocks each device gets, exactly.

With a deadline T, the joules of a device fall in its blocks, ever more slowly. The greedy choice, which gives the next
block to whom it saves most, is therefore exact: V(T). The best T minimises V(T) + λT, which falls and rises many times.

The optimum of shares of any size bounds that from below, and its prices say how much each count costs a device more
than its best share does. Counts that cost more than the gap to the best choice so far are left out. A search then
divides intervals of T and discards those whose bound is no better than the best choice so far. Two bounds hold for
an interval from T₁ to T₂: V(T₂) + λT₁, because V falls; and, because each count's joules are convex in T, the line
through T₂ and a later deadline, which lies below them, for which the price of a block bounds the best counts.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.interior import minimise
from hflray.allocation.problem import EdgeProblems, Iterate
from hflray.support.arrays import BoolArray, FloatArray, IntArray

CLOSE = 2e-7  # of the objective, by which another deadline may be better
MARGIN = 1e-6  # of the objective, for errors of the prices
MOST_LEVELS, PIECES = 40, 4
MOST_NUMBERS = 2_000_000  # of a table that is computed at once
LATER = np.array([1, 1.003, 1.01, 1.03, 1.1, 1.3, 2, 5, 1e2, 1e4, 1e8])  # deadlines of the first choices
NEAR = np.array([0.003, 0.01, 0.03, 0.1, 0.25, 0.5])  # ends of the first intervals, relative to the deadline
FAR = np.array([2, 4, 16, 256, 1e4, np.inf])


def block_shares(
    edges: EdgeProblems, weight: FloatArray, shift: FloatArray, floor: FloatArray, together: bool
) -> FloatArray:
    """Return the best shares, (D,), of edges that all have entries; NaN where no shares keep the constraints.

    The arguments are those of `hflray.allocation.interior.minimise`, but for `shift`, which is of each edge, (E,), s.
    """
    relaxed = minimise(edges, weight, shift[edges.node], floor, together, None, 1e-8)
    with np.errstate(all="ignore"):
        return _Search(edges, weight, shift, floor, relaxed).run()


class _Search:
    """The search of G groups of edges. Tables hold N devices of each edge, some of which stand for none."""

    def __init__(
        self, edges: EdgeProblems, weight: FloatArray, shift: FloatArray, floor: FloatArray, relaxed: Iterate
    ) -> None:
        self.edges, self.weight, self.shift, self.floor, self.relaxed = edges, weight, shift, floor, relaxed
        self.blocks, self.size = edges.access.blocks or 1, edges.count // len(weight)  # edges of a group
        devices = np.bincount(edges.node)
        place = np.arange(len(edges.node)) - np.searchsorted(edges.node, edges.node)
        self.place = edges.node, place
        self.real = np.arange(devices.max()) < devices[:, None]
        self.entry = np.where(self.real, (np.cumsum(devices) - devices)[:, None] + np.arange(devices.max()), 0)
        self.alive: BoolArray = relaxed.converged & (devices <= self.blocks).reshape(-1, self.size).all(axis=1)
        self.best, self.chosen = np.full(len(weight), np.inf), np.ones((edges.count, devices.max()), dtype=np.intp)
        most = np.maximum(self.blocks - devices + 1, 1)[:, None]
        self.tabulate(self.real.astype(np.intp), np.where(self.real, most, 0))

    def tabulate(self, low: IntArray, high: IntArray) -> None:
        """Set the uploads' seconds and joules, (E, N, C), for these ranges of blocks, (E, N)."""
        count = low[..., None] + np.arange(int((high - low).max()) + 1)
        share = np.maximum(np.minimum(count, high[..., None]), 1) / self.blocks
        entry = np.broadcast_to(self.entry[..., None], count.shape).ravel()
        upload = self.edges.access.upload(share.ravel(), self.edges.link.take(entry), self.edges.bits)
        self.seconds, self.joules = (np.reshape(column, count.shape) for column in upload)
        self.joules = np.where(count <= high[..., None], self.joules, np.inf)
        self.low, self.count = low, count

    def costs(self, edge: IntArray, deadline: FloatArray) -> FloatArray:
        """Return the least joules with each deadline, (R, N, C), at as many edges, (R,), or infinity."""
        entry, edges, real = self.entry[edge], self.edges, self.real[edge][..., None]
        allowed = np.minimum((deadline - self.shift[edge])[:, None], edges.most_s[entry]) - edges.before_s[entry]
        left = allowed[..., None] - self.seconds[edge]
        every = np.broadcast_to(entry[..., None], left.shape).ravel()
        part = edges.part(every, np.zeros(len(every), dtype=np.intp), 1, edges.weight)
        used = part.least_j(left.ravel()).reshape(left.shape) + self.joules[edge]
        used = np.where(used <= edges.most_j[entry][..., None], used, np.inf)
        return np.where(real, used, np.where(self.count[edge] == 0, 0.0, np.inf))

    def greedy(self, edge: IntArray, costs: FloatArray) -> tuple[FloatArray, IntArray, FloatArray]:
        """Return the least sums of costs, (R,), their blocks, (R, N), and a lower bound on the sums, (R,)."""
        rows, n, width = costs.shape
        finite = np.isfinite(costs)
        least = finite.argmax(axis=2)
        spare = self.blocks - (self.low[edge] + least).sum(axis=1)
        possible = np.all(finite.any(axis=2), axis=1) & (spare >= 0)
        gains = costs[..., :-1] - costs[..., 1:]
        within = (np.arange(width - 1) >= least[..., None]) & finite[..., 1:]
        gains = np.minimum.accumulate(np.where(within, np.maximum(gains, 0.0), np.inf), axis=2)
        gains = np.where(within, gains, -1.0).reshape(rows, -1)
        order = np.argsort(-gains, axis=1, kind="stable")
        chosen = np.zeros(gains.shape, dtype=np.bool_)
        np.put_along_axis(chosen, order, np.arange(gains.shape[1]) < spare[:, None], axis=1)
        chosen &= gains >= 0
        index = least + chosen.reshape(rows, n, -1).sum(axis=2)
        price = np.where(chosen, gains, np.inf).min(axis=1, initial=np.inf)
        price = np.where(np.isfinite(price), price, gains.max(axis=1, initial=0.0))
        priced = costs + price[:, None, None] * self.count[edge]
        value = np.take_along_axis(costs, index[..., None], axis=2)[..., 0].sum(axis=1)
        bound = priced.min(axis=2).sum(axis=1) - price * self.blocks
        return np.where(possible, value, np.inf), self.low[edge] + index, np.where(possible, bound, np.inf)

    def look(self, group: IntArray, end: FloatArray, width: FloatArray | None) -> FloatArray:
        """Keep the best choices at these deadlines, (I,), and return bounds of the intervals of a width before them."""
        at_once = max(1, MOST_NUMBERS // (self.size * self.count[0].size))
        value, bound, blocks = [], [], []
        for i in range(0, len(group), at_once):
            piece = slice(i, i + at_once)
            edge = (group[piece, None] * self.size + np.arange(self.size)).ravel()
            late = np.repeat(end[piece], self.size)
            costs = self.costs(edge, late)
            best, choice, line = self.greedy(edge, costs)
            if width is not None:
                later = self.costs(edge, late + 1e-2 * np.repeat(width[piece], self.size))
                slope = np.where(np.isfinite(costs), np.maximum(costs - later, 0.0) * 1e2, 0.0)
                line = self.greedy(edge, costs + slope)[2]
            value.append(best.reshape(-1, self.size).sum(axis=1))
            bound.append(line.reshape(-1, self.size).sum(axis=1))
            blocks.append(choice.reshape(-1, self.size, choice.shape[1]))
        used = np.concatenate(value)
        total = used + self.weight[group] * end
        order = np.lexsort((total, group))
        first = order[np.diff(group[order], prepend=-1) > 0]
        first = first[total[first] < self.best[group[first]]]
        self.best[group[first]] = total[first]
        edge = (group[first, None] * self.size + np.arange(self.size)).ravel()
        self.chosen[edge] = np.concatenate(blocks)[first].reshape(len(edge), self.chosen.shape[1])
        if width is None:
            return total
        begin = self.weight[group] * (end - width)
        return np.maximum(used + begin, np.minimum(total, np.concatenate(bound) + begin))

    def leave_out(self) -> None:
        """Leave out the counts that cost more than the gap."""
        edges, point = self.edges, self.relaxed
        (t, j), (_, e) = edges.upload(point.share), edges.run(point.setting)
        value = np.add.reduceat(np.bincount(edges.node, j + e), np.arange(0, edges.count, self.size))
        value = value + self.weight * point.deadline_s
        gap = np.repeat(self.best - value + MARGIN * np.abs(value), self.size)
        second, joule = point.time_price + point.late_price, 1 + point.energy_price
        least = joule * j + second * t + point.share_price[edges.node] * point.share
        dear = joule[self.entry][..., None] * self.joules + second[self.entry][..., None] * self.seconds
        dear = dear + point.share_price[:, None, None] * self.count / self.blocks - least[self.entry][..., None]
        near = (dear <= gap[:, None, None]) | (self.count == self.chosen[..., None])
        low = self.low + near.argmax(axis=2)
        high = self.low + near.shape[2] - 1 - near[..., ::-1].argmax(axis=2)
        self.tabulate(np.where(self.real, low, 0), np.where(self.real, high, 0))

    def run(self) -> FloatArray:
        """Return the shares, (D,); NaN where there are none."""
        group = np.flatnonzero(self.alive)
        if not len(group):
            return np.full(len(self.edges.node), np.nan)
        self.look(np.repeat(group, len(LATER)), np.outer(self.relaxed.deadline_s[group], LATER).ravel(), None)
        self.alive &= np.isfinite(self.best)
        self.leave_out()
        last = 1.001 * self.best / self.weight
        ends = self.relaxed.deadline_s[:, None] * np.concatenate([[0], 1 - NEAR[::-1], [1], 1 + NEAR, FAR])
        ends = np.maximum(np.minimum(ends, last[:, None]), self.floor[:, None])
        width, end = np.diff(ends, axis=1), ends[:, 1:]
        going = (width > 0) & self.alive[:, None]
        group, width, end = np.nonzero(going)[0], width[going], end[going]
        for _ in range(MOST_LEVELS):
            if not len(group):
                break
            going = self.look(group, end, width) < self.best[group] * (1 - CLOSE)
            group, width = np.repeat(group[going], PIECES), np.repeat(width[going] / PIECES, PIECES)
            end = (end[going, None] - np.arange(PIECES) * width.reshape(-1, PIECES)).ravel()
        share = self.chosen[self.place] / self.blocks
        return np.where(np.repeat(self.alive, self.size)[self.edges.node], share, np.nan)
