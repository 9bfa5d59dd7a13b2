"""Bound the distance of an assignment from the optimum by a lower bound for any size.

**The bound** is the Lagrangian bound of the whole problem (17), with assignment, bandwidth and frequency as unknowns.
Let π_n ≥ 0 be the price of each device's delay, ρ ≥ 0 the price of the longest cloud hop ``h = max h_m`` (no deadline
is below it), with ``Σ π_n + ρ = λ``, and μ_m ≥ 0 the price of each edge's bandwidth. No assignment with any allocation
costs less than

    D = Σ_n min_m min_{b, f ≤ f_max} [Q(α/2 c f² + p s_m(b)) + π_n (Q(s_m(b) + c/f) + h_m) + μ_m b]
        - Σ_m μ_m B_m + ρ h + Σ_m e_m.

Proof. Take any assignment m(n), feasible b, f and deadline T, of cost ``Σ_n Q(α/2 c f² + p s) + Σ_m e_m + λ T`` (e_m:
energy of the hops). Since ``Q(s + c/f) + h_m(n) ≤ T``, ``h ≤ T`` and ``Σ b ≤ B_m`` at each edge, adding ``Σ_n π_n (Q(s
+ c/f) + h_m(n) - T) + ρ (h - T) + Σ_m μ_m (Σ_{n at m} b_n - B_m)`` adds nothing positive. T then has the factor ``λ - Σ
π - ρ = 0``, and the rest is a sum over devices, each term of which is at least its minimum over m, b and f: D. ∎

D is concave in the prices, and every step of an ascent gives a valid bound. The largest D is the optimum of the
relaxation in which a device may be split over edges. The allocation of either coupling is feasible, so the bound holds
for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from hflray.allocation import Coupling, allocate_round, is_general
from hflray.allocation.exact import solve_together
from hflray.allocation.general import problems
from hflray.allocation.kernels.device import LN2, invert_slope
from hflray.allocation.kernels.jit import kernel
from hflray.assignment.objective import RoundProblem, round_problem
from hflray.cost import Workload, check_assignment, hops, round_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.physics.own import is_built_in
from hflray.support.arrays import FloatArray

GOLDEN, SECTIONS, SMALLEST = (math.sqrt(5.0) - 1.0) / 2.0, 40, 1e-7  # of the search for a pair's best share and setting
STAGES = (0.3, 0.1, 0.03, 0.01, 0.003)  # smoothing of the minimum over edges, as fractions of a device's mean cost


@dataclass(frozen=True)
class Gap:
    """An assignment's objective, J, a lower bound for all assignments, J, and ``(objective - bound) / objective``."""

    objective: float
    bound: float
    relative: float


def gap(
    fleet: Fleet, work: Workload, devices: ArrayLike, assignment: ArrayLike, coupling: Coupling = "per_edge"
) -> Gap:
    """Return the objective of `assignment` and a bound on its distance from the optimum.

    Args:
        fleet, work, devices, assignment: as in `hflray.allocation.allocate_round`.
        coupling: coupling of the assignment's own allocation; the bound holds for both.

    Raises:
        ConfigError: an index is wrong, or a value is not finite and above 0.
    """
    scheduled, edges = check_assignment(fleet, devices, assignment)
    allocation = allocate_round(fleet, work, scheduled, edges, coupling=coupling)
    objective = round_cost(fleet, work, scheduled, edges, allocation).objective
    if is_general(fleet, work):
        bound = lower_bound(fleet, work, scheduled)
    else:
        shared = allocate_round(fleet, work, scheduled, edges, coupling="joint")
        bound = lower_bound(fleet, work, scheduled, shared.delay_price, shared.bandwidth_price)
    return Gap(objective, bound, (objective - bound) / objective)


def lower_bound(
    fleet: Fleet,
    work: Workload,
    devices: ArrayLike,
    delay_price: FloatArray | None = None,
    bandwidth_price: FloatArray | None = None,
) -> float:
    """Return a lower bound, J, on the cost of every assignment of `devices` with any allocation (see the module).

    For another physics than the paper's it is the same bound, whose minima are searched. Limits and whole blocks only
    raise costs, so that it holds without them.

    Args:
        fleet, work, devices: the round.
        delay_price, bandwidth_price: prices at the start of the ascent, (H,) and (M,), as in `Allocation`; not used for
            another physics.

    Raises:
        ConfigError: a download of the user's own, of which nothing is known; or an index is wrong.
    """
    q = float(work.edge_iterations)
    if is_general(fleet, work):
        pairs = PairTerms(fleet, work, devices)
        h, evaluate = pairs.count, pairs.bound_at
        pi, mu = pairs.prices()
        pi, mu = pi / work.delay_weight, np.where(mu > 0, q * mu, max(q * float(mu.max()), 1e-12))
    else:
        problem, scheduled = round_problem(fleet, work, devices)
        h, evaluate = len(scheduled), partial(bound_at, problem)
        pi = np.full(h, 1.0 / h) if delay_price is None else delay_price / work.delay_weight
        mu = np.zeros(fleet.num_edges) if bandwidth_price is None else q * bandwidth_price
        # An edge without a price starts from the price that a fair share of the devices would give it.
        mu = np.where(mu > 0, mu, work.delay_weight * q * problem.bits / problem.bandwidth**2 / h)
    start = np.concatenate([np.log(np.maximum(pi, 1e-12)), [math.log(1e-3)], np.log(mu)])
    best, _ = evaluate(start, 0.0)
    scale = max(abs(best), 1e-300)
    for part in STAGES:

        def negated_bound(point: FloatArray, width: float = part * scale / h) -> tuple[float, FloatArray]:
            value, gradient = evaluate(point, width)
            return -value / scale, -gradient / scale

        start = minimize(negated_bound, start, jac=True, method="L-BFGS-B", options={"maxiter": 80, "maxcor": 20}).x
        best = max(best, evaluate(start, 0.0)[0])
    return float(best)


class PairTerms:
    """The terms of the bound for each pair of a device and an edge, (H · M,), with any physics.

    A device alone at an edge has the shortest download. The joules of one that several devices share count for none.
    """

    def __init__(self, fleet: Fleet, work: Workload, devices: ArrayLike) -> None:
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        if not is_built_in(fleet.download):
            raise ConfigError(
                "cost.download: the lower bound knows the downloads of hflray alone; accepted: none, broadcast, unicast"
            )
        self.count, self._fleet, self._work, self._scheduled = len(scheduled), fleet, work, scheduled
        shape = (self.count, fleet.num_edges)
        device, edge = (index.ravel() for index in np.indices(shape))
        alone = np.arange(len(edge))
        self._pairs, received_j = problems(fleet, work, scheduled[device], edge, alone, len(edge))
        self._hop_s, self._hop_j = hops(fleet, work)
        self._received_j = 0.0 if fleet.download.together else received_j.reshape(shape)
        self._before_s = self._pairs.before_s.reshape(shape)
        self._most = self._pairs.compute.most(self._pairs.device) if fleet.compute.has_setting else np.ones(len(edge))

    def prices(self) -> tuple[FloatArray, FloatArray]:
        """Return the prices of delays, (H,), and of shares, (M,), of the strongest links under one deadline."""
        edges = self._fleet.strongest_edges(self._scheduled)[:, 0]
        order = np.argsort(edges, kind="stable")
        at, none = edges[order], np.full(self.count, np.inf)
        sets, _ = problems(self._fleet, self._work, self._scheduled[order], at, at, self._fleet.num_edges)
        sets = replace(sets, most_j=none, most_s=none)
        solved = solve_together(sets, self._work.edge_iterations, self._hop_s, self._work.delay_weight, whole=False)
        return np.nan_to_num(solved.time_price[np.argsort(order)], nan=1.0), np.nan_to_num(solved.share_price)

    def bound_at(self, point: FloatArray, width: float) -> tuple[float, FloatArray]:
        """Return D and its gradient at prices, as the function of this name does."""
        pairs, work, h, m = self._pairs, self._work, self.count, len(self._hop_s)
        weights = np.exp(point[: h + 1] - point[: h + 1].max())
        weights *= work.delay_weight / weights.sum()
        mu, q, hop = np.exp(point[h + 1 :]), float(work.edge_iterations), float(self._hop_s.max())
        pi, price, is_shared = np.repeat(weights[:h], m), np.tile(mu, h), float(pairs.access.shared)

        def sending(share: FloatArray) -> FloatArray:
            seconds, joules = pairs.upload(share)
            return q * (joules + pi * seconds) + is_shared * price * share

        def computing(part: FloatArray) -> FloatArray:
            seconds, joules = pairs.run(part * self._most)
            return q * (joules + pi * seconds)

        ones = np.ones(h * m)
        share = least_at(sending, ones) if pairs.access.shared else ones
        setting = least_at(computing, ones) if pairs.compute.has_setting else ones
        seconds = (pairs.upload(share)[0] + pairs.run(setting * self._most)[0]).reshape(h, m) + self._before_s
        delay = q * seconds + self._hop_s
        term = (sending(share) + computing(setting)).reshape(h, m) + q * self._received_j
        term = term + weights[:h, None] * (delay - q * (seconds - self._before_s))
        least = term.min(axis=1, keepdims=True)
        part = np.exp(-(term - least) / width) if width > 0.0 else (term == least).astype(np.float64)
        total = part.sum(axis=1, keepdims=True)
        part, used = part / total, is_shared * share.reshape(h, m)
        value = self._hop_j.sum() + weights[h] * hop - is_shared * mu.sum()
        value += float((least - (width * np.log(total) if width > 0.0 else 0.0)).sum())
        slope_pi = np.append((part * delay).sum(axis=1), hop)
        mean = (weights * slope_pi).sum() / work.delay_weight
        return value, np.concatenate([weights * (slope_pi - mean), mu * ((part * used).sum(axis=0) - is_shared)])


def least_at(cost: Callable[[FloatArray], FloatArray], highest: FloatArray) -> FloatArray:
    """Return where each convex cost is least, (n,), up to `highest`, (n,), by golden sections of the logarithm."""
    low, high = np.log(SMALLEST * highest), np.log(highest)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = cost(np.exp(left)), cost(np.exp(right))
    for _ in range(SECTIONS):
        is_left = at_left < at_right
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
        probe = np.where(is_left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = cost(np.exp(probe))
        left, right = np.where(is_left, probe, right), np.where(is_left, left, probe)
        at_left, at_right = np.where(is_left, value, at_right), np.where(is_left, at_left, value)
    middle = np.exp((low + high) / 2)
    return np.where(cost(highest) < cost(middle), highest, middle)


@kernel
def bound_at(problem: RoundProblem, point: FloatArray, width: float) -> tuple[float, FloatArray]:
    """Return D and its gradient at the prices ``(π, ρ) = λ softmax(point[:H + 1])``, ``μ = exp(point[H + 1:])``.

    With `width` > 0 J the minimum over edges is smoothed to ``-width ln Σ exp(-x/width)``. That is below the minimum,
    so the result still is a bound.
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
    term, delay, bandwidth = np.empty(m_count), np.empty(m_count), np.empty(m_count)
    for n in range(h_count):
        pi, p, c = weights[n], problem.power[n], problem.cycles[n]
        f = min(problem.cap[n], (pi / problem.alpha) ** (1.0 / 3.0))
        for m in range(m_count):
            snr = problem.snr[m, n]
            price = q * (p + pi)  # of one second of upload
            ratio = math.exp(invert_slope(math.log(mu[m]) + 2.0 * math.log(snr) - math.log(kappa * price)))
            bandwidth[m] = snr / ratio
            s = kappa / (bandwidth[m] * math.log1p(ratio))
            delay[m] = q * (s + c / f) + problem.hop.delay[m]
            term[m] = q * (problem.alpha / 2.0 * c * f * f + p * s) + pi * delay[m] + mu[m] * bandwidth[m]
        least = term.min()
        share = np.exp(-(term - least) / width) if width > 0.0 else (term == least) * 1.0
        total = share.sum()
        value += least - width * math.log(total) if width > 0.0 else least
        share /= total
        slope_pi[n] = (share * delay).sum()
        slope_mu += share * bandwidth
    mean = (weights * slope_pi).sum() / problem.weight
    gradient = np.empty(len(point))
    gradient[: h_count + 1] = weights * (slope_pi - mean)
    gradient[h_count + 1 :] = mu * slope_mu
    return value, gradient
