"""The objective of the searching assigners: one round's ``Σ E_m + λ T`` with the per-edge allocation.

It follows equations (9) to (14) and (17) of the paper, in which T is the largest T_m. Under an asynchronous cloud
nobody waits for the slowest edge, and T is the mean of T_m over the edges with devices
(`hflray.cost.Workload.minimise`). An edge without devices keeps its cloud hop in E_m, and in the largest T_m.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import Coupling
from hflray.allocation.instance import check_links
from hflray.allocation.kernels.blocks import iteration_cost
from hflray.allocation.kernels.bundles import Devices, Guess, Setting
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_for
from hflray.allocation.link import compute_cycles, received_snr_of_links_hz
from hflray.cost import Workload, check_assignment, hops
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray

Start = Literal["geographic", "best_gain", "random"]
STARTS: tuple[Start, ...] = ("geographic", "best_gain", "random")

TOL = 1e-9  # KKT residual; candidates that differ by more than about 1e-9 are told apart


class Hop(NamedTuple):
    """The delay, (M,), s, and energy, (M,), J, of each edge's hop to the cloud; zeros if there is no cloud hop."""

    delay: FloatArray
    energy: FloatArray


class RoundProblem(NamedTuple):
    """One round's problem (17) with H scheduled devices and M edges, as arrays for Numba. The kernels only read it.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``snr`` | Y = gain·power/noise of every link | Hz | (M, H) |
    | ``cycles`` | c | cycles | (H,) |
    | ``power`` | p | W | (H,) |
    | ``cap`` | f_max | Hz | (H,) |
    | ``bandwidth`` | B_m | Hz | (M,) |
    | ``hop`` | see `Hop` | | |
    | ``iterations`` | Q | edge iterations | number |
    | ``weight`` | λ | J/s | number |
    | ``bits`` | z | bits | number |
    | ``alpha`` | α | J·s²/cycles³ | number |
    | ``mean`` | whether T is the mean of T_m over edges with devices, or the largest | | bool |
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
    mean: bool = False


class EdgeCost(NamedTuple):
    """The cost of an edge with a set of devices, and its solution besides the ln b and ln π of the devices.

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
    """The three largest delays of the edges, s, and the edges of the first two; -inf and -1 stand for missing ones."""

    first: float
    first_edge: int
    second: float
    second_edge: int
    third: float


class Changed(NamedTuple):
    """The two edges that a move changes.

    | field | meaning |
    |---|---|
    | ``left``, ``joined`` | the edges that a device leaves and joins; the same twice if a device is replaced |
    | ``left_delay``, ``joined_delay`` | their T_m after the move, s |
    | ``moved`` | by how many devices the left edge becomes smaller, 0 or 1 |
    """

    left: int
    joined: int
    left_delay: float
    joined_delay: float
    moved: int


class Totals(NamedTuple):
    """What all edges together cost before a move.

    | field | meaning |
    |---|---|
    | ``energy`` | Σ E_m, J |
    | ``slowest`` | see `Slowest` |
    | ``delay`` | Σ T_m of the edges with devices, s |
    | ``used`` | number of these edges |
    """

    energy: float
    slowest: Slowest
    delay: float
    used: int


def round_problem(fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[RoundProblem, IntArray]:
    """Return the problem of the scheduled `devices`, and their checked indices, (H,).

    Raises:
        ConfigError: an index is wrong, or a value is not finite and above 0; the message names the array and the first
            bad index.
    """
    scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
    check_links(fleet, scheduled)
    snr = received_snr_of_links_hz(fleet.gain[scheduled], fleet.power_w[scheduled], fleet.noise_w_per_hz)
    return RoundProblem(snr=np.ascontiguousarray(snr.T), **all_but_links(fleet, work, scheduled)), scheduled


def all_but_links(fleet: Fleet, work: Workload, devices: IntArray) -> dict[str, Any]:
    """Return the fields of `RoundProblem` that do not depend on links, for `devices`, (H,)."""
    fleet, _ = fleet.of_one_capacitance()
    hop = hops(fleet, work)
    return {
        "cycles": compute_cycles(work.local_iterations, fleet.cycles_per_sample[devices], fleet.samples[devices]),
        "power": fleet.power_w[devices],
        "cap": fleet.max_cpu_hz[devices],
        # A frozen fleet's array is read-only, which is another type to Numba; without a copy it would compile twice.
        "bandwidth": fleet.edge_bandwidth_hz.copy(),
        "hop": Hop(*hop),
        "iterations": float(work.edge_iterations),
        "weight": float(work.delay_weight),
        "bits": float(work.device_bits),
        "alpha": float(fleet.capacitance),
        "mean": work.minimise == "mean_edge",
    }


def check_start(start: Start) -> Start:
    """Return `start` if it is known. Raises ConfigError, which lists the known starts."""
    if start not in STARTS:
        raise ConfigError(f"assignment.start: unknown start '{start}'; known: {', '.join(STARTS)}")
    return start


def check_coupling(coupling: Coupling) -> Coupling:
    """Return `coupling` if it is known. Raises ConfigError, which lists the known couplings."""
    if coupling not in ("per_edge", "joint"):
        raise ConfigError(f"assignment.coupling: unknown coupling '{coupling}'; known: per_edge, joint")
    return coupling


def starting_assignment(start: Start, fleet: Fleet, devices: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the assignment, (H,), from which a search starts; only ``random`` draws from `rng`."""
    if start == "geographic":
        return fleet.nearest_edges(devices)[:, 0]
    if start == "best_gain":
        return fleet.strongest_edges(devices)[:, 0]
    return rng.integers(fleet.num_edges, size=len(devices), dtype=np.intp)


@kernel
def assigned_edge_cost(problem: RoundProblem, assignment: IntArray, edge: int) -> tuple[float, float]:
    """Return E_m, J, and T_m, s, of one edge for the round under `assignment`, (H,), cloud hop included."""
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
    """Fill E_m, (M,), J, and T_m, (M,), s, of every edge, and return the objective, J."""
    for edge in range(len(problem.bandwidth)):
        energy[edge], delay[edge] = assigned_edge_cost(problem, assignment, edge)
    return assigned_objective(problem, assignment, energy, delay)


@kernel
def assigned_objective(problem: RoundProblem, assignment: IntArray, energy: FloatArray, delay: FloatArray) -> float:
    """Return Σ E_m + λT, J, of edges with E_m, (M,), J, and T_m, (M,), s, under `assignment`, (H,)."""
    if not problem.mean:
        return float(energy.sum() + problem.weight * delay.max())
    size = np.zeros(len(energy), dtype=np.intp)
    for edge in assignment:
        size[edge] += 1
    return float(energy.sum() + problem.weight * weighed_delay(True, delay, size))


@kernel
def weighed_delay(mean: bool, delay: FloatArray, size: IntArray) -> float:
    """Return T, s: the mean of T_m, (M,), over the edges with ``size > 0``, or the largest T_m."""
    if not mean:
        return float(delay.max())
    total, used = used_delay(delay, size)
    return total / max(used, 1)


@kernel
def used_delay(delay: FloatArray, size: IntArray) -> tuple[float, int]:
    """Return Σ T_m, s, over the edges with devices, and the number of these edges."""
    total, used = 0.0, 0
    for m in range(len(delay)):
        if size[m] > 0:
            total, used = total + delay[m], used + 1
    return total, used


@kernel
def totals_of(energy: FloatArray, delay: FloatArray, size: IntArray) -> Totals:
    """Return the totals of edges with E_m, J, T_m, s, and numbers of devices, each (M,)."""
    total, used = used_delay(delay, size)
    return Totals(energy.sum(), slowest_three(delay), total, used)


@kernel
def delay_after(mean: bool, totals: Totals, delay: FloatArray, size: IntArray, changed: Changed) -> float:
    """Return T, s, after a move that changes two edges, or one."""
    m, k = changed.left, changed.joined
    if not mean:
        return max(changed.left_delay, changed.joined_delay, others_delay(totals.slowest, m, k))
    total, used = totals.delay, totals.used
    if size[m] > 0:
        total, used = total - delay[m], used - 1
    if size[m] > changed.moved:
        total, used = total + changed.left_delay, used + 1
    if k != m:
        if size[k] > 0:
            total, used = total - delay[k], used - 1
        total, used = total + changed.joined_delay, used + 1
    return total / max(used, 1)


@kernel
def slowest_three(delay: FloatArray) -> Slowest:
    """Return the three largest of the edges' delays, (M,), s."""
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
    """Return the largest delay of the edges other than m and k, s."""
    if slowest.first_edge not in (m, k):
        return slowest.first
    if slowest.second_edge not in (m, k):
        return slowest.second
    return slowest.third
