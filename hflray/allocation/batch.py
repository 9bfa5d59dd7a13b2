"""Many edges at once: ragged groups as flat arrays and offsets, over Python threads.

The kernels hold no interpreter lock, so that a thread a core is parallel; each edge is solved by itself, so that the
answer does not depend on how many threads there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hflray.allocation.kernels.certificate import certify, certify_edges
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.arrays import FloatArray, IntArray

TOL = 1e-10  # KKT residual asked for; Newton's last step mostly lands near 1e-14
THREADED = 4096  # devices in a batch above which threads pay for themselves


@kernel
def solve_edges(
    offsets: IntArray,
    first: int,
    last: int,
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: FloatArray,
    weight: FloatArray,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    price: FloatArray,
    deadline: FloatArray,
    warm: bool,
    tol: float,
    residual: FloatArray,
    count: IntArray,
    b_out: FloatArray,
    f_out: FloatArray,
    energy: FloatArray,
    delay: FloatArray,
    bound: FloatArray,
) -> None:
    """Solve the edges `first` to `last` (`kernels.edge.solve_edge`), and certify each while its numbers are at hand
    (`certificate.certify`); edge e has the devices ``offsets[e]:offsets[e + 1]``."""
    scratch = scratch_for_edges(offsets, first, last)
    for e in range(first, last):
        i, j = offsets[e], offsets[e + 1]
        if j > i:
            price[e], deadline[e], residual[e], count[e], _ = solve_edge(
                snr[i:j],
                cycles[i:j],
                power[i:j],
                cap[i:j],
                bandwidth[e],
                weight[e],
                bits,
                alpha,
                x[i:j],
                y[i:j],
                price[e],
                deadline[e],
                warm,
                tol,
                scratch,
            )
            energy[e], delay[e], bound[e] = certify(
                j - i,
                scratch.reshape(-1),
                bandwidth[e],
                weight[e],
                bits,
                alpha,
                price[e],
                b_out[i:j],
                f_out[i:j],
            )


@dataclass(frozen=True, eq=False)
class BatchSolution:
    """Primal, dual and certificate of a batch; flat arrays (n,) over devices and (e,) over edges.

    Attributes:
        bandwidth_hz, cpu_hz: b and f, (n,).
        log_bandwidth, log_delay_price: ln b and ln π, (n,); with the next two, a warm start.
        log_bandwidth_price, log_deadline: ln μ and ln τ, (e,).
        energy_j, delay_s: of one edge iteration, (e,).
        bound_j: no allocation has a lower ``energy + weight·delay``, (e,).
        residual: largest KKT residual of each edge, (e,).
        count: evaluations, (e,).
    """

    bandwidth_hz: FloatArray
    cpu_hz: FloatArray
    log_bandwidth: FloatArray
    log_delay_price: FloatArray
    log_bandwidth_price: FloatArray
    log_deadline: FloatArray
    energy_j: FloatArray
    delay_s: FloatArray
    bound_j: FloatArray
    residual: FloatArray
    count: IntArray


def solve_batch(
    offsets: IntArray,
    snr_hz: FloatArray,
    cycles: FloatArray,
    power_w: FloatArray,
    max_cpu_hz: FloatArray,
    bandwidth_hz: FloatArray,
    delay_weight: FloatArray,
    model_bits: float,
    capacitance: float,
    warm: BatchSolution | None = None,
    threads: int | None = None,
) -> BatchSolution:
    """Solve a ragged batch of edges. Nothing is checked here; `hflray.allocation.newton` does that.

    Args:
        offsets: devices of edge e are ``offsets[e]:offsets[e + 1]``, (e + 1,).
        snr_hz, cycles, power_w, max_cpu_hz: over devices, (n,).
        bandwidth_hz, delay_weight: over edges, (e,).
        model_bits, capacitance: z and α.
        warm: a solution of a neighbouring batch of the same shape to start from.
        threads: None: all cores for a large batch, one for a small one.
    """
    n, edges = len(snr_hz), len(offsets) - 1
    x = np.zeros(n) if warm is None else warm.log_bandwidth.copy()
    y = np.zeros(n) if warm is None else warm.log_delay_price.copy()
    price = np.zeros(edges) if warm is None else warm.log_bandwidth_price.copy()
    deadline = np.zeros(edges) if warm is None else warm.log_deadline.copy()
    residual, count = np.zeros(edges), np.zeros(edges, dtype=np.intp)
    b, f, energy, delay, bound = np.empty(n), np.empty(n), np.zeros(edges), np.zeros(edges), np.zeros(edges)
    given = (snr_hz, cycles, power_w, max_cpu_hz, bandwidth_hz, delay_weight, float(model_bits), float(capacitance))

    def run(first: int, last: int) -> None:
        found = residual, count, b, f, energy, delay, bound
        solve_edges(offsets, first, last, *given, x, y, price, deadline, warm is not None, TOL, *found)

    over_threads(run, offsets, threads)
    return BatchSolution(b, f, x, y, price, deadline, energy, delay, bound, residual, count)


def finish(
    offsets: IntArray,
    snr_hz: FloatArray,
    cycles: FloatArray,
    power_w: FloatArray,
    max_cpu_hz: FloatArray,
    bandwidth_hz: FloatArray,
    delay_weight: FloatArray,
    model_bits: float,
    capacitance: float,
    x: FloatArray,
    y: FloatArray,
    state: FloatArray,
) -> BatchSolution:
    """Make a solution of logarithms found elsewhere; `state` (e, 5) as `joint.find_weight` leaves it, after the
    weight."""
    n, edges = len(snr_hz), len(offsets) - 1
    price, deadline = state[:, 0].copy(), state[:, 1].copy()
    b, f, energy, delay, bound = np.empty(n), np.empty(n), np.zeros(edges), np.zeros(edges), np.zeros(edges)
    given = (snr_hz, cycles, power_w, max_cpu_hz, bandwidth_hz, delay_weight, float(model_bits), float(capacitance))
    certify_edges(offsets, 0, edges, *given, x, y, price, b, f, energy, delay, bound)
    return BatchSolution(
        b, f, x, y, price, deadline, energy, delay, bound, state[:, 3].copy(), state[:, 4].astype(np.intp)
    )


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
