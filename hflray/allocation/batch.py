"""Many edges at once: ragged groups as flat arrays and offsets, over Python threads.

The kernels hold no interpreter lock, so that a thread a core is parallel; each edge is solved by itself, so that the
answer does not depend on how many threads there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from hflray.allocation.kernels.bundles import Edges, JointSolution, Solution
from hflray.allocation.kernels.edges import certify_edges, new_feasible, new_solution, solve_edges
from hflray.arrays import FloatArray, IntArray

TOL = 1e-10  # KKT residual asked for; Newton's last step mostly lands near 1e-14
THREADED = 4096  # devices in a batch above which threads pay for themselves


def solve_batch(
    edges: Edges, delay_weight: FloatArray, warm: Solution | None = None, threads: int | None = None
) -> Solution:
    """Solve a ragged batch of edges. Nothing is checked here; `hflray.allocation.newton` does that.

    Args:
        edges: the problems.
        delay_weight: λ of each edge, (e,), J/s.
        warm: a solution of a neighbouring batch of the same shape to start from.
        threads: None: all cores for a large batch, one for a small one.
    """
    solution = new_solution(len(edges.devices.snr), len(edges.bandwidth))
    if warm is not None:
        for ours, theirs in zip(solution.unknowns, warm.unknowns, strict=True):
            ours[:] = theirs

    def run(first: int, last: int) -> None:
        solve_edges(edges, delay_weight, first, last, warm is not None, TOL, solution)

    over_threads(run, edges.offsets, threads)
    return solution


def finish(edges: Edges, found: JointSolution, delay_weight: FloatArray) -> Solution:
    """Make a solution, with its certificate, of what `kernels.joint.solve_joint` found.

    Args:
        edges, found: as given to it.
        delay_weight: λ of each edge that it found, (e,), J/s.
    """
    feasible = new_feasible(len(edges.devices.snr), len(edges.bandwidth))
    certify_edges(edges, delay_weight, found.unknowns, feasible)
    return Solution(found.unknowns, found.residual, found.evaluations, feasible)


def over_threads(run: Callable[[int, int], None], offsets: IntArray, threads: int | None = None) -> None:
    """Call ``run(first, last)`` on consecutive ranges of edges that hold about as many devices each."""
    edges, devices = len(offsets) - 1, int(offsets[-1])
    if threads is None:
        threads = len(os.sched_getaffinity(0)) if devices >= THREADED else 1
    if threads <= 1 or edges <= 1:
        run(0, edges)
        return
    pieces = min(edges, 4 * threads)  # a few pieces a thread: edges differ in how hard they are
    cuts = np.searchsorted(offsets, np.linspace(0, devices, pieces + 1)[1:-1])
    ends = np.unique(np.concatenate([[0], cuts, [edges]]))
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run, int(i), int(j)) for i, j in pairwise(ends)]:
            done.result()
