"""How far from optimal an assignment is: a lower bound for any size, and brute force for small ones.

**The bound** is Lagrange's, of the whole of problem (17): assignment, bandwidth and frequency together. Price each
device's delay with π_n ≥ 0, the longest cloud hop ``h = max h_m`` (no deadline is shorter) with ρ ≥ 0, ``Σ π_n + ρ =
λ``, and each edge's bandwidth with μ_m ≥ 0. Then no assignment with any allocation costs less than

    D = Σ_n min_m min_{b, f ≤ f_max} [Q(α/2 c f² + p s_m(b)) + π_n (Q(s_m(b) + c/f) + h_m) + μ_m b]
        - Σ_m μ_m B_m + ρ h + Σ_m e_m.

Proof. Take any assignment m(n), feasible b, f and deadline T, of cost ``Σ_n Q(α/2 c f² + p s) + Σ_m e_m + λ T`` (e_m:
energy of the hops). Since ``Q(s + c/f) + h_m(n) ≤ T``, ``h ≤ T`` and ``Σ b ≤ B_m`` at each edge, adding ``Σ_n π_n (Q(s
+ c/f) + h_m(n) - T) + ρ (h - T) + Σ_m μ_m (Σ_{n at m} b_n - B_m)`` adds nothing positive. T then has the factor ``λ - Σ
π - ρ = 0``, and what is left is a sum over devices, each term of which is at least its minimum over m, b and f: D. ∎

D is concave in the prices, so any ascent gives a bound at every step. It is the optimum of the relaxation in which a
device may be split over edges. The allocation of either coupling is feasible, so the bound holds for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from hflray.allocation import Coupling, allocate_round
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.terms import LN2, invert_slope
from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import RoundProblem, assigned_edge_cost, round_problem
from hflray.cost import Workload, check_assignment, round_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet

MOST = 1_000_000  # assignments that brute force goes through
STAGES = (0.3, 0.1, 0.03, 0.01, 0.003)  # smoothing of the minimum over edges, in parts of the mean cost of a device


@dataclass(frozen=True)
class Gap:
    """An assignment's objective, a bound that no assignment goes below, and ``(objective - bound) / objective``."""

    objective: float
    bound: float
    relative: float


def gap(
    fleet: Fleet, work: Workload, devices: ArrayLike, assignment: ArrayLike, coupling: Coupling = "per_edge"
) -> Gap:
    """Return how far `assignment` is from optimal, at most.

    Args:
        fleet, work, devices, assignment: as in `hflray.allocation.allocate_round`.
        coupling: how the assignment's own bandwidth and frequencies are found; the bound holds for both.

    Raises:
        ConfigError: a bad index, or a value no allocation can work with.
    """
    chosen, edges = check_assignment(fleet, devices, assignment)
    allocation = allocate_round(fleet, work, chosen, edges, coupling=coupling)
    objective = round_cost(fleet, work, chosen, edges, allocation).objective
    shared = allocate_round(fleet, work, chosen, edges, coupling="joint")
    bound = lower_bound(fleet, work, chosen, shared.delay_price, shared.bandwidth_price)
    return Gap(objective, bound, (objective - bound) / objective)


def lower_bound(
    fleet: Fleet,
    work: Workload,
    devices: ArrayLike,
    delay_price: FloatArray | None = None,
    bandwidth_price: FloatArray | None = None,
) -> float:
    """Return a cost in J, that no assignment of `devices` with any allocation goes below (see the module).

    Args:
        fleet, work, devices: the round.
        delay_price, bandwidth_price: prices to start the ascent from, (H,) and (M,), as `Allocation` has them.
    """
    problem, chosen = round_problem(fleet, work, devices)
    h, m, q = len(chosen), fleet.num_edges, float(work.edge_iterations)
    pi = np.full(h, 1.0 / h) if delay_price is None else delay_price / work.delay_weight
    mu = np.zeros(m) if bandwidth_price is None else q * bandwidth_price
    # An edge that has no price yet: as dear as delay and energy of a fair share of the devices make it.
    fair = work.delay_weight * q * problem.bits / problem.bandwidth**2 / h
    mu = np.where(mu > 0, mu, fair)
    start = np.concatenate([np.log(np.maximum(pi, 1e-12)), [math.log(1e-3)], np.log(mu)])
    best, _ = bound_at(problem, start, 0.0)
    scale = max(abs(best), 1e-300)
    for part in STAGES:

        def falling(point: FloatArray, width: float = part * scale / h) -> tuple[float, FloatArray]:
            value, gradient = bound_at(problem, point, width)
            return -value / scale, -gradient / scale

        start = minimize(falling, start, jac=True, method="L-BFGS-B", options={"maxiter": 80, "maxcor": 20}).x
        best = max(best, bound_at(problem, start, 0.0)[0])
    return float(best)


@kernel
def bound_at(problem: RoundProblem, point: FloatArray, width: float) -> tuple[float, FloatArray]:
    """D and its gradient at the prices ``(π, ρ) = λ softmax(point[:H + 1])``, ``μ = exp(point[H + 1:])``.

    With `width` > 0 J the minimum over edges is smoothed (``-width ln Σ exp(-/width)``, below the minimum: still a
    bound).
    """
    m_count, h_count = problem.snr.shape
    weights = np.exp(point[: h_count + 1] - point[: h_count + 1].max())
    weights *= problem.weight / weights.sum()
    mu = np.exp(point[h_count + 1 :])
    hop = problem.hop.delay.max()
    value = problem.hop.energy.sum() + weights[h_count] * hop - (mu * problem.bandwidth).sum()
    slope_pi, slope_mu = np.empty(h_count + 1), -problem.bandwidth
    slope_pi[h_count] = hop
    kappa, q = problem.bits * LN2, problem.iterations
    term, late, used = np.empty(m_count), np.empty(m_count), np.empty(m_count)
    for n in range(h_count):
        pi, p, c = weights[n], problem.power[n], problem.cycles[n]
        f = min(problem.cap[n], (pi / problem.alpha) ** (1.0 / 3.0))
        for m in range(m_count):
            snr = problem.snr[m, n]
            dear = q * (p + pi)  # of a second of upload
            ratio = math.exp(invert_slope(math.log(mu[m]) + 2.0 * math.log(snr) - math.log(kappa * dear)))
            used[m] = snr / ratio
            s = kappa / (used[m] * math.log1p(ratio))
            late[m] = q * (s + c / f) + problem.hop.delay[m]
            term[m] = q * (problem.alpha / 2.0 * c * f * f + p * s) + pi * late[m] + mu[m] * used[m]
        least = term.min()
        share = np.exp(-(term - least) / width) if width > 0.0 else (term == least) * 1.0
        total = share.sum()
        value += least - width * math.log(total) if width > 0.0 else least
        share /= total
        slope_pi[n] = (share * late).sum()
        slope_mu += share * used
    mean = (weights * slope_pi).sum() / problem.weight
    gradient = np.empty(len(point))
    gradient[: h_count + 1] = weights * (slope_pi - mean)
    gradient[h_count + 1 :] = mu * slope_mu
    return value, gradient


def brute_force(fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[IntArray, float]:
    """Return the best of all M^H assignments under the per-edge allocation, and its objective.

    Raises:
        ConfigError: there are more than a million, or an index or value is bad.
    """
    problem, chosen = round_problem(fleet, work, devices)
    if fleet.num_edges ** len(chosen) > MOST:
        raise ConfigError(
            f"devices: {len(chosen)} devices at {fleet.num_edges} edges have {fleet.num_edges}^{len(chosen)} "
            f"assignments; brute force goes through {MOST:,} at most; use lower_bound"
        )
    return _search_all(problem)


@kernel
def _search_all(problem: RoundProblem) -> tuple[IntArray, float]:
    m_count, h_count = problem.snr.shape
    # An edge's cost depends on the set of its devices only: all 2^H sets once, then all assignments by look-up.
    energy, delay = np.empty((m_count, 1 << h_count)), np.empty((m_count, 1 << h_count))
    inside = np.empty(h_count, dtype=np.intp)
    for chosen in range(1 << h_count):
        for n in range(h_count):
            inside[n] = (chosen >> n) & 1
        for m in range(m_count):
            energy[m, chosen], delay[m, chosen] = assigned_edge_cost(problem, np.where(inside == 1, m, -1), m)
    assignment, answer, best = np.zeros(h_count, dtype=np.intp), np.zeros(h_count, dtype=np.intp), math.inf
    sets = np.empty(m_count, dtype=np.intp)
    for number in range(m_count**h_count):
        rest = number
        sets[:] = 0
        for n in range(h_count):
            assignment[n] = rest % m_count
            rest //= m_count
            sets[assignment[n]] |= 1 << n
        total, slowest = 0.0, 0.0
        for m in range(m_count):
            total += energy[m, sets[m]]
            slowest = max(slowest, delay[m, sets[m]])
        if total + problem.weight * slowest < best:
            best = total + problem.weight * slowest
            answer[:] = assignment
    return answer, best
