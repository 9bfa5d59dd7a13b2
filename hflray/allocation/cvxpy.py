"""The reference solver: CVXPY solves each edge's problem (27) of the paper as a convex programme.

The problem is scaled, because the conic solvers fail on SI units. The rate ``b log2(1 + y/b)`` is written as
``-rel_entr(b, b + y) / ln 2``, which is the same function in a form that CVXPY knows to be concave. Clarabel fails on
about one instance in a hundred. It is then called again with shorter steps, and after that SCS, a first-order method.
An inexact answer is accepted only if the best Lagrangian bound from the solvers' prices proves that it is within
`PROOF` of the optimum. This module uses nothing of the Newton method, which is tested against it.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np

from hflray.allocation.instance import Allocation, EdgeProblem, edge_problems
from hflray.cost import Workload
from hflray.errors import InfeasibleError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray

# They are called in this order until one succeeds.
SOLVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("CLARABEL", {}),
    ("CLARABEL", {"max_step_fraction": 0.9, "max_iter": 1000}),
    ("SCS", {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 100_000}),
)

PROOF = 1e-5  # largest relative duality gap of an accepted inexact answer


def allocate(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray) -> Allocation:
    """Return the solution of every edge's problem; see `hflray.allocation.allocate_round`."""
    bandwidth_hz, cpu_hz = np.empty(len(devices)), np.empty(len(devices))
    for problem in edge_problems(fleet, work, devices, edges):
        bandwidth_hz[problem.members], cpu_hz[problem.members] = solve_edge(problem)
    return Allocation(bandwidth_hz=bandwidth_hz, cpu_hz=cpu_hz)


def solve_edge(problem: EdgeProblem) -> tuple[FloatArray, FloatArray]:
    """Return bandwidth (n,) Hz and CPU frequency (n,) Hz of one edge's devices.

    Raises:
        InfeasibleError: every solver failed; the message names the edge and each solver's status.
    """
    n = len(problem.members)
    programme = _programme(n)
    programme.load(problem)
    statuses: list[str] = []
    best: tuple[float, FloatArray, FloatArray] | None = None
    bound = -np.inf
    for solver, options in SOLVERS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it says "solution may be inaccurate", as the status does
                programme.problem.solve(solver=solver, **options)
        except (cp.SolverError, ValueError, ArithmeticError) as error:
            statuses.append(f"{solver}: {str(error).splitlines()[0]}")
            continue
        status = programme.problem.status
        statuses.append(f"{solver}: {status}")
        if status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            continue
        answer = _feasible(problem, programme.share.value * problem.bandwidth_hz / n, programme.cpu.value * 1e9)
        if status == cp.OPTIMAL:
            return answer
        objective = problem.objective(*answer)
        if best is None or objective < best[0]:
            best = (objective, *answer)
        bound = max(bound, lower_bound(problem, programme.delay.dual_value))
        if best[0] - bound <= PROOF * best[0]:
            return best[1:]
        statuses[-1] += f", proved to {(best[0] - bound) / best[0]:.1g}"
    raise InfeasibleError(
        f"allocation of edge {problem.edge} with {n} devices failed ({'; '.join(statuses)}); "
        "use allocation.method 'newton', or look at that edge's gains and bandwidth"
    )


def lower_bound(problem: EdgeProblem, delay_price: FloatArray) -> float:
    """Return a lower bound, J, on the objective of every allocation of the edge, from delay prices (n,) of any scale.

    For π ≥ 0 with Σ π = λ and μ ≥ 0 the bound is, by weak duality,
    ``Σ min_b [(p + π) s(b) + μ b] + Σ min_f [α/2 c f² + π c/f] - μ B``. π is scaled so that Σ π = λ. The bound is
    concave in μ, and the best μ is found by bisection.
    """
    pi = np.maximum(delay_price, 0.0)
    pi = pi * (problem.delay_weight / pi.sum()) if pi.sum() > 0 else np.full(len(pi), problem.delay_weight / len(pi))
    cpu = np.clip(np.cbrt(pi / problem.capacitance), np.finfo(float).tiny, problem.max_cpu_hz)
    computing = float((problem.capacitance / 2 * problem.cycles * cpu**2 + pi * problem.cycles / cpu).sum())

    def bound_at(log_mu: float) -> tuple[float, float]:
        """Return the bound at μ, J, and the bandwidth that its minimiser leaves unused, Hz."""
        mu = np.exp(log_mu)
        low, high = np.full((2, len(pi)), [[-60.0], [60.0]]) + np.log(problem.bandwidth_hz)
        for _ in range(120):  # bisection on the sign of the derivative, which is increasing in b
            middle = (low + high) / 2
            rising = (problem.power_w + pi) * problem.upload_slope(np.exp(middle)) + mu > 0
            low, high = np.where(rising, low, middle), np.where(rising, middle, high)
        b = np.exp((low + high) / 2)
        value = ((problem.power_w + pi) * problem.upload_delay_s(b) + mu * b).sum() - mu * problem.bandwidth_hz
        return float(value) + computing, problem.bandwidth_hz - float(b.sum())

    low, high = -200.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if bound_at(middle)[1] > 0 else (middle, high)
    return bound_at((low + high) / 2)[0]


def _feasible(problem: EdgeProblem, bandwidth_hz: FloatArray, cpu_hz: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the solver's answer without its rounding: all bandwidth is used, and no cap is exceeded."""
    bandwidth_hz = np.maximum(bandwidth_hz, np.finfo(float).tiny)
    return bandwidth_hz * (problem.bandwidth_hz / bandwidth_hz.sum()), np.clip(cpu_hz, 1.0, problem.max_cpu_hz)


class _Programme:
    """The CVXPY problem for n devices. It is compiled once, and its parameters take each edge's numbers."""

    def __init__(self, n: int) -> None:
        self.share = cp.Variable(n)  # bandwidth divided by the fair share B/n
        self.cpu = cp.Variable(n)  # GHz
        per_bit = cp.Variable(n)  # upload time divided by that of the fair share
        deadline = cp.Variable()
        self.snr_scaled = cp.Parameter(n, nonneg=True)
        self.inverse_k = cp.Parameter(n, nonneg=True)
        self.gain_per_share = cp.Parameter(n, nonneg=True)
        self.log_k = cp.Parameter(n, nonneg=True)
        self.cycles = cp.Parameter(n, nonneg=True)  # Gcycles, scaled
        self.heat = cp.Parameter(n, nonneg=True)  # α/2·c, scaled
        self.fair_upload_s = cp.Parameter(n, nonneg=True)  # s(B/n), scaled
        self.fair_upload_j = cp.Parameter(n, nonneg=True)  # p·s(B/n), scaled
        self.max_cpu = cp.Parameter(n, nonneg=True)  # GHz
        self.delay_weight = cp.Parameter(nonneg=True)
        # b·ln(1 + y/b) = -rel_entr(b, (b + y)/k) + b·ln k for any k. This k brings the cone's entries near 1.
        rate = -cp.rel_entr(self.share, cp.multiply(self.inverse_k, self.share) + self.snr_scaled) + cp.multiply(
            self.log_k, self.share
        )
        energy = self.heat @ cp.square(self.cpu) + self.fair_upload_j @ per_bit
        delay = cp.multiply(self.cycles, cp.inv_pos(self.cpu)) + cp.multiply(self.fair_upload_s, per_bit)
        self.delay = delay <= deadline
        self.problem = cp.Problem(
            cp.Minimize(energy + self.delay_weight * deadline),
            [
                cp.multiply(self.gain_per_share, cp.inv_pos(per_bit)) <= rate,
                self.delay,
                cp.sum(self.share) <= n,
                self.cpu <= self.max_cpu,
            ],
        )

    def load(self, problem: EdgeProblem) -> None:
        """Set the parameters to one edge's numbers."""
        n = len(problem.members)
        fair_hz = problem.bandwidth_hz / n
        snr = problem.snr_hz / fair_hz
        fair_s = problem.upload_delay_s(np.full(n, fair_hz))
        self.snr_scaled.value = snr / (1.0 + snr)
        self.inverse_k.value = 1.0 / (1.0 + snr)
        self.log_k.value = self.gain_per_share.value = np.log1p(snr)
        # The units of time and energy are those of the fair share at full speed, so the scale fits any λ and gains.
        second = float((fair_s + problem.cycles / problem.max_cpu_hz).max())
        joule = problem.objective(np.full(n, fair_hz), problem.max_cpu_hz)
        self.cycles.value = problem.cycles / 1e9 / second
        self.heat.value = problem.capacitance / 2 * problem.cycles * 1e18 / joule
        self.fair_upload_s.value = fair_s / second
        self.fair_upload_j.value = problem.power_w * fair_s / joule
        self.max_cpu.value = problem.max_cpu_hz / 1e9
        self.delay_weight.value = problem.delay_weight * second / joule


@lru_cache(maxsize=64)
def _programme(n: int) -> _Programme:
    return _Programme(n)
