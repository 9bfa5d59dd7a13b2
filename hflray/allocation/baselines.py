"""The allocations of other papers, with which the optimum is compared.

**The equal split**: each device of an edge gets B_m / n of the bandwidth and computes at its largest frequency. Most
papers on federated learning over wireless networks compare with it. Devices with weak links or long computations finish
late under it, because nothing is moved to them.

**A fixed frequency**: every device computes at its largest frequency, and bandwidth alone is allocated optimally. This
is the allocation of papers that do not scale the CPU frequency: problem (27) of the paper with f = f_max. The problem
without the energy of computing (α → 0) has the same optimal bandwidths: computing faster then is free, so no device
would gain from a frequency below f_max. `newton` solves that problem, and f_max replaces its frequencies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hflray.allocation.instance import Allocation, checked_gain
from hflray.cost import Workload
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

FREE = 1e-60  # α in J·s²/cycles³, at which the energy of computing is below the last bit of every objective


def allocate_equal(fleet: Fleet, devices: IntArray, edges: IntArray) -> Allocation:
    """Return the equal split of each edge. Raises ConfigError: a value is not finite and above 0."""
    checked_gain(fleet, devices, edges)
    share = np.bincount(edges, minlength=fleet.num_edges)
    return Allocation(bandwidth_hz=fleet.edge_bandwidth_hz[edges] / share[edges], cpu_hz=fleet.max_cpu_hz[devices])


def allocate_fixed_cpu(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, coupling: str) -> Allocation:
    """Return the optimal bandwidths at the largest frequencies; see `hflray.allocation.allocate_round`.

    The prices, the residual and the gap are those of the problem without the energy of computing.

    Raises:
        ConfigError: a value is not finite and above 0; the message names the array and its first bad index.
        InfeasibleError: an edge has no finite deadline in floating point; the message names the edge and a device.
    """
    from hflray.allocation import newton  # with Numba, which the equal split does not need

    solved = newton.allocate(replace(fleet, capacitance=FREE), work, devices, edges, coupling)
    return replace(solved, cpu_hz=fleet.max_cpu_hz[devices])
