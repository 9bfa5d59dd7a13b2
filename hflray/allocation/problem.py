"""The problems of edges with any access and compute, and what the parts say about them (`hflray.allocation.exact`).

Two functions prove that no shares and settings keep the limits of an edge, so that its iteration can end
(`hflray.allocation.interior`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from hflray.physics.base import Access, Compute, Device, Link, Work, own_form
from hflray.support.arrays import BoolArray, FloatArray, IntArray

STEP = 1e-4  # of the differences, in log x and log u
SURE = 1e-6  # relative, by which a proof must hold

Rows = tuple[FloatArray, FloatArray, FloatArray]  # values and the first and second derivatives of each entry

Columns = dict[str, FloatArray]


@dataclass(frozen=True, eq=False)
class EdgeProblems:
    """The problems of E edges as flat arrays over D entries, each a device at an edge, sorted by edge.

    Attributes:
        access, compute: how the devices upload and compute.
        link, device, work: what the parts get, of each entry, (D,).
        node: the edge of each entry, (D,), ascending, from 0 to E-1; an edge may be without devices.
        count: E.
        bits: what a device uploads in an edge iteration.
        weight: λ of each edge, (E,), J/s.
        before_s: what passes before each device can compute, (D,), s.
        most_j: the most joules of a device in an edge iteration, (D,), J, or infinity.
        most_s: the most seconds of a device in an edge iteration, `before_s` included, (D,), s, or infinity.
    """

    access: Access
    compute: Compute
    link: Link
    device: Device
    work: Work
    node: IntArray
    count: int
    bits: float
    weight: FloatArray
    before_s: FloatArray
    most_j: FloatArray
    most_s: FloatArray

    def part(self, entries: Any, node: IntArray, count: int, weight: FloatArray) -> EdgeProblems:
        """Return the problem of some entries, with new numbers of their edges."""
        return replace(
            self, link=self.link.take(entries), device=self.device.take(entries), work=self.work.take(entries),
            before_s=self.before_s[entries], most_j=self.most_j[entries], most_s=self.most_s[entries],
            node=node, count=count, weight=weight,
        )  # fmt: skip

    def upload(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the seconds and the joules, (D,), of uploads with these shares, (D,)."""
        return self.access.upload(share, self.link, self.bits)

    def run(self, setting: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the seconds and the joules, (D,), of computing with these settings, (D,)."""
        return self.compute.run(setting, self.device, self.work)

    def least_j(self, seconds: FloatArray) -> FloatArray:
        """Return the least joules, (D,), of computing within some seconds, (D,); infinite where these are too few."""
        if self.compute.has_setting:
            form = own_form(self.compute, "least_j", "run")
            if form is not None:
                return cast(FloatArray, form(seconds, self.device, self.work))
            setting = setting_for(self, 0, seconds)
            late = ~np.isfinite(setting)
            used = self.run(np.where(late, 1.0, setting))[1]
        else:
            took, used = self.run(np.ones(len(seconds)))
            late = ~(took <= seconds)
        return np.where(late, np.inf, used)


@dataclass(frozen=True, eq=False)
class Iterate:
    """Where the iteration ended.

    Attributes:
        share: of each entry, (D,).
        setting: of each entry, (D,).
        time_price: what a second less of each entry alone would save, (D,), J/s.
        late_price, energy_price: what a second more of `most_s`, J/s, and a joule more of `most_j` would save, (D,).
        share_price: μ of each edge, (E,), J.
        deadline_s: T of each group, (G,), s.
        converged: of each group, (G,).
    """

    share: FloatArray
    setting: FloatArray
    time_price: FloatArray
    late_price: FloatArray
    energy_price: FloatArray
    share_price: FloatArray
    deadline_s: FloatArray
    converged: BoolArray


class Layout:
    """Which entries belong to which edge and group, and what parts say around their shares and settings."""

    def __init__(self, edges: EdgeProblems, node: IntArray, entries: Any, together: bool) -> None:
        self.edges, self.node, self.together = edges, node, together
        self.first = np.flatnonzero(np.diff(node, prepend=-1))
        self.link, self.device = edges.link.take(entries), edges.device.take(entries)
        self.work = edges.work.take(entries)
        self.most = edges.compute.most(self.device) if edges.compute.has_setting else np.ones(len(node))
        self.form = own_form(edges.compute, "derivatives", "run")

    def group(self, values: Any, reduce: Any = np.add) -> Any:
        """Return the sums, (..., G), over the edges, (..., E), of each group."""
        return reduce.reduce(values, axis=-1, keepdims=True) if self.together else values

    def total(self, values: Any, reduce: Any = np.add) -> Any:
        """Return the sums, (..., G), over the entries, (..., D), of each group."""
        return self.group(reduce.reduceat(values, self.first, axis=-1), reduce)

    def entries(self, of_groups: Any) -> Any:
        """Return the value of each entry's group, (D,)."""
        return np.broadcast_to(of_groups, self.node.shape) if self.together else of_groups[self.node]

    def uploads(self, share: FloatArray, derive: bool) -> tuple[Rows, Rows]:
        """Return the seconds' and the joules' values and derivatives by log x, (D,) each."""
        access, bits = self.edges.access, self.edges.bits
        if not derive:
            return _constant(access.upload(share, self.link, bits), share)
        return _differences(lambda x: access.upload(x, self.link, bits), share, np.ones_like(share))

    def computes(self, setting: FloatArray, derive: bool = True) -> tuple[Rows, Rows]:
        """Return the seconds' and the joules' values and derivatives by log u, (D,) each."""
        compute = self.edges.compute
        if not (derive and compute.has_setting):
            return _constant(compute.run(setting, self.device, self.work), setting)
        if self.form is not None:
            return cast(tuple[Rows, Rows], self.form(setting, self.device, self.work))
        return _differences(lambda u: compute.run(u, self.device, self.work), setting, self.most)


def _constant(answers: Any, at: FloatArray) -> tuple[Rows, Rows]:
    zero = np.zeros(len(at))
    seconds, joules = (np.asarray(answer, dtype=np.float64) for answer in answers)
    return (seconds, zero, zero), (joules, zero, zero)


def _differences(part: Any, at: FloatArray, most: FloatArray) -> tuple[Rows, Rows]:
    """Return the values of a part's two answers and their derivatives by log of `at`, without a call above `most`."""
    centre = np.minimum(at, most * np.exp(-STEP))
    away = np.log(at / centre) if (centre < at).any() else None
    rows: list[Rows] = []
    for low, value, high in zip(part(centre * np.exp(-STEP)), part(centre), part(centre * np.exp(STEP)), strict=True):
        first, second = (high - low) / (2 * STEP), ((high - value) - (value - low)) / STEP**2
        if away is not None:
            value, first = value + away * (first + away / 2 * second), first + away * second
        rows.append((value, first, second))
    return rows[0], rows[1]


def setting_for(edges: EdgeProblems, answer: int, target: FloatArray) -> FloatArray:
    """Return the settings, (D,), at which computing takes `target` seconds (answer 0) or joules (answer 1).

    A secant in logarithms, which is exact for a power law, between bounds that a bisection narrows.

    Returns:
        Infinity where even the largest setting takes more seconds; the largest where it takes fewer joules; 0 where
        no setting is slow enough for these joules, and a setting near 0 where none is slow enough for these seconds.
    """
    most = np.log(edges.compute.most(edges.device))
    sign = -1.0 if answer == 0 else 1.0
    with np.errstate(all="ignore"):
        goal = np.log(target)

        def value(at: FloatArray) -> FloatArray:
            return np.asarray(sign * (np.log(edges.run(np.exp(at))[answer]) - goal))

        low, high = most - 70.0, most.copy()
        top, bottom = value(high), value(low)
        x0, f0, x1, at = high, top, high - 0.5, high
        for _ in range(70):
            x1 = np.where((x1 >= low) & (x1 <= high), x1, (low + high) / 2)
            f1 = value(x1)
            high, low = np.where(f1 >= 0, x1, high), np.where(f1 <= 0, x1, low)
            at = x1
            if not ((np.abs(f1) > 1e-12) & (high - low > 1e-14)).any():
                break
            slope = (f1 - f0) / (x1 - x0)
            x0, f0, x1 = x1, f1, np.where(slope > 0, x1 - f1 / slope, np.nan)
            x1 = np.where(np.abs(f1) <= 1e-12, at, x1)
        answer_at = np.exp(at)
        if answer == 0:
            answer_at = np.where(top < -1e-9, np.inf, answer_at)  # even the largest setting is too slow
            return np.asarray(np.where(target > 0, np.where(bottom > 0, np.exp(most - 70.0), answer_at), np.inf))
        answer_at = np.where(top <= 0, np.exp(most), answer_at)
        return np.asarray(np.where((bottom > 0) | ~(target > 0), 0.0, answer_at))


def hopeless(lay: Layout, d: Columns, e_: Columns, looked: Any) -> BoolArray:
    """Return for which groups, (G,), the prices prove that the limits cannot be met, or `least_shares` does.

    However the shares and the settings are chosen, the priced sum of what passes the limits stays above 0. It is
    convex in the shares and in the seconds of computing, so that its slopes at the present point bound it.
    """
    (t, tp, _), (j, jp, _), (s, su, _), (e, eu, _) = looked
    took, used = d["before"] + t + s, j + e
    over = np.where(np.isfinite(d["most_s"]), d["rho"] * (took - d["most_s"]), 0.0)
    over = over + np.where(np.isfinite(d["most_j"]), d["nu"] * (used - d["most_j"]), 0.0)
    size = d["rho"] * took + d["nu"] * used
    if "mu" in e_:
        slope = d["rho"] * tp + d["nu"] * jp + e_["mu"][lay.node] * d["x"]
        over = over - np.where(slope > 0, slope, -slope * (1 - d["x"]) / d["x"])
    if lay.edges.compute.has_setting:
        slope = d["rho"] + d["nu"] * eu / su  # by the seconds
        left = d["most_s"] - d["before"] - s
        slower = np.where(np.isfinite(left), -slope * np.maximum(left, 0.0), d["nu"] * e)
        over = over - np.where(slope > 0, slope * (s - d["least_s"]), slower)
    sums = lay.total(np.array([over, size]))
    if "mu" in e_:
        sums = sums + lay.group(e_["mu"] * np.array([e_["re"] - e_["we"], np.ones_like(e_["re"])]))
    return np.asarray((sums[0] > SURE * sums[1]) | (lay.group(e_["least"], np.maximum) > 1 + SURE))


def least_shares(lay: Layout, d: Columns) -> FloatArray:
    """Return a lower bound on the sum of the shares, (E,), that the entries need, each to keep its limits alone.

    Newton's steps in logarithms come near these shares, and the tangents there bound them.
    """
    x, limits = d["x"], (np.maximum(d["most_s"] - d["before"] - d["least_s"], 0.0), d["most_j"])
    for is_last in (False, False, False, True):
        moves = []
        for (value, first, _), limit in zip(lay.uploads(x, True), limits, strict=True):
            move = (value - limit if is_last else np.log(value / limit) * value) / np.maximum(-first, 0.0)
            moves.append(np.where(np.isnan(move), -1.0 if is_last else 0.0, move))
        move = np.maximum(*moves)
        x = x * (np.maximum(1 + move, 0.0) if is_last else np.exp(np.clip(move, -4.0, 4.0)))
    return np.asarray(np.add.reduceat(np.where(limits[0] > 0, x, np.inf), lay.first))
