"""Compute exact bandwidths and CPU frequencies with the Newton kernels, in microseconds per edge.

``per_edge`` solves problem (27) of the paper for each edge (docs/design.md, "The allocation problem"); `kernels.edge`
has the equations. ``joint`` gives all edges one deadline; see `kernels.joint`. Every solution carries the proof of its
optimality: the prices, the KKT residual and the duality gap.

`allocate_in_one_call` checks, sets up, solves and certifies a round of at most a few thousand devices in one compiled
call. `allocate` does the same in NumPy, where these steps take 0.2 ms for 50 devices at 5 edges instead of 0.03 ms: 5 %
of planning a round with HFEL-300, and 14 % with the learned assigner. The compiled call detects that an argument is
wrong; the steps in NumPy then say which one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation.instance import Allocation, Ragged, compute_cycles, ragged, received_snr_hz
from hflray.allocation.kernels.bundles import Devices, Edges, EdgeSetting, Feasible, Guess, Solution, Unknowns
from hflray.allocation.kernels.edge import certify, certify_edges, new_feasible, new_solution, solve_edge, solve_edges
from hflray.allocation.kernels.jit import kernel, shared
from hflray.allocation.kernels.joint import new_joint_solution, solve_joint
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.cost import Workload, hops
from hflray.errors import InfeasibleError
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.limits import available_cpus

TOL = 1e-10  # largest accepted KKT residual; Newton's last step mostly ends near 1e-14
THREADED = 4096  # batches of more devices are faster with threads
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
    (b, f, pi), (mu, tau) = per_device, per_edge
    return Allocation(b, f, pi, mu, tau, np.full(fleet.num_edges, work.delay_weight), residual, gap)


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
    feasible = solution.feasible
    check_solution(problem, feasible, solution.residual, devices)
    objective = feasible.energy_j + weight * feasible.delay_s
    gap = float(((objective - feasible.bound_j) / objective).max())
    return _to_allocation(
        problem, solution.unknowns, feasible, weight, fleet.num_edges, float(solution.residual.max()), gap
    )


def _allocate_joint(fleet: Fleet, work: Workload, devices: IntArray, problem: Ragged) -> Allocation:
    """Return the solution under one deadline for all edges, with a duality gap of the whole round."""
    hop_delay, hop_energy = hops(fleet, work)
    empty = np.setdiff1d(np.arange(fleet.num_edges), problem.present)
    floor = float(hop_delay[empty].max()) if empty.size and work.cloud_hop else -np.inf
    hop, q = hop_delay[problem.present], float(work.edge_iterations)
    joint = new_joint_solution(len(problem.order), len(problem.present))
    solve_joint(problem.edges, hop, floor, float(work.delay_weight), q, joint, TOL)
    weight = np.exp(joint.log_weight)
    feasible = new_feasible(len(problem.order), len(problem.present))
    certify_edges(problem.edges, weight, joint.unknowns, feasible)
    check_solution(problem, feasible, joint.residual, devices)
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
    residual = max(float(joint.residual.max()), float(np.abs(delay / slowest - 1.0).max()))
    if not residual <= MAX_RESIDUAL:
        raise InfeasibleError(
            f"allocation of edge {problem.present[np.abs(delay - slowest).argmax()]}: the shared deadline of "
            f"{slowest:.6g} s is missed by {residual:.1g} of it; use allocation.coupling 'per_edge', or leave out the "
            "device with the weakest link"
        )
    gap = float((objective - bound) / objective)
    return _to_allocation(problem, joint.unknowns, feasible, weight, fleet.num_edges, residual, gap)


def check_solution(problem: Ragged, feasible: Feasible, residual: FloatArray, devices: IntArray) -> None:
    """Raise InfeasibleError, naming the edge and a device, if a solution is not finite or has not converged."""
    bad = np.flatnonzero(~(np.isfinite(feasible.bound_j) & (residual <= MAX_RESIDUAL)))
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
    problem: Ragged,
    unknowns: Unknowns,
    feasible: Feasible,
    weight: FloatArray,
    num_edges: int,
    residual: float,
    gap: float,
) -> Allocation:
    """Return a solution in the order of the schedule and of the fleet's edges."""
    devices, filled = np.empty((3, len(problem.order))), np.zeros((3, num_edges))
    devices[:, problem.order] = feasible.bandwidth_hz, feasible.cpu_hz, np.exp(unknowns.log_delay_price)
    filled[:, problem.present] = np.exp(unknowns.log_bandwidth_price), feasible.delay_s, weight
    (b, f, pi), (mu, tau, price) = devices, filled
    return Allocation(b, f, pi, mu, tau, price, residual, gap)


def solve_batch(
    edges: Edges, delay_weight: FloatArray, warm: Solution | None = None, threads: int | None = None
) -> Solution:
    """Return the solution of a batch of edges. The values are not checked; `hflray.allocation.newton` does that.

    Args:
        edges: the problems.
        delay_weight: λ of each edge, (e,), J/s.
        warm: the solution of a similar batch of the same shape, from which the iterations start.
        threads: number of threads; None takes all cores for a large batch and one for a small batch.
    """
    solution = new_solution(len(edges.devices.snr), len(edges.bandwidth))
    if warm is not None:
        for unknown, start in zip(solution.unknowns, warm.unknowns, strict=True):
            unknown[:] = start

    def solve(first: int, last: int) -> None:
        solve_edges(edges, delay_weight, first, last, warm is not None, TOL, solution)

    count, devices = len(edges.bandwidth), int(edges.offsets[-1])
    if threads is None:
        threads = len(available_cpus()) if devices >= THREADED else 1
    if threads <= 1 or count <= 1:
        solve(0, count)
        return solution
    pieces = min(count, 4 * threads)  # several pieces per thread, because edges take different times
    cuts = np.searchsorted(edges.offsets, np.linspace(0, devices, pieces + 1)[1:-1])
    ends = np.unique(np.concatenate([[0], cuts, [count]]))
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(solve, int(i), int(j)) for i, j in pairwise(ends)]:
            future.result()
    return solution


_snr_hz, _cycles = shared(received_snr_hz), shared(compute_cycles)


@kernel
def positive(value: float) -> bool:
    """Return whether a value is finite and above 0."""
    return 0.0 < value < np.inf


@kernel
def allocate_in_one_call(
    gain: FloatArray,
    power: FloatArray,
    samples: FloatArray,
    cycles_per_sample: FloatArray,
    cap: FloatArray,
    edge_bandwidth: FloatArray,
    noise: float,
    alpha: float,
    bits: float,
    local_iterations: float,
    weight: float,
    devices: IntArray,
    assignment: IntArray,
) -> tuple[bool, FloatArray, FloatArray, float, float]:
    """Solve every edge of a round, with λ per edge. The arguments are fields of `Fleet` and `Workload`.

    They are not NamedTuples, because Python calls this function: packing and unpacking NamedTuples there made
    `allocate_round` of one 10-device edge 29 % slower.

    Returns:
        Whether the arguments and the solution are valid (if not, ignore the other values); b, f and π of each device,
        (3, H); μ and τ of each edge, (2, M); the largest KKT residual; the largest relative duality gap.
    """
    h_count, m_count = len(devices), len(edge_bandwidth)
    per_device, per_edge = np.zeros((3, h_count)), np.zeros((2, m_count))
    valid = h_count > 0 and len(assignment) == h_count
    valid &= positive(noise) and positive(alpha)
    offsets = np.zeros(m_count + 1, dtype=np.intp)
    scheduled = np.zeros(len(power), dtype=np.bool_)
    if valid:
        for i in range(h_count):
            n, m = devices[i], assignment[i]
            if not (0 <= n < len(power) and 0 <= m < m_count) or scheduled[n]:
                valid = False
                break
            scheduled[n] = True
            offsets[m + 1] += 1
            valid &= positive(power[n]) and positive(cap[n]) and positive(gain[n, m])
            valid &= positive(samples[n]) and positive(cycles_per_sample[n])
        for m in range(m_count):
            valid &= positive(edge_bandwidth[m])
            offsets[m + 1] += offsets[m]
    if not valid:
        return False, per_device, per_edge, 0.0, 0.0
    order, next_slot = np.empty(h_count, dtype=np.intp), offsets.copy()
    snr, cycles, powers, caps, x, y, b, f = np.empty((8, h_count))
    for i in range(h_count):
        n, m = devices[i], assignment[i]
        k = next_slot[m]
        next_slot[m] += 1
        order[k] = i
        snr[k] = _snr_hz(gain[n, m], power[n], noise)
        cycles[k] = _cycles(local_iterations, cycles_per_sample[n], samples[n])
        powers[k], caps[k] = power[n], cap[n]
    # `edges.solve_edges` is not used: making its arrays makes `allocate_round` of one small edge 8 % slower.
    scratch = scratch_for_edges(offsets, 0, m_count)
    residual = gap = 0.0
    for m in range(m_count):
        i, j = offsets[m], offsets[m + 1]
        if j > i:
            edge_devices = Devices(snr[i:j], cycles[i:j], powers[i:j], caps[i:j])
            setting = EdgeSetting(edge_bandwidth[m], weight, bits, alpha)
            solved = solve_edge(edge_devices, setting, x[i:j], y[i:j], Guess(0.0, 0.0, False), TOL, scratch)
            if not solved.residual <= TOL:
                return False, per_device, per_edge, 0.0, 0.0
            energy, delay, bound = certify(j - i, scratch.reshape(-1), setting, solved.price, b[i:j], f[i:j])
            per_edge[0, m], per_edge[1, m] = np.exp(solved.price), delay
            objective = energy + weight * delay
            valid &= np.isfinite(bound)
            residual, gap = max(residual, solved.residual), max(gap, (objective - bound) / objective)
    for k in range(h_count):
        i = order[k]
        per_device[0, i], per_device[1, i], per_device[2, i] = b[k], f[k], np.exp(y[k])
    return valid, per_device, per_edge, residual, gap
