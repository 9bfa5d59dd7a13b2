"""The equal split: each device of an edge gets B_m / n of the bandwidth and computes at its largest frequency.

Most papers on federated learning over wireless networks compare with this allocation. Devices with weak links or long
computations finish late under it, because nothing is moved to them.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation.instance import Allocation, check_fleet
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray


def allocate(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, coupling: str) -> Allocation:
    """Return the equal split of each edge; see `hflray.allocation.allocate_round`.

    Raises:
        ConfigError: the coupling is not ``per_edge``, or a value is not finite and above 0.
    """
    if coupling != "per_edge":
        raise ConfigError(
            f"allocation.coupling: '{coupling}' needs an allocation that weighs delay; accepted with "
            "allocation.method 'equal': per_edge; or set allocation.method: newton"
        )
    check_fleet(fleet, devices, edges)
    share = np.bincount(edges, minlength=fleet.num_edges)
    return Allocation(bandwidth_hz=fleet.edge_bandwidth_hz[edges] / share[edges], cpu_hz=fleet.max_cpu_hz[devices])
