"""Exact bandwidth and CPU frequencies in microseconds: the public side of the Newton kernels.

``per_edge`` is problem (27) of the paper for each edge, as in design, section 6; `kernels.edge` has the
equations. ``joint`` is one deadline for all edges; see `kernels.joint`. Every answer carries its own proof:
the prices, the KKT residual and the duality gap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation.batch import THREADED, TOL, BatchSolution, finish, solve_batch
from hflray.allocation.kernels.joint import solve_joint
from hflray.allocation.kernels.onecall import allocate_in_one_call
from hflray.allocation.problem import Allocation, Ragged, ragged
from hflray.arrays import FloatArray, IntArray
from hflray.cost import Workload, cloud_hop
from hflray.errors import InfeasibleError
from hflray.fleet import Fleet

MAX_RESIDUAL = 1e-8  # above it an answer is not given out


def allocate_small(fleet: Fleet, work: Workload, devices: ArrayLike, assignment: ArrayLike) -> Allocation | None:
    """Solve a round per edge, arguments still unchecked, the quick way.

    Returns:
        None if the round or the fleet is large, or if anything is wrong with it: then `allocate` is to be asked, which
        says what.
    """
    chosen, edges = np.asarray(devices), np.asarray(assignment)
    if chosen.ndim != 1 or edges.ndim != 1 or chosen.size >= THREADED or not isinstance(fleet.gain, np.ndarray):
        return None
    if chosen.dtype.kind not in "iu" or edges.dtype.kind not in "iu":
        return None
    well, per_device, per_edge, residual, gap = allocate_in_one_call(
        fleet.gain,
        fleet.power_w,
        fleet.samples,
        fleet.cycles_per_sample,
        fleet.max_cpu_hz,
        fleet.edge_bandwidth_hz,
        float(fleet.noise_w_per_hz),
        float(fleet.capacitance),
        float(work.model_bits),
        float(work.local_iterations),
        float(work.delay_weight),
        # Copies, and of one type: a read-only or strided array is another type to Numba, and would compile anew.
        np.array(chosen, dtype=np.intp),
        np.array(edges, dtype=np.intp),
    )
    if not (well and residual <= MAX_RESIDUAL):
        return None
    return Allocation(
        bandwidth_hz=per_device[0],
        cpu_hz=per_device[1],
        delay_price=per_device[2],
        bandwidth_price=per_edge[0],
        deadline_s=per_edge[1],
        edge_price=np.full(len(per_edge[0]), work.delay_weight),
        kkt_residual=residual,
        duality_gap=gap,
    )


def allocate(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, coupling: str) -> Allocation:
    """Solve every edge's problem; see `hflray.allocation.allocate_round`.

    Raises:
        ConfigError: a value no solver can work with; names the array and its first bad index.
        InfeasibleError: an edge has no finite deadline in floating point; names the edge and a device.
    """
    problem = ragged(fleet, work, devices, edges)
    if coupling == "joint":
        return _allocate_joint(fleet, work, devices, problem)
    weight = np.full(len(problem.edges), work.delay_weight)
    solution = solve_batch(*_given(problem), weight, work.model_bits, fleet.capacitance)
    check_solution(problem, solution, devices)
    objective = solution.energy_j + weight * solution.delay_s
    gap = float(((objective - solution.bound_j) / objective).max())
    return _to_allocation(problem, solution, weight, fleet.num_edges, float(solution.residual.max()), gap)


def _given(problem: Ragged) -> tuple[IntArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    return (
        problem.offsets,
        problem.snr_hz,
        problem.cycles,
        problem.power_w,
        problem.max_cpu_hz,
        problem.bandwidth_hz,
    )


def _allocate_joint(fleet: Fleet, work: Workload, devices: IntArray, problem: Ragged) -> Allocation:
    hop_delay, hop_energy = cloud_hop(fleet, work.model_bits) if work.cloud_hop else np.zeros((2, fleet.num_edges))
    empty = np.setdiff1d(np.arange(fleet.num_edges), problem.edges)
    floor = float(hop_delay[empty].max()) if empty.size and work.cloud_hop else -np.inf
    hop = hop_delay[problem.edges]
    n, e, q = len(problem.order), len(problem.edges), float(work.edge_iterations)
    x, y, state = np.empty(n), np.empty(n), np.zeros((e, 6))
    weight_bits_alpha = float(work.delay_weight), q, float(work.model_bits), float(fleet.capacitance)
    solve_joint(*_given(problem), hop, floor, *weight_bits_alpha, x, y, state, TOL)
    weight = np.exp(state[:, 0])
    solution = finish(*_given(problem), weight, work.model_bits, fleet.capacitance, x, y, state[:, 1:])
    check_solution(problem, solution, devices)
    # The proof is of the round as a whole: weak duality in the deadline too, with what is left of λ at the empty edge.
    delay = q * solution.delay_s + hop
    slowest = max(float(delay.max()), floor)
    objective = q * solution.energy_j.sum() + work.delay_weight * slowest + hop_energy.sum()
    left = work.delay_weight - weight.sum()
    bound = q * solution.bound_j.sum() + weight @ hop + (left * floor if np.isfinite(floor) else 0.0) + hop_energy.sum()
    residual = max(float(solution.residual.max()), float(np.abs(delay / slowest - 1.0).max()))
    if not residual <= MAX_RESIDUAL:
        raise InfeasibleError(
            f"allocation of edge {problem.edges[np.abs(delay - slowest).argmax()]}: the shared deadline of "
            f"{slowest:.6g} s is missed by {residual:.1g} of it; use allocation.coupling 'per_edge', or leave out the "
            "device with the weakest link"
        )
    return _to_allocation(problem, solution, weight, fleet.num_edges, residual, float((objective - bound) / objective))


def check_solution(problem: Ragged, solution: BatchSolution, devices: IntArray) -> None:
    """Refuse an answer that is not finite or not converged. Raises InfeasibleError naming the edge and the device."""
    bad = np.flatnonzero(~(np.isfinite(solution.bound_j) & (solution.residual <= MAX_RESIDUAL)))
    if bad.size:
        inside = slice(problem.offsets[bad[0]], problem.offsets[bad[0] + 1])
        worst = problem.order[inside][np.argmin(problem.snr_hz[inside])]
        raise InfeasibleError(
            f"allocation of edge {problem.edges[bad[0]]}: no deadline that its devices meet is a finite number; device "
            f"{devices[worst]} has the weakest link (gain·power/noise = {problem.snr_hz[inside].min():.3g} Hz); "
            "leave it out of the schedule, or assign it to another edge"
        )


def _to_allocation(
    problem: Ragged, solution: BatchSolution, weight: FloatArray, num_edges: int, residual: float, gap: float
) -> Allocation:
    """Put a batch's solution back into the order of the schedule and of the fleet's edges."""
    devices, filled = np.empty((3, len(problem.order))), np.zeros((3, num_edges))
    devices[:, problem.order] = solution.bandwidth_hz, solution.cpu_hz, np.exp(solution.log_delay_price)
    filled[:, problem.edges] = np.exp(solution.log_bandwidth_price), solution.delay_s, weight
    return Allocation(
        bandwidth_hz=devices[0],
        cpu_hz=devices[1],
        delay_price=devices[2],
        bandwidth_price=filled[0],
        deadline_s=filled[1],
        edge_price=filled[2],
        kkt_residual=residual,
        duality_gap=gap,
    )
