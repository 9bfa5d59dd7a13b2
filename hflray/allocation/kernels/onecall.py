"""A whole round in one call to Numba: checks, layout, solution, certificate. For rounds of a few thousand devices at
most.

The same steps as `hflray.allocation.newton` makes one by one in NumPy, where they take several times longer than the
kernel on a 10-device edge. It finds that something is wrong, but not what: the ordinary path does, and says so.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.batch import TOL
from hflray.allocation.kernels.bundles import Devices, Guess, Setting
from hflray.allocation.kernels.certificate import certify
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel, shared
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.allocation.link import compute_cycles, received_snr_hz
from hflray.arrays import FloatArray, IntArray

_snr_hz, _cycles = shared(received_snr_hz), shared(compute_cycles)


@kernel
def positive(value: float) -> bool:
    """Finite and above 0; False for NaN."""
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
    """Solve every edge of a round, per edge. Arguments are the fields of `Fleet` and `Workload`.

    They are not bundled: Python calls this function once a round, and taking NamedTuples apart and putting one together
    there made `allocate_round` of one 10-device edge 29 % slower.

    Returns:
        whether all is well (if not, the rest means nothing); b, f and π of each device as rows (3, H); μ and τ of each
        edge as rows (2, M); the largest KKT residual; the largest relative duality gap.
    """
    h_count, m_count = len(devices), len(edge_bandwidth)
    per_device, per_edge = np.zeros((3, h_count)), np.zeros((2, m_count))
    well = h_count > 0 and len(assignment) == h_count
    well &= positive(noise) and positive(alpha)
    offsets = np.zeros(m_count + 1, dtype=np.intp)
    listed = np.zeros(len(power), dtype=np.bool_)
    if well:
        for i in range(h_count):
            n, m = devices[i], assignment[i]
            if not (0 <= n < len(power) and 0 <= m < m_count) or listed[n]:
                well = False
                break
            listed[n] = True
            offsets[m + 1] += 1
            well &= positive(power[n]) and positive(cap[n]) and positive(gain[n, m])
            well &= positive(samples[n]) and positive(cycles_per_sample[n])
        for m in range(m_count):
            well &= positive(edge_bandwidth[m])
            offsets[m + 1] += offsets[m]
    if not well:
        return False, per_device, per_edge, 0.0, 0.0
    order, filled = np.empty(h_count, dtype=np.intp), offsets.copy()
    snr, cycles, own_power, own_cap, x, y, b, f = np.empty((8, h_count))
    for i in range(h_count):
        n, m = devices[i], assignment[i]
        k = filled[m]
        filled[m] += 1
        order[k] = i
        snr[k] = _snr_hz(gain[n, m], power[n], noise)
        cycles[k] = _cycles(local_iterations, cycles_per_sample[n], samples[n])
        own_power[k], own_cap[k] = power[n], cap[n]
    # Not by `edges.solve_edges`: making the arrays that it fills makes `allocate_round` of one small edge 8 % slower.
    scratch = scratch_for_edges(offsets, 0, m_count)
    residual = gap = 0.0
    for m in range(m_count):
        i, j = offsets[m], offsets[m + 1]
        if j > i:
            own = Devices(snr[i:j], cycles[i:j], own_power[i:j], own_cap[i:j])
            setting = Setting(edge_bandwidth[m], weight, bits, alpha)
            solved = solve_edge(own, setting, x[i:j], y[i:j], Guess(0.0, 0.0, False), TOL, scratch)
            energy, delay, bound = certify(j - i, scratch.reshape(-1), setting, solved.price, b[i:j], f[i:j])
            per_edge[0, m], per_edge[1, m] = np.exp(solved.price), delay
            objective = energy + weight * delay
            well &= np.isfinite(bound)
            residual, gap = max(residual, solved.residual), max(gap, (objective - bound) / objective)
    for k in range(h_count):
        i = order[k]
        per_device[0, i], per_device[1, i], per_device[2, i] = b[k], f[k], np.exp(y[k])
    return well, per_device, per_edge, residual, gap
