"""Compute exact bandwidths and CPU frequencies with the Newton kernels, in microseconds per edge.

``per_edge`` solves problem (27) of the paper for each edge (docs/design.md, "The allocation problem"); `kernels.edge`
has the equations. ``joint`` gives all edges one deadline; see `kernels.joint`. Every solution carries the proof of its
optimality: the prices, the KKT residual and the duality gap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation.batch import THREADED, TOL, finish, solve_batch
from hflray.allocation.instance import Allocation, Ragged, ragged
from hflray.allocation.kernels.bundles import Solution
from hflray.allocation.kernels.joint import new_joint_solution, solve_joint
from hflray.allocation.kernels.onecall import allocate_in_one_call
from hflray.cost import Workload, hops
from hflray.errors import InfeasibleError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray

MAX_RESIDUAL = 1e-8  # a solution with a larger residual is refused


def allocate_small(fleet: Fleet, work: Workload, devices: ArrayLike, assignment: ArrayLike) -> Allocation | None:
    """Return the per-edge solution of a small round in one compiled call, without checking the arguments first.

    Returns:
        None if the round or the fleet is large, or if a value is wrong. `allocate` then solves the round, or says what
        is wrong.
    """
    scheduled, edges = np.asarray(devices), np.asarray(assignment)
    if scheduled.ndim != 1 or edges.ndim != 1 or scheduled.size >= THREADED or not isinstance(fleet.gain, np.ndarray):
        return None
    if scheduled.dtype.kind not in "iu" or edges.dtype.kind not in "iu":
        return None
    valid, per_device, per_edge, residual, gap = allocate_in_one_call(
        fleet.gain,
        fleet.power_w,
        fleet.samples,
        fleet.cycles_per_sample,
        fleet.max_cpu_hz,
        fleet.edge_bandwidth_hz,
        float(fleet.noise_w_per_hz),
        float(fleet.capacitance),
        float(work.device_bits),
        float(work.local_iterations),
        float(work.delay_weight),
        # Copies have one type. A read-only or strided array is another type to Numba, which would compile again.
        np.array(scheduled, dtype=np.intp),
        np.array(edges, dtype=np.intp),
    )
    if not (valid and residual <= MAX_RESIDUAL):
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
    """Return the solution of every edge's problem; see `hflray.allocation.allocate_round`.

    Raises:
        ConfigError: a value is not finite and above 0; the message names the array and its first bad index.
        InfeasibleError: an edge has no finite deadline in floating point; the message names the edge and a device.
    """
    problem = ragged(fleet, work, devices, edges)
    if coupling == "joint":
        return _allocate_joint(fleet, work, devices, problem)
    weight = np.full(len(problem.present), work.delay_weight)
    solution = solve_batch(problem.edges, weight)
    check_solution(problem, solution, devices)
    feasible = solution.feasible
    objective = feasible.energy_j + weight * feasible.delay_s
    gap = float(((objective - feasible.bound_j) / objective).max())
    return _to_allocation(problem, solution, weight, fleet.num_edges, float(solution.residual.max()), gap)


def _allocate_joint(fleet: Fleet, work: Workload, devices: IntArray, problem: Ragged) -> Allocation:
    """Return the solution under one deadline for all edges, with a duality gap of the whole round."""
    hop_delay, hop_energy = hops(fleet, work)
    empty = np.setdiff1d(np.arange(fleet.num_edges), problem.present)
    floor = float(hop_delay[empty].max()) if empty.size and work.cloud_hop else -np.inf
    hop, q = hop_delay[problem.present], float(work.edge_iterations)
    joint = new_joint_solution(len(problem.order), len(problem.present))
    solve_joint(problem.edges, hop, floor, float(work.delay_weight), q, joint, TOL)
    weight = np.exp(joint.log_weight)
    solution = finish(problem.edges, joint, weight)
    check_solution(problem, solution, devices)
    feasible = solution.feasible
    # The bound holds for the whole round: weak duality includes the deadline, and an empty edge carries the rest of λ.
    delay = q * feasible.delay_s + hop
    slowest = max(float(delay.max()), floor)
    objective = q * feasible.energy_j.sum() + work.delay_weight * slowest + hop_energy.sum()
    floor_price = work.delay_weight - weight.sum()
    bound = (
        q * feasible.bound_j.sum()
        + weight @ hop
        + (floor_price * floor if np.isfinite(floor) else 0.0)
        + hop_energy.sum()
    )
    residual = max(float(solution.residual.max()), float(np.abs(delay / slowest - 1.0).max()))
    if not residual <= MAX_RESIDUAL:
        raise InfeasibleError(
            f"allocation of edge {problem.present[np.abs(delay - slowest).argmax()]}: the shared deadline of "
            f"{slowest:.6g} s is missed by {residual:.1g} of it; use allocation.coupling 'per_edge', or leave out the "
            "device with the weakest link"
        )
    return _to_allocation(problem, solution, weight, fleet.num_edges, residual, float((objective - bound) / objective))


def check_solution(problem: Ragged, solution: Solution, devices: IntArray) -> None:
    """Raise InfeasibleError, naming the edge and a device, if a solution is not finite or has not converged."""
    bad = np.flatnonzero(~(np.isfinite(solution.feasible.bound_j) & (solution.residual <= MAX_RESIDUAL)))
    if bad.size:
        inside = slice(problem.edges.offsets[bad[0]], problem.edges.offsets[bad[0] + 1])
        snr_hz = problem.edges.devices.snr[inside]
        worst = problem.order[inside][np.argmin(snr_hz)]
        raise InfeasibleError(
            f"allocation of edge {problem.present[bad[0]]}: no deadline that its devices meet is a finite number; "
            f"device {devices[worst]} has the weakest link (gain·power/noise = {snr_hz.min():.3g} Hz); "
            "leave it out of the schedule, or assign it to another edge"
        )


def _to_allocation(
    problem: Ragged, solution: Solution, weight: FloatArray, num_edges: int, residual: float, gap: float
) -> Allocation:
    """Return a batch's solution in the order of the schedule and of the fleet's edges."""
    devices, filled = np.empty((3, len(problem.order))), np.zeros((3, num_edges))
    feasible, unknowns = solution.feasible, solution.unknowns
    devices[:, problem.order] = feasible.bandwidth_hz, feasible.cpu_hz, np.exp(unknowns.log_delay_price)
    filled[:, problem.present] = np.exp(unknowns.log_bandwidth_price), feasible.delay_s, weight
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
