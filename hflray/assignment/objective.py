"""The objective that the searching assigners lower: one round's ``Σ E_m + λ max T_m`` with the per-edge allocation.

Equations (9) to (14) and (17) of the paper; an edge without devices keeps its cloud hop.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.allocation.kernels.blocks import iteration_cost
from hflray.allocation.kernels.bundles import Devices, Guess, Setting
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_for
from hflray.allocation.link import compute_cycles, received_snr_of_links_hz
from hflray.allocation.problem import check_links
from hflray.arrays import FloatArray, IntArray
from hflray.cost import Workload, check_assignment, cloud_hop
from hflray.errors import ConfigError
from hflray.fleet import Fleet

Start = Literal["geographic", "best_gain", "random"]
STARTS: tuple[Start, ...] = ("geographic", "best_gain", "random")

TOL = 1e-9  # KKT residual; decides between candidates that differ by more than about 1e-9


class Hop(NamedTuple):
    """What each edge's hop to the cloud takes: `delay`, (M,), s, and `energy`, (M,), J; zeros without a cloud hop."""

    delay: FloatArray
    energy: FloatArray


class RoundProblem(NamedTuple):
    """One round's problem (17) as arrays that Numba takes: H scheduled devices, M edges. Nobody writes it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``snr`` | Y = gain·power/noise of every link | Hz | (M, H): a row is an edge |
    | ``cycles`` | c | cycles | (H,) |
    | ``power`` | p | W | (H,) |
    | ``cap`` | f_max | Hz | (H,) |
    | ``bandwidth`` | B_m | Hz | (M,) |
    | ``hop`` | see `Hop` | | |
    | ``iterations`` | Q | edge iterations | number |
    | ``weight`` | λ | J/s | number |
    | ``bits`` | z | bits | number |
    | ``alpha`` | α | F·s² style coefficient | number |
    """

    snr: FloatArray
    cycles: FloatArray
    power: FloatArray
    cap: FloatArray
    bandwidth: FloatArray
    hop: Hop
    iterations: float
    weight: float
    bits: float
    alpha: float


class EdgeCost(NamedTuple):
    """What an edge costs with some devices, and the solution that says so, beside the ln b and ln π of the devices.

    | field | symbol | meaning |
    |---|---|---|
    | ``energy`` | E_m | J, for the round, cloud hop included |
    | ``delay`` | T_m | s, for the round, cloud hop included |
    | ``price`` | ln μ | of J/Hz; 0 without devices |
    | ``deadline`` | ln τ | of s; 0 without devices |
    | ``slope`` | d ln τ / d ln weight | elasticity of the deadline; 0 without devices |
    """

    energy: float
    delay: float
    price: float
    deadline: float
    slope: float


class Slowest(NamedTuple):
    """The three largest delays of the edges, s, and the edges of the first two; -inf and -1 where there is none."""

    first: float
    first_edge: int
    second: float
    second_edge: int
    third: float


def round_problem(fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[RoundProblem, IntArray]:
    """Lay out the problem of scheduling `devices`; return it and the checked device indices (H,).

    Raises:
        ConfigError: a bad index, or a value no allocation can work with; names the array and the first bad index.
    """
    chosen, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
    check_links(fleet, chosen)
    snr = received_snr_of_links_hz(fleet.gain[chosen], fleet.power_w[chosen], fleet.noise_w_per_hz)
    return RoundProblem(snr=np.ascontiguousarray(snr.T), **all_but_links(fleet, work, chosen)), chosen


def all_but_links(fleet: Fleet, work: Workload, devices: IntArray) -> dict[str, Any]:
    """The fields of `RoundProblem` that do not depend on links, for `devices`, (H,)."""
    hop = cloud_hop(fleet, work.model_bits) if work.cloud_hop else np.zeros((2, fleet.num_edges))
    return {
        "cycles": compute_cycles(work.local_iterations, fleet.cycles_per_sample[devices], fleet.samples[devices]),
        "power": fleet.power_w[devices],
        "cap": fleet.max_cpu_hz[devices],
        # A copy: a frozen fleet's array is read-only, which is another type to Numba and would compile twice.
        "bandwidth": fleet.edge_bandwidth_hz.copy(),
        "hop": Hop(*hop),
        "iterations": float(work.edge_iterations),
        "weight": float(work.delay_weight),
        "bits": float(work.model_bits),
        "alpha": float(fleet.capacitance),
    }


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
        return problem.hop.energy[edge], problem.hop.delay[edge]
    devices = Devices(problem.snr[edge][members], problem.cycles[members], problem.power[members], problem.cap[members])
    setting = Setting(problem.bandwidth[edge], problem.weight, problem.bits, problem.alpha)
    scratch = scratch_for(n)
    solve_edge(devices, setting, np.empty(n), np.empty(n), Guess(0.0, 0.0, False), TOL, scratch)
    energy, delay = iteration_cost(n, scratch.reshape(-1), setting, 1.0)
    return (
        problem.iterations * energy + problem.hop.energy[edge],
        problem.iterations * delay + problem.hop.delay[edge],
    )


@kernel
def all_costs(problem: RoundProblem, assignment: IntArray, energy: FloatArray, delay: FloatArray) -> float:
    """Fill E_m and T_m (M,) of every edge; return the objective."""
    for edge in range(len(problem.bandwidth)):
        energy[edge], delay[edge] = assigned_edge_cost(problem, assignment, edge)
    return float(energy.sum() + problem.weight * delay.max())


@kernel
def slowest_three(delay: FloatArray) -> Slowest:
    """The largest of the edges' delays, (M,), s."""
    first = second = third = -math.inf
    i = j = -1
    for m in range(len(delay)):
        if delay[m] > first:
            first, second, third, i, j = delay[m], first, second, m, i
        elif delay[m] > second:
            second, third, j = delay[m], second, m
        elif delay[m] > third:
            third = delay[m]
    return Slowest(first, i, second, j, third)


@kernel
def others_delay(slowest: Slowest, m: int, k: int) -> float:
    """The largest delay of the edges other than m and k, s."""
    if slowest.first_edge not in (m, k):
        return slowest.first
    if slowest.second_edge not in (m, k):
        return slowest.second
    return slowest.third
