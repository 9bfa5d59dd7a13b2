"""The assigners that TSDP is about: the least delay of a round where an edge's devices share its bandwidth equally.

The delay of a device depends on its edge and on how many devices that edge has, and on nothing else. With two edges
and a given number at the first, the best division follows from two sorted lists: a device must go to the first edge if
it would be too slow at the second, and the other way round. `divide` tries each number and each threshold by bisection,
O(H² log H). The paper's own algorithm is a dynamic programme over two sorted lists, which we have not seen in full;
both find the global optimum, which `Exhaustive` checks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from hflray.assignment.simple import BestGain
from hflray.cost import Workload, check_assignment, hops
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray

MOST_PLANS = 1 << 20


class TwinSorting:
    """The assignment of the least round delay with two edges; with more, of pairs of edges in turns.

    With three and more edges it begins with the strongest links. Then it divides the devices of the slowest edge and of
    another one anew, if that lowers the larger delay of the two, until no pair with the slowest edge gains. This is our
    reading of the paper's "TSDP-assisted" algorithm, of which we know the abstract only.
    """

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        delays = delays_s(fleet, work, devices)
        num_edges, _, count = delays.shape
        if num_edges == 1:
            return np.zeros(count, dtype=np.intp)
        if num_edges == 2:
            return np.where(divide(delays)[0], 0, 1)
        plan = BestGain().assign(fleet, work, devices, rng)
        while True:
            slowness = slowness_s(delays, plan)
            slowest = int(slowness.argmax())
            for other in np.argsort(slowness, kind="stable"):
                members = np.flatnonzero((plan == slowest) | (plan == other))
                if other == slowest or not len(members):
                    continue
                first, value = divide(delays[[slowest, other]][:, : len(members) + 1, members])
                if value < slowness[slowest] * (1 - 1e-12):
                    plan[members] = np.where(first, slowest, other)
                    break
            else:
                return plan


class Exhaustive:
    """The assignment of the least round delay, by trying all Mᴴ of them; for small H only."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices.

        Raises:
            ConfigError: an index is outside the fleet, or there are more than `MOST_PLANS` assignments.
        """
        delays = delays_s(fleet, work, devices)
        num_edges, _, count = delays.shape
        if num_edges**count > MOST_PLANS:
            raise ConfigError(
                f"scheduling.num_scheduled: {num_edges} edges and {count} devices have {num_edges**count:,} "
                f"assignments; accepted: up to {MOST_PLANS:,}; lower num_scheduled or fleet.num_edges"
            )
        plans = np.arange(num_edges**count)[:, None] // num_edges ** np.arange(count) % num_edges
        worst = np.zeros(len(plans))
        for edge in range(num_edges):
            at = plans == edge
            sizes = at.sum(axis=1)
            np.maximum(worst, np.where(at, delays[edge][sizes], delays[edge, 0, :1]).max(axis=1), out=worst)
        return np.asarray(plans[worst.argmin()], dtype=np.intp)


def delays_s(fleet: Fleet, work: Workload, devices: ArrayLike) -> FloatArray:
    """Return the round's delay of each device at each edge by the number of devices there, (M, H + 1, H), s.

    The row of no device holds the edge's hop to the cloud, which an edge without devices has too.
    """
    scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
    hop_s, _ = hops(fleet, work)
    computers, most_hz = fleet.computers(scheduled), fleet.max_cpu_hz[scheduled]
    compute_s = fleet.compute.run(most_hz, computers, work.computing(fleet.samples[scheduled]))[0]
    count = len(scheduled)
    delays = np.tile(hop_s[:, None, None], (1, count + 1, count))
    for edge in range(fleet.num_edges):
        link = fleet.uplinks(scheduled, np.full(count, edge))
        for number in range(1, count + 1):
            part = replace(link, bandwidth_hz=link.bandwidth_hz / number)
            upload_s, _ = fleet.access.upload(np.ones(count), part, work.device_bits)
            delays[edge, number] += work.edge_iterations * (upload_s + compute_s)
    return delays


def divide(delays: FloatArray) -> tuple[np.ndarray, float]:
    """Return which devices go to the first of two edges, (H,), so that the larger delay is least, and that delay, s.

    Args:
        delays: of both edges by their number of devices, (2, H + 1, H), s.
    """
    count = delays.shape[2]
    best, chosen = np.inf, np.zeros(count, dtype=np.bool_)
    for number in range(count + 1):
        first_s, second_s = delays[0, number], delays[1, count - number]
        # All thresholds that can decide, sorted; the least one that leaves a device a place is found by bisection.
        levels = np.unique(
            np.concatenate([first_s if number else first_s[:1], second_s if count - number else second_s[:1]])
        )
        low, high = 0, len(levels)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if _fits(first_s, second_s, number, levels[middle]) else (middle + 1, high)
        if low < len(levels) and levels[low] < best:
            best = float(levels[low])
            must = second_s > best
            free = np.flatnonzero(~must & (first_s <= best))
            chosen = must.copy()
            chosen[free[: number - int(must.sum())]] = True
    return chosen, best


def _fits(first_s: FloatArray, second_s: FloatArray, number: int, level: float) -> bool:
    """Return whether `number` devices can go to the first edge, so that no device is slower than `level`, s."""
    late_here, late_there = first_s > level, second_s > level
    if number == 0:  # the first edge is empty, and its delay is its hop
        return bool(first_s[0] <= level and not late_there.any())
    if number == len(first_s):
        return bool(second_s[0] <= level and not late_here.any())
    return bool(not (late_here & late_there).any() and late_there.sum() <= number <= len(first_s) - late_here.sum())


def slowness_s(delays: FloatArray, plan: IntArray) -> FloatArray:
    """Return the delay of each edge under a plan, (M,), s."""
    sizes = np.bincount(plan, minlength=len(delays))
    return np.array([
        delays[edge, size][plan == edge].max() if size else delays[edge, 0, 0] for edge, size in enumerate(sizes)
    ])  # fmt: skip
