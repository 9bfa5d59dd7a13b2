"""The physical system as arrays over N devices and M edges.

A fleet of up to `DENSE_LINKS` links holds all distances and gains as (N, M) matrices. A larger fleet holds positions,
and computes links on demand (`hflray.fleet.links`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hflray.config import CostConfig, FleetConfig
from hflray.config.system import TreeConfig
from hflray.errors import ConfigError
from hflray.fleet import links as link
from hflray.fleet.links import Indexed, LinkArray, Links, first, on_demand
from hflray.fleet.tree import CLOUD_ALONE, Tree
from hflray.physics import Access, Compute, Device, Download, Link, Work
from hflray.physics.access import Fdma, MeasuredAccess, NoDownload
from hflray.physics.computing import Dvfs
from hflray.physics.equations import rate_bps
from hflray.physics.own import KINDS, CheckedAccess, CheckedCompute, CheckedDownload, name_of, parts_of
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.limits import available_cpus

MEASURED = ("fixed_s", "step_s", "seconds_per_sample", "compute_w", "upload_w")  # what tables may say of a device
LINKS = ("distance_m", "gain")  # of a large fleet they are computed on demand
# The axes of what a fleet has of its n devices and m edges, some of which may be missing.
AXES: dict[str, tuple[str, ...]] = {
    "position_m": ("n", "2"),
    **dict.fromkeys(("cycles_per_sample", "samples", "power_w", "max_cpu_hz", "capacitance", "battery_j"), ("n",)),
    **dict.fromkeys((*MEASURED, "device_names"), ("n",)),
    **dict.fromkeys(("cloud_gain", "edge_power_w", "edge_bandwidth_hz", "downlink_hz"), ("m",)),
    **dict.fromkeys(("edge_names", "edge_parents"), ("m",)), "edge_position_m": ("m", "2"),
    **dict.fromkeys((*LINKS, "latency_s"), ("n", "m")),
}  # fmt: skip
MOVING_LINKS = 2_000  # largest N·M for which all links of moving devices are computed in each round
FDMA, DVFS, NO_DOWNLOAD = Fdma(), Dvfs(), NoDownload()  # the paper's
TRIED = 8  # devices with which an own part is tried
AT_ONCE = 200_000  # links per step when all edges of many devices are computed, so that a step fits in the CPU's cache


@dataclass(frozen=True, eq=False)
class Fleet:
    """N devices, M edges and one cloud. All arrays are float64 and read-only.

    Attributes:
        position_m: device positions in the square, (N, 2), m; in a large fleet that moves, what looks them up.
        edge_position_m: edge positions, (M, 2), m; the cloud is in the middle of the square.
        distance_m: distance from device to edge, clamped from below, (N, M), m; a `LinkArray` in a large fleet.
        gain: linear power gain ḡ_n^m of each link, (N, M); a `LinkArray` in a large fleet.
        cloud_gain: linear power gain of each edge's link to the cloud, (M,).
        cycles_per_sample: u_n, (N,), cycles.
        samples: D_n, (N,), samples.
        power_w: p_n, (N,), W.
        max_cpu_hz: f_n^max, (N,), Hz.
        edge_power_w: p^m, (M,), W.
        edge_bandwidth_hz: B_m, (M,), Hz.
        cloud_bandwidth_hz: B, the bandwidth of each edge's hop to the cloud, Hz.
        noise_w_per_hz: N_0, W/Hz.
        capacitance: the paper's α (the energy formula has the ½), J·s²/cycles³: one number, or one a device, (N,).
        links: data from which a large fleet computes its links; None if the fleet holds the matrices.
        fixed_gain: whether gains were given, so that they do not follow from positions.
        is_placed: whether positions of devices were given, from which motion then starts.
        battery_j: the capacity of each device's battery, (N,), J; None: that of ``world.battery``.
        device_names, edge_names: what the user calls each device, N texts, and each edge, M texts; None: their indices.
        edge_parents: the region of each edge, M texts; None: the nearest one, where there are regions.
        tree: what lies above the edges (`Fleet.with_tree`).
        access, compute, download: how devices share an uplink, compute and get the model (`Fleet.with_physics`).
        downlink_hz: the bandwidth with which an edge sends to its devices, (M,), Hz; None: `edge_bandwidth_hz`. They
            differ only while devices under way hold a part of the uplink.
        has_rates: whether rates of links were given.
        latency_s: what an upload over each link takes besides its bits, (N, M), s; None: nothing.
        fixed_s, step_s, seconds_per_sample, compute_w, upload_w: what was measured of each device, (N,), see
            `hflray.physics.Device` and `hflray.physics.Link`; None: it was not given.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=2), np.random.default_rng(0))
        >>> fleet.num_devices, fleet.num_edges, fleet.gain.shape
        (4, 2, (4, 2))
    """

    position_m: FloatArray | Indexed
    edge_position_m: FloatArray
    distance_m: FloatArray | LinkArray
    gain: FloatArray | LinkArray
    cloud_gain: FloatArray
    cycles_per_sample: FloatArray
    samples: FloatArray
    power_w: FloatArray
    max_cpu_hz: FloatArray
    edge_power_w: FloatArray
    edge_bandwidth_hz: FloatArray
    cloud_bandwidth_hz: float
    noise_w_per_hz: float
    capacitance: float | FloatArray
    links: Links | None = None
    fixed_gain: bool = False
    is_placed: bool = False
    battery_j: FloatArray | None = None
    device_names: tuple[str, ...] | None = None
    edge_names: tuple[str, ...] | None = None
    edge_parents: tuple[str, ...] | None = None
    tree: Tree = CLOUD_ALONE
    access: Access = FDMA
    compute: Compute = DVFS
    download: Download = NO_DOWNLOAD
    downlink_hz: FloatArray | None = None
    has_rates: bool = False
    latency_s: FloatArray | None = None
    fixed_s: FloatArray | None = None
    step_s: FloatArray | None = None
    seconds_per_sample: FloatArray | None = None
    compute_w: FloatArray | None = None
    upload_w: FloatArray | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                # Copy the array: the caller's own must stay writable, and a frozen view could change with its base.
                value = np.array(value, dtype=np.float64, order="C")
                value.flags.writeable = False
                object.__setattr__(self, field.name, value)
        lengths = {"n": len(self.samples), "m": len(self.edge_bandwidth_hz), "2": 2}
        for name, axes in AXES.items():
            value, shape = getattr(self, name), tuple(lengths[axis] for axis in axes)
            if value is None or isinstance(value, float) or (got := np.shape(value)) == shape:
                continue
            least = min(len(got) and got[0], shape[0])
            raise ConfigError(
                f"{name}[{least}]: got shape {got}, expected {shape} for {lengths['n']} devices (the length of "
                f"samples) and {lengths['m']} edges (of edge_bandwidth_hz); the arrays must be of equal length"
            )

    @classmethod
    def of(
        cls, config: FleetConfig | None = None, rng: np.random.Generator | None = None, **arrays: ArrayLike | None
    ) -> Fleet:
        """Make a fleet of arrays of one's own; what is not given is drawn as ``fleet.name: random`` draws it.

        Args:
            config: the section ``fleet``; None: the default one, with N and M of the arrays, and the square from 0 in
                which the given positions lie.
            rng: draws what is not given; None: everything else must be given but positions, D_n and α.
            **arrays: in which NaN stands for a number that is drawn:

                ======================  ======  ============  ========================================================
                name                    shape   unit          meaning
                ======================  ======  ============  ========================================================
                ``position_m``          (N, 2)  m             device positions in the square, from 0
                ``cycles_per_sample``   (N,)    cycles        u_n
                ``seconds_per_sample``  (N,)    s             u_n / f_n^max, in place of u_n
                ``fixed_s``             (N,)    s             what an edge iteration takes besides its steps
                ``step_s``              (N,)    s             what a step takes besides its samples
                ``compute_w``           (N,)    W             what a device draws while it computes
                ``upload_w``            (N,)    W             what a device draws while it sends
                ``max_cpu_hz``          (N,)    Hz            f_n^max
                ``power_w``             (N,)    W             p_n
                ``capacitance``         (N,)    J·s²/cycles³  α
                ``battery_j``           (N,)    J             capacity of the battery, with ``world.battery`` only
                ``edge_position_m``     (M, 2)  m             edge positions
                ``edge_power_w``        (M,)    W             p^m
                ``edge_bandwidth_hz``   (M,)    Hz            B_m
                ``cloud_gain``          (M,)    1             linear power gain to the cloud
                ``cloud_rate_bps``      (M,)    bit/s         rate to the cloud, in place of its gain
                ``gain``                (N, M)  1             linear power gain of each link, in place of path loss
                ``rate_bps``            (N, M)  bit/s         rate of a link that has all of B_m, in place of its gain
                ``latency_s``           (N, M)  s             what an upload over a link takes besides its bits
                ``device_names``        (N,)    texts         what reports call the devices
                ``edge_names``          (M,)    texts         what reports call the edges
                ``edge_parents``        (M,)    texts         the region of each edge, for ``tree.region``
                ======================  ======  ============  ========================================================

        Raises:
            ConfigError: an array has another shape, a value is not finite and above 0, or a position lies outside of
                the area; the message names the array and its first bad index.

        Examples:
            >>> from hflray import Fleet, FleetConfig
            >>> import numpy as np
            >>> config, rng = FleetConfig(num_devices=3, num_edges=2), np.random.default_rng(0)
            >>> Fleet.of(config, rng, max_cpu_hz=[1e9, 2e9, np.nan]).max_cpu_hz.tolist()
            [1000000000.0, 2000000000.0, 2000000000.0]
        """
        from hflray.fleet.build import fleet_of  # it draws fleets, which is built on this class

        return fleet_of(config, rng, arrays)

    @property
    def num_devices(self) -> int:
        """The number of devices, N."""
        return len(self.samples)

    @property
    def num_edges(self) -> int:
        """The number of edges, M."""
        return len(self.edge_bandwidth_hz)

    def take(self, devices: ArrayLike) -> Fleet:
        """Return the fleet of these devices only (in this order), with all the edges.

        Raises:
            ConfigError: an index is not an integer, or not of this fleet.
        """
        index = np.asarray(devices)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):  # a mask would be read as zeros and ones
            raise ConfigError(f"devices: got shape {index.shape} of {index.dtype}; a 1-D array of integers is needed")
        bad = np.flatnonzero((index < 0) | (index >= self.num_devices))
        if bad.size:
            raise ConfigError(
                f"devices[{bad[0]}]: device {index[bad[0]]} does not exist; accepted: 0 to {self.num_devices - 1}"
            )
        index = index.astype(np.intp)
        chosen = self._chosen("n", index)
        if self.links is None or index.size * self.num_edges <= link.DENSE_LINKS:
            return replace(self, **chosen, distance_m=self.distance_m[index], gain=self.gain[index], links=None)
        links = replace(self.links, number=self.links.number[index], position_m=chosen["position_m"])
        return replace(self, **chosen, **on_demand(links))

    def take_edges(self, edges: ArrayLike) -> Fleet:
        """Return the fleet with these edges only (in this order); its links are those of the edges' own numbers.

        An assigner's answer for it counts the edges of the new fleet: ``edges[answer]`` are those of this one.
        """
        index = np.asarray(edges, dtype=np.intp)
        chosen = {**self._chosen("m", index), "tree": self.tree.take_edges(index)}
        if self.links is None:
            distance_m, gain = np.asarray(self.distance_m)[:, index], np.asarray(self.gain)[:, index]
            return replace(self, **chosen, distance_m=distance_m, gain=gain)
        links = replace(
            self.links, edge_number=self.links.edge_number[index], edge_position_m=chosen["edge_position_m"]
        )
        return replace(self, **chosen, **on_demand(links))

    def _chosen(self, axis: str, index: IntArray) -> dict[str, Any]:
        """Return what the fleet has of some of its devices (``n``) or edges (``m``), but for its `LINKS`."""
        chosen: dict[str, Any] = {}
        for name, axes in AXES.items():
            value = getattr(self, name)
            if axis not in axes or name in LINKS or value is None or isinstance(value, float):
                continue
            if isinstance(value, tuple):
                chosen[name] = tuple(value[i] for i in index)
            else:
                chosen[name] = value[index] if axis == axes[0] else value[:, index]
        return chosen

    def moved(
        self,
        position_m: FloatArray | Indexed,
        config: FleetConfig,
        shadowing: Callable[[IntArray, IntArray, FloatArray], FloatArray],
    ) -> Fleet:
        """Return the fleet with its devices at other positions, (N, 2), m; it must be a whole fleet.

        `config` gives the path loss, and `shadowing` is that of `Links`. More than `MOVING_LINKS` links are computed on
        demand.
        """
        devices, edges = np.arange(self.num_devices), np.arange(self.num_edges)
        links = Links(config, 0, devices, edges, position_m, self.edge_position_m, shadowing=shadowing)
        if self.num_devices * self.num_edges > MOVING_LINKS:
            return replace(self, position_m=position_m, **on_demand(links))
        distance_m, gain = links.distance_m(devices[:, None], edges), links.gain(devices[:, None], edges)
        return replace(self, position_m=position_m, distance_m=distance_m, gain=gain, links=None)

    def with_factor(self, factor: Callable[[IntArray, IntArray], FloatArray]) -> Fleet:
        """Return the fleet with the gain of each link times a factor.

        `factor` returns it for the numbers of devices and of edges, of shapes that broadcast. A fleet that holds its
        gains must be the whole one, in which these are the indices.
        """
        if self.links is not None:
            return replace(self, **on_demand(replace(self.links, factor=factor)))
        devices, edges = np.arange(self.num_devices)[:, None], np.arange(self.num_edges)
        return replace(self, gain=np.asarray(self.gain) * factor(devices, edges))

    def gain_of(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Return the linear power gains ``gain[devices, edges]``, for indices of any shapes that broadcast."""
        return np.asarray(self.gain[np.asarray(devices), np.asarray(edges)])

    @property
    def strength(self) -> FloatArray | LinkArray:
        """How strong each link is, (N, M): its gain, or the rate of `MeasuredAccess` in whole bit/s.

        A measured link's gain depends on the edge's B_m, which may have been drawn, and which that access never uses.
        """
        if not isinstance(self.access, MeasuredAccess):
            return self.gain
        rate = rate_bps(self.edge_bandwidth_hz, np.asarray(self.gain), self.power_w[:, None], self.noise_w_per_hz)
        return np.rint(rate)  # so that equal rates are equal whatever gains were solved for them

    def nearest_edges(self, devices: ArrayLike, count: int = 1) -> IntArray:
        """Return the `count` nearest edges of each device, nearest first, (n, count); ties go to the lower index.

        Distances are clamped, so two edges within the smallest distance are equally near.
        """
        index = np.asarray(devices, dtype=np.intp)
        if self.links is None:
            return first(np.asarray(self.distance_m[index]), count)
        from scipy.spatial import cKDTree

        # Query a few more edges and sort again, because the tree ignores the clamp and the order of ties.
        candidates = min(self.num_edges, count + 4)
        edges = cKDTree(self.edge_position_m).query(self.position_m[index], k=np.arange(1, candidates + 1))[1]
        edges = np.sort(edges.reshape(len(index), candidates), axis=1)
        near = first(self.links.distance_m(index[:, None], edges), count)
        return np.asarray(np.take_along_axis(edges, near, axis=1), dtype=np.intp)

    def strongest_edges(self, devices: ArrayLike, count: int = 1) -> IntArray:
        """Return the `count` edges of strongest links (`strength`) of each device, strongest first, (n, count).

        Ties go to the lower index. A large fleet looks at all links of a few devices at a time.
        """
        index = np.asarray(devices, dtype=np.intp)
        links = self.links
        if links is None:
            return first(-np.asarray(self.strength[index]), count)
        edges = np.empty((len(index), count), dtype=np.intp)
        step = max(1, AT_ONCE // self.num_edges)

        def find(i: int) -> None:
            edges[i : i + step] = links.strongest(index[i : i + step], count)

        with ThreadPoolExecutor(len(available_cpus())) as pool:  # NumPy releases the interpreter lock
            for done in [pool.submit(find, i) for i in range(0, len(index), step)]:
                done.result()
        return edges

    def capacitance_of(self, devices: IntArray) -> float | FloatArray:
        """Return α, J·s²/cycles³, of some devices: one number for all, or one for each."""
        return self.capacitance if isinstance(self.capacitance, float) else np.asarray(self.capacitance)[devices]

    def of_one_capacitance(self) -> tuple[Fleet, FloatArray | float]:
        """Return a fleet of the same delays and energies whose α is one number, and how its frequencies are scaled.

        With s = (α_n / α)^⅓, a device of s u_n cycles at s f Hz takes as long and needs as much energy as one of u_n
        cycles at f with α_n. The second value is s, (N,) or 1.
        """
        if not np.ndim(self.capacitance):
            return self, 1.0
        alpha = float(np.median(self.capacitance))
        scale = np.cbrt(np.asarray(self.capacitance) / alpha)
        scaled = {name: getattr(self, name) * scale for name in ("cycles_per_sample", "max_cpu_hz")}
        return replace(self, capacitance=alpha, **scaled), scale

    @property
    def is_papers(self) -> bool:
        """Whether devices share uplinks by frequency and choose frequencies of CPUs, and downloads take nothing."""
        return type(self.access) is Fdma and type(self.compute) is Dvfs and type(self.download) is NoDownload

    def uplinks(self, devices: IntArray, edges: IntArray, gain: FloatArray | None = None) -> Link:
        """Return the links of some devices to an edge each, (n,); other gains may be given than the fleet's, (n,)."""
        gain = self.gain_of(devices, edges) if gain is None else gain
        return self._links(devices, edges, gain, self.power_w[devices])

    def downlinks(self, devices: IntArray, edges: IntArray) -> Link:
        """Return the links of an edge each to some devices, (n,): the gains of their uplinks, and the edges' power."""
        link = self._links(devices, edges, self.gain_of(devices, edges), self.edge_power_w[edges])
        return link if self.downlink_hz is None else replace(link, bandwidth_hz=self.downlink_hz[edges])

    def _links(self, devices: IntArray, edges: IntArray, gain: FloatArray, power_w: FloatArray) -> Link:
        latency_s = np.zeros(len(devices)) if self.latency_s is None else self.latency_s[devices, edges]
        draws_w = np.full(len(devices), np.nan) if self.upload_w is None else self.upload_w[devices]
        return Link(gain, power_w, self.edge_bandwidth_hz[edges], self.noise_w_per_hz, latency_s, draws_w)

    def computers(self, devices: IntArray) -> Device:
        """Return what some devices are as computers, (n,)."""
        index = np.asarray(devices)
        cycles, most_hz = self.cycles_per_sample[index], self.max_cpu_hz[index]

        def measured(name: str, otherwise: FloatArray) -> FloatArray:
            return otherwise if (array := getattr(self, name)) is None else np.asarray(array)[index]

        nothing = np.zeros(len(index))
        has_steps = self.fixed_s is not None or self.step_s is not None
        return Device(
            cycles,
            most_hz,
            np.broadcast_to(self.capacitance_of(index), len(index)),
            measured("fixed_s", nothing),
            measured("step_s", nothing),
            measured("seconds_per_sample", nothing if has_steps else cycles / most_hz),
            measured("compute_w", np.full(len(index), np.nan)),
        )

    def with_physics(self, config: CostConfig) -> Fleet:
        """Return the same fleet with the access, the computing and the download that the section ``cost`` names.

        Own ones are tried with a few devices.

        Raises:
            ConfigError: a part lacks a column of the fleet's table, or does not keep its contract.
        """
        made = replace(self, **parts_of(config))
        made.check_needs()
        made._try_own()
        return made

    def check_needs(self) -> None:
        """Raise ConfigError if a part lacks a column of the fleet's table; it has a line for each such part."""
        if self._lacks:
            raise ConfigError(self._lacks)

    @cached_property
    def _lacks(self) -> str:
        lines = []
        for kind in KINDS:
            part = getattr(self, kind)
            lacking = [names for names in part.needs if not any(self._has(name) for name in names)]
            if lacking:
                lines.append(
                    f"cost.{kind}.name: got {name_of(kind, part)}, and the fleet does not have "
                    f"{' and '.join(map(self._column, lacking))}; accepted with it: "
                    f"{', '.join(map(' or '.join, part.needs))}; add these columns to the fleet's table, or these "
                    "arrays to Fleet.of"
                )
        return "\n".join(lines)

    def _has(self, column: str) -> bool:
        if column == "mbps":
            return self.has_rates
        array = getattr(self, column, None)
        return array is not None and bool(np.isfinite(array).all())

    def _column(self, names: tuple[str, ...]) -> str:
        """Return names of a column that is not whole in words, with the first device that has an empty cell."""
        words = f"{' or '.join(names)} of every {'link' if names[0] in ('mbps', 'latency_s') else 'device'}"
        column = next((array for name in names if (array := getattr(self, name, None)) is not None), None)
        if column is None:
            return words
        device = int(np.argwhere(~np.isfinite(column))[0, 0])
        return f"{words} (none of device {device if self.device_names is None else self.device_names[device]})"

    def _try_own(self) -> None:
        """Try the parts that are a user's own. Raises ConfigError: see `with_physics`."""
        devices = np.arange(min(TRIED, self.num_devices))
        edges = devices % self.num_edges
        if isinstance(self.access, CheckedAccess):
            self.access.try_out(self.uplinks(devices, edges), 1e6)
        if isinstance(self.compute, CheckedCompute):
            samples = self.samples[devices]
            self.compute.try_out(self.computers(devices), Work(samples, samples, samples))
        if isinstance(self.download, CheckedDownload):
            self.download.try_out(self.downlinks(devices, edges), edges, 1e6)

    def with_tree(self, tree: TreeConfig, config: FleetConfig, seed: int) -> Fleet:
        """Return the same fleet with what lies above its edges, as the section ``tree`` says (`Tree.of`)."""
        made = Tree.of(tree, config, self.edge_position_m, seed, self.edge_parents, self.edge_names)
        return replace(self, tree=made)

    def with_edges_up(self, up: BoolArray) -> Fleet:
        """Return the same fleet where the edges that are not `up`, (M,), make no hop (`hflray.cost.hops`)."""
        return replace(self, tree=replace(self.tree, up=up))

    def with_samples(self, samples: ArrayLike) -> Fleet:
        """Return the same fleet with `samples` (N,): an experiment's D_n are its partition's sizes."""
        array = np.array(samples, dtype=np.float64)
        if array.shape != (self.num_devices,):
            raise ConfigError(f"samples: got shape {array.shape}, expected ({self.num_devices},), one size a device")
        return replace(self, samples=array)
