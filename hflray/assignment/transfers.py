"""One transfer at a time, in Numba: where the devices are, what a move may win, and the move (`candidates`).

The lists, the solutions and the stamps of the edges are kept in a `Place`; estimates of what a transfer wins come from
the prices of the two edges' solutions (`own_cost`, `added_cost`; see `hflray.assignment.candidates`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hflray.allocation.kernels.blocks import iteration_cost
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import ROWS, columns
from hflray.allocation.kernels.terms import LN2, delay_at, log_1p
from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import others_delay

TOL = 1e-7  # KKT residual that an edge is solved to


class Candidates(NamedTuple):
    """A round as arrays that Numba takes: H devices, K candidate edges of each, M edges.

    Attributes:
        edge, snr: candidates and Y = gain·power/noise of the link to each, Hz, (H, K).
        cycles, power, cap: c, p and f_max, (H,).
        bandwidth, hop_delay, hop_energy: of each edge, (M,), Hz, s and J.
        iterations, weight, bits, alpha: Q, λ, z and α.
    """

    edge: IntArray
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


class Place(NamedTuple):
    """Where each device is, and the solution of each edge.

    Attributes:
        slot: which of its candidates each device is at, (H,).
        head, after, before: each edge's devices as a list, (M,), (H,), (H,); -1 is the end.
        size: devices of each edge, (M,).
        x, y: ln b and ln π, (H,).
        price, deadline: ln μ and ln τ, (M,).
        energy, delay: E_m and T_m, (M,), cloud hop included.
        stamp: when each edge changed last, (M,); seen: when each device was looked at last, (H,); clock: (1,).
    """

    slot: IntArray
    head: IntArray
    after: IntArray
    before: IntArray
    size: IntArray
    x: FloatArray
    y: FloatArray
    price: FloatArray
    deadline: FloatArray
    energy: FloatArray
    delay: FloatArray
    stamp: IntArray
    seen: IntArray
    clock: IntArray


@kernel
def solve_with(
    problem: Candidates, place: Place, m: int, without: int, extra: int, slot: int, warm: bool, scratch: FloatArray
) -> tuple[float, float]:
    """E_m and T_m of edge m without one of its devices and with one more, at its candidate `slot`; -1: neither.

    Leaves ln b and ln π in rows ROWS + 4 and ROWS + 5 of `scratch` (ROWS + 6, at least n + 2), in the order of the list
    with `extra` last; and ln μ and ln τ in column n of rows 0 and 1. Warm: `extra` starts from what is there already
    in column ``scratch.shape[1] - 1``.
    """
    n, last = 0, scratch.shape[1] - 1
    x_extra, y_extra = scratch[ROWS + 4, last], scratch[ROWS + 5, last]
    snr, cycles, power, cap = scratch[ROWS], scratch[ROWS + 1], scratch[ROWS + 2], scratch[ROWS + 3]
    x, y = scratch[ROWS + 4], scratch[ROWS + 5]
    h = place.head[m]
    while h >= 0:
        if h != without:
            snr[n], cycles[n] = problem.snr[h, place.slot[h]], problem.cycles[h]
            power[n], cap[n], x[n], y[n] = problem.power[h], problem.cap[h], place.x[h], place.y[h]
            n += 1
        h = place.after[h]
    if extra >= 0:
        snr[n], cycles[n], power[n], cap[n] = (
            problem.snr[extra, slot],
            problem.cycles[extra],
            problem.power[extra],
            problem.cap[extra],
        )
        x[n], y[n] = x_extra, y_extra
        n += 1
    if n == 0:
        scratch[0, 0] = scratch[1, 0] = 0.0
        return problem.hop_energy[m], problem.hop_delay[m]
    bandwidth, alpha = problem.bandwidth[m], problem.alpha
    price, deadline, _, _, _ = solve_edge(
        snr[:n], cycles[:n], power[:n], cap[:n], bandwidth, problem.weight, problem.bits, alpha, x[:n], y[:n],
        place.price[m], place.deadline[m], warm and n > 1, TOL, scratch,
    )  # fmt: skip
    energy, delay = iteration_cost(n, scratch.reshape(-1), bandwidth, problem.bits, alpha, 1.0)
    scratch[0, n], scratch[1, n] = price, deadline
    return problem.iterations * energy + problem.hop_energy[m], problem.iterations * delay + problem.hop_delay[m]


@kernel
def keep(place: Place, m: int, cost: tuple[float, float], scratch: FloatArray) -> None:
    """Take over edge m's solution, as `solve_with` left it, once its list is what was solved."""
    n = 0
    h = place.head[m]
    while h >= 0:
        place.x[h], place.y[h] = scratch[ROWS + 4, n], scratch[ROWS + 5, n]
        n += 1
        h = place.after[h]
    place.price[m], place.deadline[m] = scratch[0, n], scratch[1, n]
    place.energy[m], place.delay[m] = cost
    place.clock[0] += 1
    place.stamp[m] = place.clock[0]


@kernel
def insert(place: Place, h: int, m: int) -> None:
    """Put device h at the end of edge m's list."""
    place.after[h] = place.before[h] = -1
    place.size[m] += 1
    last = place.head[m]
    if last < 0:
        place.head[m] = h
        return
    while place.after[last] >= 0:
        last = place.after[last]
    place.after[last], place.before[h] = h, last


@kernel
def remove(place: Place, h: int, m: int) -> None:
    """Take device h out of edge m's list."""
    place.size[m] -= 1
    if place.before[h] >= 0:
        place.after[place.before[h]] = place.after[h]
    else:
        place.head[m] = place.after[h]
    if place.after[h] >= 0:
        place.before[place.after[h]] = place.before[h]


@kernel
def settle_all(problem: Candidates, place: Place) -> None:
    """Build the lists from `slot` and solve every edge from scratch."""
    for h in range(len(place.slot) - 1, -1, -1):  # at the front: quick
        m = problem.edge[h, place.slot[h]]
        place.after[h], place.before[h] = place.head[m], -1
        if place.head[m] >= 0:
            place.before[place.head[m]] = h
        place.head[m] = h
        place.size[m] += 1
    scratch = np.zeros((ROWS + 6, columns(place.size.max() + 3)))
    for m in range(len(place.size)):
        keep(place, m, solve_with(problem, place, m, -1, -1, -1, False, scratch), scratch)


@kernel
def place_objective(problem: Candidates, place: Place) -> float:
    """Σ E_m + λ max T_m, J."""
    return float(place.energy.sum() + problem.weight * place.delay.max())


@kernel
def own_cost(problem: Candidates, place: Place, h: int) -> float:
    """By how much at most its edge's V falls without device h at an unchanged deadline, of one edge iteration, J."""
    m = problem.edge[h, place.slot[h]]
    b, pi = math.exp(place.x[h]), math.exp(place.y[h])
    s = problem.bits * LN2 / (b * log_1p(problem.snr[h, place.slot[h]] / b))
    f = min(problem.cap[h], (pi / problem.alpha) ** (1.0 / 3.0))
    late = s + problem.cycles[h] / f - math.exp(place.deadline[m])
    spent = problem.power[h] * s + problem.alpha / 2.0 * problem.cycles[h] * f * f
    return float(spent + math.exp(place.price[m]) * b + pi * late)


@kernel
def added_cost(problem: Candidates, place: Place, h: int, j: int, enough: float) -> tuple[float, float, float]:
    """By how much at least the V of candidate j rises with device h at an unchanged deadline, J; and ln b and ln π that
    go with it.

    Any π gives a bound, and the best is where the deadline is met; the search for it ends where the bound is `enough`.
    """
    m = problem.edge[h, j]
    top = math.log(problem.weight)
    price, deadline, snr = place.price[m], math.exp(place.deadline[m]), problem.snr[h, j]
    cycles, power, cap = problem.cycles[h], problem.power[h], problem.cap[h]
    mu, y = math.exp(price), min(place.y[h], top)
    value = x = 0.0
    for _ in range(5):
        x, log_late, slope = delay_at(y, price, snr, cycles, power, cap, problem.bits, problem.alpha)
        late, pi = math.exp(log_late), math.exp(y)
        f = min(cap, (pi / problem.alpha) ** (1.0 / 3.0))
        s = late - cycles / f
        value = power * s + problem.alpha / 2.0 * cycles * f * f + mu * math.exp(x) + pi * (late - deadline)
        move = max(-3.0, min(3.0, (place.deadline[m] - log_late) / slope))
        if value >= enough or abs(late - deadline) < 1e-3 * deadline or (y == top and move > 0.0):
            break
        y = min(top, y + move)
    return value, x, y


@kernel
def try_transfer(
    problem: Candidates,
    place: Place,
    h: int,
    j: int,
    slowest: tuple[float, int, float, int, float],
    least: float,
    first: FloatArray,
    second: FloatArray,
) -> float:
    """Move device h to its candidate j if that lowers the objective by more than `least`; return by how much it did."""
    m, k = problem.edge[h, place.slot[h]], problem.edge[h, j]
    there = solve_with(problem, place, k, -1, h, j, place.size[k] > 0, second)
    here = solve_with(problem, place, m, h, -1, -1, True, first)
    old = place.energy[m] + place.energy[k] + problem.weight * slowest[0]
    won = old - here[0] - there[0] - problem.weight * max(here[1], there[1], others_delay(slowest, m, k))
    if not won > least:
        return 0.0
    remove(place, h, m)
    place.slot[h] = j
    insert(place, h, k)
    keep(place, m, here, first)
    keep(place, k, there, second)
    return float(won)


@kernel
def value_of(problem: Candidates, place: Place, m: int) -> float:
    """V = E + λT of edge m, of one edge iteration, J."""
    energy = (place.energy[m] - problem.hop_energy[m]) / problem.iterations
    return float(energy + problem.weight * math.exp(place.deadline[m]))
