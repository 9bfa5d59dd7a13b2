"""Links from a trace, ``world.fading: {name: trace}``: the gain or rate of each link over time, from CSV or Parquet.

The columns are ``time_s,device,edge`` and ``gain_db`` or ``mbps``. A line holds until the next one of its link, and
before its first line a link has the fleet's gain. A round has the links of the moment at which it is planned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.fleet.links import DENSE_LINKS
from hflray.fleet.random import gain_of_rate
from hflray.support.arrays import FloatArray
from hflray.support.checksum import digest
from hflray.support.tables import match, open_table
from hflray.world.fading import Fading
from hflray.world.trace import OfTrace, rising_times_s

SETTING = "world.fading.options.path"
VALUES = {"gain_db": (-400.0, 100.0, None), "mbps": (-np.inf, 1e9, 0.0)}  # least, most, above


class LinkTrace(OfTrace, Fading):
    """The factors by which a trace departs from the fleet's gains.

    Args:
        seed: see `Fading`; nothing is drawn.
        fleet: the devices and edges, whose names the trace has.
        path: the file. A rate ``mbps`` is that of the device alone with all of the edge's bandwidth B_m.

    Raises:
        ConfigError: the file is wrong; the message names the row and the column.
    """

    def __init__(self, *, seed: int, fleet: Fleet, path: str) -> None:
        super().__init__(seed=seed)
        self._shape = fleet.num_devices, fleet.num_edges
        if fleet.num_devices * fleet.num_edges > DENSE_LINKS:
            raise ConfigError(
                f"world.fading.name: got trace with {fleet.num_devices:,} devices and {fleet.num_edges:,} edges; "
                f"accepted: up to {DENSE_LINKS:,} links; take a smaller fleet"
            )
        table, content = open_table(SETTING, path)
        columns, _ = match(table, ("time_s", "device", "edge", *VALUES), {})
        for name in ("time_s", "device", "edge"):
            if name not in columns:
                raise ConfigError(
                    f"{table.name}: has no column {name}; accepted: time_s,device,edge and gain_db or mbps"
                )
        kinds = [name for name in VALUES if name in columns]
        if len(kinds) != 1:
            raise ConfigError(
                f"{table.name}: has {' and '.join(kinds) or 'neither gain_db nor mbps'}; accepted: one of them"
            )
        time_s = rising_times_s(table, columns["time_s"])
        names = fleet.device_names or tuple(map(str, range(fleet.num_devices)))
        devices = table.indices(columns["device"], names, "no device")
        names = fleet.edge_names or tuple(map(str, range(fleet.num_edges)))
        edges = table.indices(columns["edge"], names, "no edge")
        least, most, above = VALUES[kinds[0]]
        values = table.filled(columns[kinds[0]], least, most, above)
        if kinds[0] == "gain_db":
            gain = 10.0 ** (values / 10.0)
        else:
            power_w, hz = fleet.power_w[devices], fleet.edge_bandwidth_hz[edges]
            try:
                gain = gain_of_rate(values * 1e6, hz, power_w, fleet.noise_w_per_hz, "mbps")
            except ConfigError as error:
                raise ConfigError(f"{table.name}: {error}") from error
        self._time_s, self._devices, self._edges = time_s, devices, edges
        self._factors = gain / fleet.gain_of(devices, edges)
        self.digest = np.frombuffer(bytes.fromhex(digest(content)), dtype=np.uint8)
        self._now = np.ones(self._shape)
        self._next = 0
        self.advance(0.0)

    def advance(self, clock_s: float) -> None:
        """Take the lines until `clock_s`."""
        last = int(np.searchsorted(self._time_s, clock_s, side="right"))
        if last > self._next:
            lines = slice(self._next, last)
            self._now = self._now.copy()
            self._now[self._devices[lines], self._edges[lines]] = self._factors[lines]  # the last line of a link counts
            self._next = last

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return the factors of this moment."""
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        device, edge = (np.asarray(index, dtype=np.intp) for index in indices[1:3])
        return np.broadcast_to(self._now[device, edge], shape)

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy that shares the lines."""
        return copy.copy(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to the start. Raises ConfigError: the state was made with another file."""
        super().load_state_dict(state)
        self._now, self._next = np.ones(self._shape), 0
        self.advance(0.0)
