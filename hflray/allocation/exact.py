"""One exact allocator for every pair of an access and a compute: the least joules plus λ times the deadline.

`solve` treats each edge alone, and `solve_together` gives all edges one deadline. Both rest on the interior-point
iteration of `hflray.allocation.interior`; where shares are whole blocks, `hflray.allocation.blocks` finds the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from hflray.allocation.blocks import block_shares
from hflray.allocation.interior import TOL, minimise
from hflray.allocation.problem import EdgeProblems, Iterate, setting_for
from hflray.support.arrays import BoolArray, FloatArray, IntArray

__all__ = ["EdgeOptima", "EdgeProblems", "least_needs", "solve", "solve_together"]

SLACK = 1e-7  # by which a limit may be missed, relative to it; rounding and the iteration's tolerance stay below


@dataclass(frozen=True, eq=False)
class EdgeOptima:
    """The allocation of E edges with D entries.

    Attributes:
        share: the share of the node's resource, (D,); 1 where it is not shared.
        setting: of the computing, (D,); NaN where nothing is chosen.
        compute_s, compute_j: the seconds and joules of computing, (D,).
        upload_s, upload_j: the seconds and joules of the upload, (D,).
        time_price: what a second less of each entry alone would save, (D,), J/s.
        deadline_s: the largest seconds of an edge's entries, (E,), s; 0 without entries.
        energy_j: the joules of an edge's entries, (E,), J.
        objective: the joules and λ times the deadline, (E,), J.
        share_price: what a share of 1 more would save, (E,), J; 0 where nothing is shared.
        feasible: whether an edge can meet its limits, (E,); the other columns of one that cannot are NaN or infinite.
    """

    share: FloatArray
    setting: FloatArray
    compute_s: FloatArray
    compute_j: FloatArray
    upload_s: FloatArray
    upload_j: FloatArray
    time_price: FloatArray
    deadline_s: FloatArray
    energy_j: FloatArray
    objective: FloatArray
    share_price: FloatArray
    feasible: BoolArray


def solve(edges: EdgeProblems, tolerance: float = TOL, whole: bool = True) -> EdgeOptima:
    """Return the optimum of each edge alone.

    The joules plus λ times the deadline are least among shares that add up to 1 at most and settings up to the largest,
    so that each entry keeps its limits.

    Args:
        edges: the problems.
        tolerance: how far an objective may be from the optimum, relative to it.
        whole: False: blocks may be split, so that objectives are lower bounds, in a hundredth of the time.
    """
    present, packed = pack(edges)
    if not packed.count:
        return _finish(edges, present, packed, None)
    shift, floor = np.zeros(len(packed.node)), np.zeros(packed.count)
    share, lost = _blocks(packed, packed.weight, np.zeros(packed.count), floor, False, whole)
    point = minimise(packed, packed.weight, shift, floor, False, share, tolerance)
    point.converged[lost] = False
    return _finish(edges, present, packed, point, whole)


def solve_together(
    edges: EdgeProblems, iterations: float, hop_s: FloatArray, weight: float, tolerance: float = TOL, whole: bool = True
) -> EdgeOptima:
    """Return the optimum of all edges under one deadline: Σ iterations · joules + weight · max (iterations · T + hop).

    Args:
        edges: the problems; their weights are not used.
        iterations: the edge iterations of a round.
        hop_s: what each edge takes besides, (E,), s; it counts for an edge without entries too.
        weight: λ, J/s.
        tolerance, whole: as in `solve`.

    Returns:
        The allocation, whose `objective` is each edge's joules and λ times its deadline, of one edge iteration. If any
        edge is infeasible, all are solved as in `solve`.
    """
    present, packed = pack(edges)
    if not packed.count:
        return _finish(edges, present, packed, None)
    shift = hop_s[present] / iterations
    empty = np.setdiff1d(np.arange(edges.count), present)
    floor = np.array([max(0.0, float(hop_s[empty].max(initial=0.0)) / iterations)])
    weights = replace(edges, weight=np.full(edges.count, float(weight)))
    share, lost = _blocks(packed, np.array([float(weight)]), shift, floor, True, whole)
    point = minimise(packed, np.array([float(weight)]), shift[packed.node], floor, True, share, tolerance)
    if not point.converged[0] or lost.size:
        return solve(weights, tolerance, whole)
    point = replace(point, converged=np.ones(packed.count, dtype=np.bool_))
    return _finish(weights, present, replace(packed, weight=weights.weight[present]), point, whole)


def pack(edges: EdgeProblems) -> tuple[IntArray, EdgeProblems]:
    """Return the edges that have entries, and their problems."""
    present, node = np.unique(edges.node, return_inverse=True)
    return present, replace(edges, node=node.astype(np.intp), count=len(present), weight=edges.weight[present])


def _blocks(
    packed: EdgeProblems, weight: FloatArray, shift: FloatArray, floor: FloatArray, together: bool, whole: bool
) -> tuple[FloatArray | None, IntArray]:
    """Return the shares of an access with blocks, (D,), or None, and the edges for which there are none."""
    if not packed.access.shared or packed.access.blocks is None:
        return None, np.empty(0, dtype=np.intp)
    if not whole:
        return None, np.flatnonzero(np.bincount(packed.node) > packed.access.blocks)
    share = block_shares(packed, weight, shift, floor, together)
    return np.where(np.isnan(share), 1.0, share), np.unique(packed.node[np.isnan(share)])


def _finish(
    edges: EdgeProblems, present: IntArray, packed: EdgeProblems, point: Iterate | None, whole: bool = True
) -> EdgeOptima:
    """Return a point as an allocation that keeps every constraint; see `solve` for `whole`."""
    is_whole = whole and edges.access.blocks is not None
    n, count = len(edges.node), edges.count
    per_entry, per_edge = np.full((7, n), np.nan), np.zeros((4, count))
    feasible = np.ones(count, dtype=np.bool_)
    if point is not None:
        share = np.where(np.isfinite(point.share), point.share, 1.0)
        setting = point.setting
        if packed.compute.has_setting:
            setting = np.where(np.isfinite(setting), setting, packed.compute.most(packed.device))
        first = np.flatnonzero(np.diff(packed.node, prepend=-1))
        if edges.access.shared and not is_whole:
            share = share / np.add.reduceat(share, first)[packed.node]
        with np.errstate(all="ignore"):
            upload_s, upload_j = packed.upload(share)
            compute_s, compute_j = packed.run(setting)
            took = packed.before_s + upload_s + compute_s
            deadline = np.maximum.reduceat(took, first)
            if packed.compute.has_setting:  # who has time left computes more slowly, as the iteration left it to 1e-9
                left = np.minimum(deadline[packed.node], packed.most_s) - packed.before_s - upload_s
                slower = setting * np.minimum(compute_s / left, 1.0)
                slower_s, slower_j = packed.run(slower)
                better = (slower_s <= left * (1 + 1e-12)) & (slower_j <= compute_j)
                setting = np.where(better, slower, setting)
                compute_s, compute_j = np.where(better, [slower_s, slower_j], [compute_s, compute_j])
            took, used = packed.before_s + upload_s + compute_s, upload_j + compute_j
            within = (took <= packed.most_s * (1 + SLACK)) & (used <= packed.most_j * (1 + SLACK))
        good = point.converged & np.logical_and.reduceat(within, first)
        feasible[present] = good
        deadline, energy = np.maximum.reduceat(took, first), np.add.reduceat(used, first)
        rows = np.stack([deadline, energy, energy + packed.weight * deadline, point.share_price])
        per_edge[:, present] = np.where(good, rows, [[np.inf]] * 3 + [[np.nan]])
        per_entry[:] = share, setting, compute_s, compute_j, upload_s, upload_j, point.time_price
        per_entry[:, ~good[packed.node]] = np.nan
    names = [field.name for field in fields(EdgeOptima)]
    return EdgeOptima(**dict(zip(names, [*per_entry, *per_edge, feasible], strict=True)))


def least_needs(edges: EdgeProblems) -> tuple[FloatArray, FloatArray]:
    """Return the least joules within `most_s` and the least seconds within `most_j` of each entry alone, (D,) each.

    Alone it has all of its node. Joules are infinite where no joules suffice, and seconds likewise.
    """
    with np.errstate(all="ignore"):
        upload_s, upload_j = edges.upload(np.ones(len(edges.node)))
        if not edges.compute.has_setting:
            s, j = edges.run(np.ones(len(edges.node)))
            took, used = edges.before_s + upload_s + s, upload_j + j
            return np.where(took <= edges.most_s, used, np.inf), np.where(used <= edges.most_j, took, np.inf)
        slowest = setting_for(edges, 0, edges.most_s - edges.before_s - upload_s)
        fastest = setting_for(edges, 1, edges.most_j - upload_j)
        most = edges.compute.most(edges.device)
        joules = upload_j + edges.run(slowest)[1]
        seconds = edges.before_s + upload_s + edges.run(np.minimum(fastest, most))[0]
        return np.where(slowest <= most, joules, np.inf), np.where(fastest > 0, seconds, np.inf)
