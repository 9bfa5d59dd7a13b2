"""Allocate a whole round of at most a few thousand devices in one compiled call.

The call checks the arguments, sets up the problems, solves and certifies them. `hflray.allocation.newton` does the same
in NumPy, where these steps take several times longer than the kernel on a 10-device edge. This call detects that an
argument is wrong; the steps in NumPy then say which one. It has no bisection, so that it compiles a fifth faster; the
steps in NumPy solve a round that needs it.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.batch import TOL
from hflray.allocation.kernels.bundles import Devices, Guess, Setting
from hflray.allocation.kernels.certificate import certify
from hflray.allocation.kernels.edge import attempt_edge
from hflray.allocation.kernels.jit import kernel, shared
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.allocation.link import compute_cycles, received_snr_hz
from hflray.support.arrays import FloatArray, IntArray

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
            setting = Setting(edge_bandwidth[m], weight, bits, alpha)
            solved = attempt_edge(edge_devices, setting, x[i:j], y[i:j], Guess(0.0, 0.0, False), TOL, scratch)
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
