"""Solve many edges in Python threads; the devices of all edges lie in flat arrays, and offsets separate the edges.

The kernels release the interpreter lock, so the threads run in parallel. Each edge is solved independently, so the
number of threads does not change the solution.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from hflray.allocation.kernels.bundles import Edges, JointSolution, Solution
from hflray.allocation.kernels.edges import certify_edges, new_feasible, new_solution, solve_edges
from hflray.support.arrays import FloatArray, IntArray

TOL = 1e-10  # largest accepted KKT residual; Newton's last step mostly ends near 1e-14
THREADED = 4096  # batches of more devices are faster with threads


def solve_batch(
    edges: Edges, delay_weight: FloatArray, warm: Solution | None = None, threads: int | None = None
) -> Solution:
    """Return the solution of a batch of edges. The values are not checked; `hflray.allocation.newton` does that.

    Args:
        edges: the problems.
        delay_weight: λ of each edge, (e,), J/s.
        warm: the solution of a similar batch of the same shape, from which the iterations start.
        threads: number of threads; None takes all cores for a large batch and one for a small batch.
    """
    solution = new_solution(len(edges.devices.snr), len(edges.bandwidth))
    if warm is not None:
        for unknown, start in zip(solution.unknowns, warm.unknowns, strict=True):
            unknown[:] = start

    def run(first: int, last: int) -> None:
        solve_edges(edges, delay_weight, first, last, warm is not None, TOL, solution)

    over_threads(run, edges.offsets, threads)
    return solution


def finish(edges: Edges, joint: JointSolution, delay_weight: FloatArray) -> Solution:
    """Return the solution that `kernels.joint.solve_joint` has written, with its certificate.

    Args:
        edges, joint: as for `solve_joint`.
        delay_weight: λ_m of each edge in `joint`, (e,), J/s.
    """
    feasible = new_feasible(len(edges.devices.snr), len(edges.bandwidth))
    certify_edges(edges, delay_weight, joint.unknowns, feasible)
    return Solution(joint.unknowns, joint.residual, joint.evaluations, feasible)


def over_threads(run: Callable[[int, int], None], offsets: IntArray, threads: int | None = None) -> None:
    """Call ``run(first, last)`` on consecutive ranges of edges that hold about as many devices each."""
    edges, devices = len(offsets) - 1, int(offsets[-1])
    if threads is None:
        threads = len(os.sched_getaffinity(0)) if devices >= THREADED else 1
    if threads <= 1 or edges <= 1:
        run(0, edges)
        return
    pieces = min(edges, 4 * threads)  # several pieces per thread, because edges take different times
    cuts = np.searchsorted(offsets, np.linspace(0, devices, pieces + 1)[1:-1])
    ends = np.unique(np.concatenate([[0], cuts, [edges]]))
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(run, int(i), int(j)) for i, j in pairwise(ends)]:
            future.result()
