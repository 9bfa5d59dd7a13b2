"""When an edge iteration ends: when all devices have arrived, or at a limit (``clock.edge``)."""

from __future__ import annotations

import math

import numpy as np

from hflray.config.clock import EdgeClockConfig
from hflray.support.arrays import FloatArray, IntArray

WAITS = EdgeClockConfig()  # the edge waits for all


def arrivals(rule: EdgeClockConfig, devices: IntArray) -> IntArray:
    """Return how many arrivals end an iteration, (M,), for edges with so many assigned devices."""
    if rule.first is None:
        return devices
    if isinstance(rule.first, int):
        return np.minimum(rule.first, devices)
    # Rounding must not turn a share of 0.1 of 30 devices into 4 of them.
    return np.asarray(np.ceil(rule.first * devices - 1e-9), dtype=np.intp)


def planned_s(rule: EdgeClockConfig, edges: IntArray, delay_s: FloatArray, num_edges: int) -> FloatArray:
    """Return how long an edge iteration takes as planned, limits included, (M,), s; 0 without devices.

    Args:
        rule: when it ends.
        edges: the edge of each scheduled device, (H,).
        delay_s: planned seconds of each in an edge iteration, (H,).
        num_edges: M.
    """
    slowest_s = np.zeros(num_edges)
    np.maximum.at(slowest_s, edges, delay_s)
    ends_s = np.minimum(slowest_s, math.inf if rule.deadline_s is None else rule.deadline_s)
    if rule.deadline is not None:
        ends_s = np.minimum(ends_s, rule.deadline * slowest_s)
    if rule.first is not None:
        needed = arrivals(rule, np.bincount(edges, minlength=num_edges))
        ends_s = np.minimum(ends_s, nth_arrival_s(edges, delay_s, needed))
    return np.asarray(ends_s)


def nth_arrival_s(edges: IntArray, arrival_s: FloatArray, needed: IntArray) -> FloatArray:
    """Return when the arrival number `needed` (M,) of each edge happens, (M,), s; infinity where fewer arrive."""
    order = np.lexsort((arrival_s, edges))
    ordered = edges[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    nth = rank == needed[ordered] - 1
    nth_s = np.full(len(needed), np.inf)
    nth_s[ordered[nth]] = arrival_s[order[nth]]
    return nth_s
