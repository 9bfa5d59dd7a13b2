"""Solve many edges in one call, each independently, and certify each right after it is solved."""

from __future__ import annotations

import numpy as np

from hflray.allocation.kernels.blocks import locate
from hflray.allocation.kernels.bundles import Devices, Edges, Feasible, Guess, Setting, Solution, Unknowns
from hflray.allocation.kernels.certificate import certify
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import fill, scratch_for_edges
from hflray.support.arrays import FloatArray


@kernel
def devices_at(edges: Edges, e: int) -> Devices:
    """Return the devices of edge e, as views."""
    i, j = edges.offsets[e], edges.offsets[e + 1]
    devices = edges.devices
    return Devices(devices.snr[i:j], devices.cycles[i:j], devices.power[i:j], devices.cap[i:j])


def new_feasible(devices: int, edges: int) -> Feasible:
    """Return zeros for the allocation of `devices` devices at `edges` edges; edges without devices keep the zeros."""
    energy, delay, bound = np.zeros(edges), np.zeros(edges), np.zeros(edges)
    return Feasible(np.zeros(devices), np.zeros(devices), energy, delay, bound)


def new_solution(devices: int, edges: int) -> Solution:
    """Return zeros for a solution of `devices` devices at `edges` edges."""
    unknowns = Unknowns(np.zeros(devices), np.zeros(devices), np.zeros(edges), np.zeros(edges))
    return Solution(unknowns, np.zeros(edges), np.zeros(edges, dtype=np.intp), new_feasible(devices, edges))


@kernel
def solve_edges(
    edges: Edges, weight: FloatArray, first: int, last: int, warm: bool, tol: float, solution: Solution
) -> None:
    """Solve the edges `first` to `last` (`edge.solve_edge`), and certify each (`certificate.certify`).

    Args:
        edges: the problems.
        weight: λ of each edge, (e,), J/s.
        first, last: range of the edges to solve; the others are not touched, so that threads can share the work.
        warm: whether to start from the unknowns that `solution` holds.
        tol: largest accepted KKT residual.
        solution: overwritten for edges that have devices.
    """
    scratch = scratch_for_edges(edges.offsets, first, last)
    unknowns, feasible = solution.unknowns, solution.feasible
    for e in range(first, last):
        i, j = edges.offsets[e], edges.offsets[e + 1]
        if j > i:
            setting = Setting(edges.bandwidth[e], weight[e], edges.bits, edges.alpha)
            start = Guess(unknowns.log_bandwidth_price[e], unknowns.log_deadline[e], warm)
            x, y = unknowns.log_bandwidth[i:j], unknowns.log_delay_price[i:j]
            solved = solve_edge(devices_at(edges, e), setting, x, y, start, tol, scratch)
            unknowns.log_bandwidth_price[e], unknowns.log_deadline[e] = solved.price, solved.deadline
            solution.residual[e], solution.evaluations[e] = solved.residual, solved.evaluations
            feasible.energy_j[e], feasible.delay_s[e], feasible.bound_j[e] = certify(
                j - i, scratch.reshape(-1), setting, solved.price, feasible.bandwidth_hz[i:j], feasible.cpu_hz[i:j]
            )


@kernel
def certify_edges(edges: Edges, weight: FloatArray, unknowns: Unknowns, feasible: Feasible) -> None:
    """Certify all edges at `unknowns`, solved with λ as in `weight`, (e,), J/s; `feasible` is overwritten."""
    work = scratch_for_edges(edges.offsets, 0, len(edges.bandwidth)).reshape(-1)
    for e in range(len(edges.bandwidth)):
        i, j = edges.offsets[e], edges.offsets[e + 1]
        if j > i:
            setting = Setting(edges.bandwidth[e], weight[e], edges.bits, edges.alpha)
            fill(devices_at(edges, e), unknowns.log_bandwidth[i:j], unknowns.log_delay_price[i:j], work)
            locate(j - i, work, edges.alpha)
            feasible.energy_j[e], feasible.delay_s[e], feasible.bound_j[e] = certify(
                j - i, work, setting, unknowns.log_bandwidth_price[e], feasible.bandwidth_hz[i:j], feasible.cpu_hz[i:j]
            )
