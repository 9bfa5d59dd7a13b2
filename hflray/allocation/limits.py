"""Proofs that no shares and settings keep the limits of an edge, so that its iteration can end (`interior`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray.allocation.problem import Columns, Layout
from hflray.support.arrays import BoolArray, FloatArray

SURE = 1e-6  # relative, by which a proof must hold


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
