"""Load-balanced assignment: no edge server's channel shall be busy for much longer than another's.

The load of an edge is the airtime of its devices: the seconds for which their uploads would occupy its whole bandwidth
one after the other. Devices come in order of their shortest airtime, longest first, and each goes to the edge whose
load is then the smallest.

Source: longest-first list scheduling, R. L. Graham: "Bounds on multiprocessing timing anomalies", SIAM Journal on
Applied Mathematics 17 (1969). Graham's machines are equal, so his bound does not hold here, where a device's airtime
differs from edge to edge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import Workload, check_assignment, rate_bps, upload_delay_s
from hflray.fleet import Fleet


class LoadBalanced:
    """An assigner that balances the airtime of the edges; of equal loads the lower index wins."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, edges = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        rates = rate_bps(
            fleet.edge_bandwidth_hz, fleet.gain[scheduled], fleet.power_w[scheduled, None], fleet.noise_w_per_hz
        )
        airtime_s = upload_delay_s(work.device_bits, rates)
        load_s = np.zeros(fleet.num_edges)
        for row in np.argsort(-airtime_s.min(axis=1), kind="stable"):
            edges[row] = np.argmin(load_s + airtime_s[row])
            load_s[edges[row]] += airtime_s[row, edges[row]]
        return edges
