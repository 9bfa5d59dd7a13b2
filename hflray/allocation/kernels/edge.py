"""Newton's method on the optimality conditions of one edge's problem (27), in Numba (docs/design.md,
"The allocation problem").

The unknowns are logarithms, so that every iterate is positive: bandwidth ``x = ln b`` and delay price ``y = ln π`` of
each device, bandwidth price ``ln μ`` and deadline ``ln τ`` of the edge. With ``X = Y/b``, ``l = ln(1 + X)``,
``q = X/(1 + X)``, ``d = l - q`` and ``κ = z ln 2``:

    upload time      s = κ / (b l)                       equations (6), (7)
    its slope       -s' = κ d / (b l)²
    frequency        f = min(f_max, (π/α)^{1/3})         from (4), (5): ∂/∂f of α/2 c f² + π c/f is zero
    per device       R1 = ln[(p + π)(-s')] - ln μ = 0,   R2 = ln(s + c/f) - ln τ = 0
    per edge         ln(Σ b / B) = 0,                    ln(Σ π / λ) = 0

The Jacobian has arrow structure: a 2×2 block for each device and a 2×2 Schur complement. Both determinants are
positive at every point (a block's is ``A1 B2 - B1 A2`` with A1 < 0, B2 ≤ 0, B1 > 0, A2 < 0), so a step always exists.
There is no line search, so a step may increase the residual.

Several functions share these arguments. ``devices`` and ``setting`` are the problem (`kernels.bundles`). ``work`` holds
the devices as blocks of lanes (`kernels.lanes`), in which the iterations run. ``scratch`` is the memory of ``work``, of
at least (`lanes.ROWS`, `lanes.columns` of n).
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.bundles import Devices, Edges, EdgeSetting, Feasible, Guess, Solution, Solved, Unknowns
from hflray.allocation.kernels.device import LN2, log_1p, slack
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import (
    BLOCK,
    CAP,
    CYCLES,
    LANES,
    PI,
    WORST,
    X_0,
    X_H,
    X_M,
    Y_0,
    Y_H,
    Y_M,
    B,
    X,
    advance,
    blocks_of,
    bounds,
    copy_unknowns,
    evaluate,
    fill,
    iteration_cost,
    locate,
    scratch_for_edges,
    start_logarithms,
    start_prices,
    start_shares,
)
from hflray.support.arrays import FloatArray


def _count(value: int) -> int:
    """Return a NumPy integer, because Numba compiles `newton` again for each value of a Python integer constant."""
    return np.int64(value)  # type: ignore[return-value]


# (Longest step in any logarithm, largest number of evaluations) of the attempts. The bold attempt has converged within
# 30 evaluations on all 100,000 instances of the stress test, which are harder than any fleet's. The cautious one is for
# an instance on which it does not.
BOLD, BOLD_TRIALS = 8.0, _count(40)
CAUTIOUS, CAUTIOUS_TRIALS = 2.0, _count(80)
WARM = _count(12)  # most evaluations from a similar problem's solution, which needs 2 to 5


@kernel
def newton(
    n: int,
    work: FloatArray,
    setting: EdgeSetting,
    price: float,
    deadline: float,
    tol: float,
    move: float,
    trials: int,
) -> Solved:
    """Run Newton's method from the unknowns in `work`; `work` then holds the last evaluation.

    Args:
        n: devices in `work`.
        work, setting: see the module.
        price, deadline: ln μ and ln τ at the start.
        tol: residual at which to stop; the residual is the largest of |R1|, |R2| and the two edge conditions.
        move: longest step in any logarithm.
        trials: largest number of evaluations.

    Returns:
        The last point; its residual is infinite if an evaluation was not finite.
    """
    bandwidth, weight, alpha = setting.bandwidth, setting.weight, setting.alpha
    kappa = setting.bits * LN2
    log_kappa, log_alpha = math.log(kappa), math.log(alpha)
    blocks = blocks_of(n)
    # Every iterate keeps bounds that hold at the solution: b ≤ B, π ≤ λ, and a deadline of at least each computation at
    # full speed. Without them one step in a hundred thousand diverges.
    max_x, max_y, floor = math.log(bandwidth), math.log(weight), 0.0
    for i in range(n):
        at = i // LANES * BLOCK + i % LANES
        floor = max(floor, work[at + CYCLES] / work[at + CAP])
    floor = math.log(floor)
    for trial in range(1, trials + 1):
        worst = 0.0
        sum_b = sum_pi = a_0 = a_m = a_h = c_0 = c_m = c_h = 0.0
        for k in range(blocks):
            block = work[k * BLOCK : (k + 1) * BLOCK]
            evaluate(block, price, deadline, kappa, log_kappa, alpha, log_alpha)
            for i in range(min(LANES, n - k * LANES)):
                b, pi = block[B + i], block[PI + i]
                worst = max(worst, block[WORST + i])
                sum_b += b
                sum_pi += pi
                a_0 += b * block[X_0 + i]
                a_m += b * block[X_M + i]
                a_h += b * block[X_H + i]
                c_0 += pi * block[Y_0 + i]
                c_m += pi * block[Y_M + i]
                c_h += pi * block[Y_H + i]
        r_b, r_pi = math.log(sum_b / bandwidth), math.log(sum_pi / weight)
        worst = max(worst, abs(r_b), abs(r_pi))
        if not math.isfinite(worst + a_0 + c_0):  # a maximum may drop a NaN, but a sum does not
            return Solved(price, deadline, math.inf, trial, 0.0)
        schur = a_m * c_h - a_h * c_m
        if worst <= tol or trial == trials:
            return Solved(price, deadline, worst, trial, a_m * sum_pi / schur)
        e_1, e_2 = -r_b * sum_b - a_0, -r_pi * sum_pi - c_0
        d_price = (e_1 * c_h - a_h * e_2) / schur
        d_deadline = (a_m * e_2 - c_m * e_1) / schur
        longest = max(abs(d_price), abs(d_deadline))
        if longest > move:
            d_price *= move / longest
            d_deadline *= move / longest
        price += d_price
        deadline = max(deadline + d_deadline, floor)
        for k in range(blocks):
            advance(work[k * BLOCK : (k + 1) * BLOCK], d_price, d_deadline, move, max_x, max_y)
    return Solved(price, deadline, math.inf, trials, 0.0)


@kernel
def cold_start(n: int, work: FloatArray, setting: EdgeSetting) -> tuple[float, float]:
    """Fill the unknowns in `work` with a first guess, and return its ln μ and ln τ.

    Bandwidth is inversely proportional to the spectral efficiency at the fair share. The slowest device at π = λ/n sets
    τ. π is the larger of the price that meets τ and the price that follows from the average bandwidth price, because
    Newton's method on the convex ``ln(p + π)`` converges from above without overshooting, and diverges from below.
    """
    bandwidth, weight, alpha = setting.bandwidth, setting.weight, setting.alpha
    blocks, kappa, total = blocks_of(n), setting.bits * LN2, 0.0
    for k in range(blocks):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        start_shares(block, n / bandwidth)
        for i in range(min(LANES, n - k * LANES)):
            total += block[X + i]
    fair = weight / n
    speed = (fair / alpha) ** (1.0 / 3.0)
    price = deadline = slowest_price = 0.0
    for k in range(blocks):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        start_prices(block, bandwidth / total, kappa, fair, weight, speed)
        for i in range(min(LANES, n - k * LANES)):
            price += block[X_M + i]
            if block[Y_0 + i] > deadline:
                deadline, slowest_price = block[Y_0 + i], block[X_H + i]
    # A device that is far slower than all others gets all of λ and sets the price.
    price = min(price / n, slowest_price)
    for k in range(blocks):
        start_logarithms(work[k * BLOCK : (k + 1) * BLOCK], deadline, math.exp(price), weight, alpha)
    return price, math.log(deadline)


@kernel
def solve_edge(
    devices: Devices, setting: EdgeSetting, x: FloatArray, y: FloatArray, start: Guess, tol: float, scratch: FloatArray
) -> Solved:
    """Solve one edge with Newton's method from (x, y, start) if `start` is warm, or from a cold start.

    Args:
        devices, setting, scratch: see the module.
        x, y: (n,), overwritten with ln b and ln π.
        start: start of the iterations; see `bundles.Guess`.
        tol: largest accepted residual.

    Returns:
        The solution; its `evaluations` are 0 for the closed form of one device. ``scratch.reshape(-1)`` then is the
        `work` that `lanes.iteration_cost` needs. If no attempt converged, the residual is not at most `tol`, and x and
        y are as they were.
    """
    n, work = len(devices.snr), scratch.reshape(-1)
    if n == 1:
        return solve_alone(devices, setting, x, y, work)
    fill(devices, x, y, work)
    count = 0
    if start.warm:
        solved = newton(n, work, setting, start.price, start.deadline, tol, BOLD, WARM)
        count = solved.evaluations
        if solved.residual <= tol:
            copy_unknowns(work, x, y)
            return solved
    for attempt in range(2):
        move, trials = (BOLD, BOLD_TRIALS) if attempt == 0 else (CAUTIOUS, CAUTIOUS_TRIALS)
        price, deadline = cold_start(n, work, setting)
        solved = newton(n, work, setting, price, deadline, tol, move, trials)
        count += solved.evaluations
        if solved.residual <= tol:
            copy_unknowns(work, x, y)
            return Solved(solved.price, solved.deadline, solved.residual, count, solved.slope)
    return Solved(solved.price, solved.deadline, math.inf, count, 0.0)


@kernel
def solve_alone(devices: Devices, setting: EdgeSetting, x: FloatArray, y: FloatArray, work: FloatArray) -> Solved:
    """Return the closed form for an edge with one device, which gets all bandwidth and all weight."""
    bandwidth, weight, alpha = setting.bandwidth, setting.weight, setting.alpha
    power, cycles, cap = devices.power[0], devices.cycles[0], devices.cap[0]
    x[0], y[0] = math.log(bandwidth), math.log(weight)
    fill(devices, x, y, work)
    locate(len(x), work, alpha)  # of 1; Numba would compile `locate` once more for the constant
    lg = log_1p(devices.snr[0] / bandwidth)
    ratio = devices.snr[0] / bandwidth
    s = setting.bits * LN2 / (bandwidth * lg)
    d = slack(ratio, lg, ratio / (1.0 + ratio))
    f = (weight / alpha) ** (1.0 / 3.0)
    slope = 0.0 if f >= cap else -cycles / f / (s + cycles / f) / 3.0
    price = math.log((power + weight) * s * d / (bandwidth * lg))
    return Solved(price, math.log(s + cycles / min(cap, f)), 0.0, 0, slope)


@kernel
def certify(
    n: int,
    work: FloatArray,
    setting: EdgeSetting,
    price: float,
    b_out: FloatArray,
    f_out: FloatArray,
) -> tuple[float, float, float]:
    """Make one edge's feasible allocation from B, F and PI in `work`, and a lower bound on any allocation's objective.

    Bandwidth is written to `b_out`, (n,) Hz, and frequency to `f_out`, (n,) Hz; `price` is ln μ. The bound is
    Lagrange's: for any μ ≥ 0 and π ≥ 0 with Σ π = λ,
    ``Σ min_{b ≤ B} [(p + π) s(b) + μ b] + Σ min_{f ≤ f_max} [α/2 c f² + π c/f] - μ B`` is at most the optimum. The
    first bracket, φ(b), is convex, so that for any b' in [0, B] it is at least ``φ(b') - |φ'(b')| B`` in [0, B]. b' is
    one Newton step from the computed b, where φ' is ``μ (1 - e^R1)``, which is almost 0.

    Returns:
        The energy, J, and slowest delay, s, of one edge iteration, and the bound, J, on ``energy + λ·delay``.
    """
    bandwidth, weight = setting.bandwidth, setting.weight
    sum_pi = 0.0
    for i in range(n):
        sum_pi += work[i // LANES * BLOCK + i % LANES + PI]
    energy, delay = iteration_cost(n, work, setting, (weight / sum_pi) ** (1.0 / 3.0))
    mu, kappa = math.exp(price), setting.bits * LN2
    bound = -mu * bandwidth
    for k in range(blocks_of(n)):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        bounds(block, price, mu, weight / sum_pi, bandwidth, kappa, math.log(kappa))
        for i in range(min(LANES, n - k * LANES)):
            bound += block[Y_M + i]
            b_out[k * LANES + i], f_out[k * LANES + i] = block[X_0 + i], block[X_M + i]
    return energy, delay, bound


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
    """Solve the edges `first` to `last` (`solve_edge`), and certify each (`certify`).

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
            setting = EdgeSetting(edges.bandwidth[e], weight[e], edges.bits, edges.alpha)
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
            setting = EdgeSetting(edges.bandwidth[e], weight[e], edges.bits, edges.alpha)
            fill(devices_at(edges, e), unknowns.log_bandwidth[i:j], unknowns.log_delay_price[i:j], work)
            locate(j - i, work, edges.alpha)
            feasible.energy_j[e], feasible.delay_s[e], feasible.bound_j[e] = certify(
                j - i, work, setting, unknowns.log_bandwidth_price[e], feasible.bandwidth_hz[i:j], feasible.cpu_hz[i:j]
            )
