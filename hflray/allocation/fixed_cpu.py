"""Every device computes at its largest frequency, and bandwidth alone is allocated optimally.

This is the allocation of papers that do not scale the CPU frequency. It is problem (27) of the paper with f = f_max.
The problem without the energy of computing (α → 0) has the same optimal bandwidths: computing faster then is free,
so no device would gain from a frequency below f_max. `newton` solves that problem, and f_max replaces its frequencies.
"""

from __future__ import annotations

from dataclasses import replace

from hflray.allocation import newton
from hflray.allocation.instance import Allocation
from hflray.cost import Workload
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

FREE = 1e-60  # α in J·s²/cycles³, at which the energy of computing is below the last bit of every objective


def allocate(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, coupling: str) -> Allocation:
    """Return the optimal bandwidths at the largest frequencies; see `hflray.allocation.allocate_round`.

    The prices, the residual and the gap are those of the problem without the energy of computing.

    Raises:
        ConfigError: a value is not finite and above 0; the message names the array and its first bad index.
        InfeasibleError: an edge has no finite deadline in floating point; the message names the edge and a device.
    """
    solved = newton.allocate(replace(fleet, capacitance=FREE), work, devices, edges, coupling)
    return replace(solved, cpu_hz=fleet.max_cpu_hz[devices])
