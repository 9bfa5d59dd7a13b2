"""The objective of the searching assigners: one round's ``Σ E_m + λ T`` with the per-edge allocation.

It follows equations (9) to (14) and (17) of the paper, in which T is the largest T_m. Under an asynchronous cloud
nobody waits for the slowest edge, and T is the mean of T_m over the edges with devices
(`hflray.cost.Workload.minimise`). An edge without devices keeps its cloud hop in E_m, and in the largest T_m.

**Where the physics is.** All searches ask one question: what do these devices cost at this edge, if a second of its
delay costs `weight`? `edge_cost` answers it by an `EdgeCost`, the joules and seconds of the best allocation and how its
delay falls with the weight. The list of devices also holds two unknowns of each, from which the next solution of nearly
the same devices starts. Another physics is another `edge_cost` of the same signature, with an `Edge`, a `RoundProblem`
and columns of the list for its numbers. Only the estimates of `hflray.assignment.transfers`, `prices.least_price` and
the bounds know radio links and CPUs besides.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation import is_general
from hflray.allocation.instance import checked_gain, compute_cycles, received_snr_of_links_hz
from hflray.allocation.kernels.bundles import EdgeSetting, Guess
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import first_devices, iteration_cost, listed
from hflray.cost import Workload, check_assignment, hops
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray

Start = Literal["geographic", "best_gain", "random"]


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


class Edge(NamedTuple):
    """The numbers of an edge besides its devices: see `EdgeSetting`; Q; and its hop's energy, J, and delay, s.

    Numba passes these numbers faster than a `RoundProblem`.
    """

    setting: EdgeSetting
    iterations: float
    hop_energy: float
    hop_delay: float


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


class Totals(NamedTuple):
    """What all edges together cost before a move.

    | field | meaning |
    |---|---|
    | ``energy`` | Σ E_m, J |
    | ``slowest`` | the edges of the three largest T_m, slowest first; -1 stands for missing ones |
    | ``delay`` | Σ T_m of the edges with devices, s |
    | ``used`` | number of these edges |
    """

    energy: float
    slowest: tuple[int, int, int]
    delay: float
    used: int


def round_problem(
    fleet: Fleet, work: Workload, devices: ArrayLike, links_alone: bool = False
) -> tuple[RoundProblem, IntArray]:
    """Return the problem of the scheduled `devices`, and their checked indices, (H,).

    Args:
        fleet, work, devices: the round.
        links_alone: whether costs are not asked of it, so that any physics will do.

    Raises:
        ConfigError: the physics is another than the paper's, or there are downloads or limits, which its kernels do not
            price; or an index is wrong, or a value is not finite and above 0, and the message names the array and the
            first bad index.
    """
    if not links_alone and is_general(fleet, work):
        raise ConfigError(
            "cost, allocation.limits: policies' training prices frequency division (fdma, dvfs) without downloads and "
            "limits alone; accepted with other settings: assigners, schedulers and lower_bound"
        )
    scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
    gain = checked_gain(fleet, scheduled[:, None], np.arange(fleet.num_edges))
    snr = received_snr_of_links_hz(gain, fleet.power_w[scheduled], fleet.noise_w_per_hz)
    return problem_of(fleet, work, scheduled, np.ascontiguousarray(snr.T)), scheduled


def problem_of(fleet: Fleet, work: Workload, devices: IntArray, snr: FloatArray) -> RoundProblem:
    """Return the problem of checked `devices`, (H,), with the links `snr`, (M, H), Hz."""
    fleet, _ = fleet.of_one_capacitance()
    return RoundProblem(
        snr=snr,
        cycles=compute_cycles(work.local_iterations, fleet.cycles_per_sample[devices], fleet.samples[devices]),
        power=fleet.power_w[devices],
        cap=fleet.max_cpu_hz[devices],
        # A frozen fleet's array is read-only, which is another type to Numba; without a copy it would compile twice.
        bandwidth=fleet.edge_bandwidth_hz.copy(),
        hop=Hop(*hops(fleet, work)),
        iterations=float(work.edge_iterations),
        weight=float(work.delay_weight),
        bits=float(work.device_bits),
        alpha=float(fleet.capacitance),
        mean=work.minimise == "mean_edge",
    )


def starting_assignment(start: str, fleet: Fleet, devices: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the assignment, (H,), from which a search starts; only ``random`` draws from `rng`."""
    if start == "geographic":
        return fleet.nearest_edges(devices)[:, 0]
    if start == "best_gain":
        return fleet.strongest_edges(devices)[:, 0]
    return rng.integers(fleet.num_edges, size=len(devices), dtype=np.intp)


@kernel
def edge_cost(n: int, edge: Edge, start: Guess, tol: float, scratch: FloatArray) -> EdgeCost:
    """Return what an edge with n devices costs with the allocation that is best for its weight.

    Args:
        n: number of devices in the list of `scratch`, a `lanes.scratch_with_list`.
        edge: the numbers of the edge.
        start: start of the solution; a warm one begins from the ln b and ln π in the list.
        tol: largest KKT residual.
        scratch: its list (`lanes.listed`) holds the devices and, afterwards, their ln b and ln π.
    """
    if n == 0:
        return EdgeCost(edge.hop_energy, edge.hop_delay, 0.0, 0.0, 0.0)
    devices, x, y = listed(scratch)
    solved = solve_edge(first_devices(devices, n), edge.setting, x[:n], y[:n], start, tol, scratch)
    energy, delay = iteration_cost(n, scratch.reshape(-1), edge.setting, 1.0)
    energy, delay = edge.iterations * energy + edge.hop_energy, edge.iterations * delay + edge.hop_delay
    return EdgeCost(energy, delay, solved.price, solved.deadline, solved.slope)


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
    first = second = third = -1
    for m in range(len(delay)):
        if first < 0 or delay[m] > delay[first]:
            first, second, third = m, first, second
        elif second < 0 or delay[m] > delay[second]:
            second, third = m, second
        elif third < 0 or delay[m] > delay[third]:
            third = m
    return Totals(energy.sum(), (first, second, third), total, used)


@kernel
def delay_after(
    mean: bool,
    totals: Totals,
    delay: FloatArray,
    size: IntArray,
    m: int,
    k: int,
    left: float,
    joined: float,
    moved: int,
) -> float:
    """Return T, s, after a move by which edges m and k get the delays `left` and `joined`, s.

    Edge m then has `moved` devices fewer, 0 or 1; m and k are the same edge if one of its devices is replaced.
    """
    if not mean:
        slowest = max(left, joined)
        for edge in totals.slowest:
            if edge >= 0 and edge not in (m, k):
                return float(max(slowest, delay[edge]))
        return slowest
    total, used = totals.delay, totals.used
    if size[m] > 0:
        total, used = total - delay[m], used - 1
    if size[m] > moved:
        total, used = total + left, used + 1
    if k != m:
        if size[k] > 0:
            total, used = total - delay[k], used - 1
        total, used = total + joined, used + 1
    return total / max(used, 1)
