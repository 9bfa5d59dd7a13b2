"""The objective that the searching assigners lower: one round's ``Σ E_m + λ max T_m`` with the per-edge allocation.

Equations (9) to (14) and (17) of the paper; an edge without devices keeps its cloud hop.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.allocation.kernels.blocks import iteration_cost
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_for
from hflray.allocation.problem import check_links
from hflray.arrays import FloatArray, IntArray
from hflray.cost import Workload, check_assignment, cloud_hop
from hflray.errors import ConfigError
from hflray.fleet import Fleet

Start = Literal["geographic", "best_gain", "random"]
STARTS: tuple[Start, ...] = ("geographic", "best_gain", "random")

TOL = 1e-9  # KKT residual; decides between candidates that differ by more than about 1e-9


class RoundProblem(NamedTuple):
    """One round's problem (17) as arrays that Numba takes: H scheduled devices, M edges.

    Attributes:
        snr: Y = gain·power/noise of every link, (M, H), Hz: a row an edge.
        cycles, power, cap: c, p and f_max, (H,).
        bandwidth: B_m, (M,), Hz.
        hop_delay, hop_energy: of the cloud hop, (M,), s and J; zeros without one.
        iterations: Q.
        weight, bits, alpha: λ, z and α.
    """

    snr: FloatArray
    cycles: FloatArray
    power: FloatArray
    cap: FloatArray
    bandwidth: FloatArray
    hop_delay: FloatArray
    hop_energy: FloatArray
    iterations: float
    weight: float
    bits: float
    alpha: float


def round_problem(fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[RoundProblem, IntArray]:
    """Lay out the problem of scheduling `devices`; return it and the checked device indices (H,).

    Raises:
        ConfigError: a bad index, or a value no allocation can work with; names the array and the first bad index.
    """
    chosen, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
    check_links(fleet, chosen)
    hop_delay, hop_energy = cloud_hop(fleet, work.model_bits) if work.cloud_hop else np.zeros((2, fleet.num_edges))
    problem = RoundProblem(
        snr=np.ascontiguousarray((fleet.gain[chosen] * (fleet.power_w[chosen] / fleet.noise_w_per_hz)[:, None]).T),
        cycles=work.local_iterations * fleet.cycles_per_sample[chosen] * fleet.samples[chosen],
        power=fleet.power_w[chosen],
        cap=fleet.max_cpu_hz[chosen],
        # Copies: a frozen fleet's arrays are read-only, which is another type to Numba and would compile twice.
        bandwidth=fleet.edge_bandwidth_hz.copy(),
        hop_delay=hop_delay,
        hop_energy=hop_energy,
        iterations=float(work.edge_iterations),
        weight=float(work.delay_weight),
        bits=float(work.model_bits),
        alpha=float(fleet.capacitance),
    )
    return problem, chosen


def check_start(start: Start) -> Start:
    """Return `start` if it is known; raise ConfigError that lists the known ones otherwise."""
    if start not in STARTS:
        raise ConfigError(f"assignment.start: unknown start '{start}'; known: {', '.join(STARTS)}")
    return start


def check_coupling(coupling: Coupling) -> Coupling:
    """Return `coupling` if it is known; raise ConfigError that lists the known ones otherwise."""
    if coupling not in ("per_edge", "joint"):
        raise ConfigError(f"assignment.coupling: unknown coupling '{coupling}'; known: per_edge, joint")
    return coupling


def starting_assignment(start: Start, fleet: Fleet, devices: IntArray, rng: np.random.Generator) -> IntArray:
    """The assignment (H,) that a search starts from; only ``random`` draws from `rng`."""
    if start == "geographic":
        return fleet.nearest_edges(devices)[:, 0]
    if start == "best_gain":
        return fleet.strongest_edges(devices)[:, 0]
    return rng.integers(fleet.num_edges, size=len(devices), dtype=np.intp)


@kernel
def assigned_edge_cost(problem: RoundProblem, assignment: IntArray, edge: int) -> tuple[float, float]:
    """E_m J and T_m s of one edge for the round, cloud hop included, with its devices as `assignment` (H,) has them."""
    members = np.flatnonzero(assignment == edge)
    n = len(members)
    if n == 0:
        return problem.hop_energy[edge], problem.hop_delay[edge]
    snr, cycles, power, cap = (
        problem.snr[edge][members],
        problem.cycles[members],
        problem.power[members],
        problem.cap[members],
    )
    x, y, scratch = np.empty(n), np.empty(n), scratch_for(n)
    bandwidth, bits, alpha = problem.bandwidth[edge], problem.bits, problem.alpha
    solve_edge(
        snr, cycles, power, cap, bandwidth, problem.weight, bits, alpha, x, y, 0.0, 0.0, False, TOL, scratch
    )  # fmt: skip
    energy, delay = iteration_cost(n, scratch.reshape(-1), bandwidth, bits, alpha, 1.0)
    return (
        problem.iterations * energy + problem.hop_energy[edge],
        problem.iterations * delay + problem.hop_delay[edge],
    )


@kernel
def all_costs(problem: RoundProblem, assignment: IntArray, energy: FloatArray, delay: FloatArray) -> float:
    """Fill E_m and T_m (M,) of every edge; return the objective."""
    for edge in range(len(problem.bandwidth)):
        energy[edge], delay[edge] = assigned_edge_cost(problem, assignment, edge)
    return float(energy.sum() + problem.weight * delay.max())


@kernel
def slowest_three(delay: FloatArray) -> tuple[float, int, float, int, float]:
    """The largest delay and its edge, the second and its edge, the third; -inf and -1 where there is none."""
    first = second = third = -math.inf
    i = j = -1
    for m in range(len(delay)):
        if delay[m] > first:
            first, second, third, i, j = delay[m], first, second, m, i
        elif delay[m] > second:
            second, third, j = delay[m], second, m
        elif delay[m] > third:
            third = delay[m]
    return first, i, second, j, third


@kernel
def others_delay(slowest: tuple[float, int, float, int, float], m: int, k: int) -> float:
    """The largest delay of the edges other than m and k."""
    first, i, second, j, third = slowest
    if i not in (m, k):
        return first
    if j not in (m, k):
        return second
    return third
