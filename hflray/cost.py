"""The cost of a round in simulated seconds and joules: equations (4) to (14) of the paper.

Each equation is a function of its own over arrays. `round_cost` combines them for a schedule, an assignment and an
allocation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from hflray.config import ExperimentConfig
from hflray.config.decisions import LimitsConfig
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.physics import Access, Link, Work
from hflray.physics.access import Fdma, NoDownload
from hflray.physics.equations import compute_delay_s as compute_delay_s  # the names of equations stay public here
from hflray.physics.equations import compute_energy_j as compute_energy_j
from hflray.physics.equations import rate_bps as rate_bps
from hflray.physics.equations import upload_delay_s as upload_delay_s
from hflray.physics.equations import upload_energy_j as upload_energy_j
from hflray.support.arrays import BoolArray, FloatArray, IntArray, largest_of

FORWARD_SHARE = 1 / 3  # of a local iteration's cycles
Minimised = Literal["round", "mean_edge"]
NO_LIMITS = LimitsConfig()


class LocalSteps(NamedTuple):
    """Of what a local iteration is made.

    Attributes:
        local_iteration: see ``training.local_iteration``.
        batch_size: samples of a mini-batch.
    """

    local_iteration: Literal["epoch", "full_batch", "step"] = "epoch"
    batch_size: int = 64

    def of(self, samples: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient steps, and the samples processed in them, of devices with so many samples, (n,)."""
        if self.local_iteration == "epoch":
            return np.ceil(samples / self.batch_size), samples
        is_whole = self.local_iteration == "full_batch"
        return np.ones(len(samples)), samples if is_whole else np.minimum(samples, self.batch_size)


@dataclass(frozen=True, init=False)
class Workload:
    """The work of a round.

    Args:
        model_bits: z of both hops, bits, as the paper has it; or give `device_bits` and `edge_bits`.
        local_iterations, edge_iterations, delay_weight, cloud_hop: see below.
        device_bits, edge_bits: see below; None: z.

    Attributes:
        device_bits: what a device sends to its edge in an edge iteration, bits.
        local_iterations: L.
        edge_iterations: the edge iterations of a round: Q, or with regions Q times their `region_iterations`.
        delay_weight: λ, J/s; above 0.
        cloud_hop: whether the edges upload their models to the cloud; the bill of clustering (Algorithm 2) omits this.
        edge_bits: what an edge sends to the cloud in a round, or to its region each time, bits.
        region_iterations: how often regions combine their edges in a round; 1 without regions.
        region_bits: what a region sends to the cloud in a round, bits.
        minimise: what assignments minimise besides Σ E_m: λ times the largest T_m (``round``), or λ times the mean T_m
            over the edges with devices (``mean_edge``). It changes no bill.
        download_bits: what a device receives before each edge iteration, bits.
        limits: what a device may take in a round.
        steps: of what the L local iterations are made, for a computing that counts gradient steps.

    Raises:
        ConfigError: a value is not a finite number above 0, or `minimise` is another word.

    Examples:
        >>> from hflray import Workload
        >>> Workload(model_bits=1e6, local_iterations=5, edge_iterations=5, delay_weight=1.0).edge_bits
        1000000.0
    """

    device_bits: float
    local_iterations: int
    edge_iterations: int
    delay_weight: float
    cloud_hop: bool
    edge_bits: float
    minimise: Minimised
    region_iterations: int
    region_bits: float
    download_bits: float
    limits: LimitsConfig
    steps: LocalSteps

    def __init__(
        self,
        model_bits: float = math.nan,
        local_iterations: int = 5,
        edge_iterations: int = 5,
        delay_weight: float = 1.0,
        cloud_hop: bool = True,
        *,
        device_bits: float | None = None,
        edge_bits: float | None = None,
        minimise: Minimised = "round",
        region_iterations: int = 1,
        region_bits: float | None = None,
        download_bits: float | None = None,
        limits: LimitsConfig = NO_LIMITS,
        steps: LocalSteps = LocalSteps(),  # noqa: B008
    ) -> None:
        if minimise not in ("round", "mean_edge"):
            raise ConfigError(f"minimise: got {minimise!r}; accepted: round, mean_edge")
        for field_name, part in (("minimise", minimise), ("limits", limits), ("steps", steps)):
            object.__setattr__(self, field_name, part)
        values = {
            "device_bits": model_bits if device_bits is None else device_bits, "local_iterations": local_iterations,
            "edge_iterations": edge_iterations, "delay_weight": delay_weight, "cloud_hop": cloud_hop,
            "edge_bits": model_bits if edge_bits is None else edge_bits, "region_iterations": region_iterations,
        }  # fmt: skip
        whole = values["edge_bits"] if math.isnan(model_bits) else model_bits
        values["download_bits"] = whole if download_bits is None else download_bits
        values["region_bits"] = values["edge_bits"] if region_bits is None else region_bits
        for name, value in values.items():
            if name != "cloud_hop" and not (np.isfinite(value) and value > 0):
                setting = "model_bits" if name.endswith("_bits") and device_bits is None else name
                raise ConfigError(f"{setting}: got {value}; a finite number above 0 is needed")
            object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        model_bits: float,
        device_bits: float | None = None,
        edge_bits: float | None = None,
        region_bits: float | None = None,
        download_bits: float | None = None,
    ) -> Workload:
        """Return the workload of a configuration's rounds.

        Args:
            config: the experiment's configuration.
            model_bits: the bits of a whole model; z unless ``cost.model_kb`` is set.
            device_bits, edge_bits, region_bits: what a device, an edge or a region sends; None: a whole model.
                Where ``cost.model_kb`` is set, all are scaled with it.
            download_bits: what a device receives; see above.
        """
        z = config.cost.model_bits

        def sent(bits: float | None) -> float:
            whole = model_bits if bits is None else bits
            return whole if z is None else z * (whole / model_bits)

        return cls(
            device_bits=sent(device_bits),
            edge_bits=sent(edge_bits),
            region_bits=sent(region_bits),
            download_bits=sent(download_bits),
            limits=config.allocation.limits,
            steps=LocalSteps(config.training.local_iteration, config.training.batch_size),
            region_iterations=config.tree.iterations,
            local_iterations=config.training.local_iterations,
            edge_iterations=config.round_iterations,
            delay_weight=config.cost.delay_weight,
            minimise=config.minimised,
        )

    def with_masks(self, config: ExperimentConfig) -> Workload:
        """Return the workload with what secure aggregation adds to each upload of a device; see `mask_bits`."""
        section = config.cost.secure_aggregation
        if section.shares is None:
            return self
        return replace(self, device_bits=self.device_bits + mask_bits(section.key_bits, section.shares))

    @property
    def model_bits(self) -> float:
        """The former name of `device_bits`."""
        return self.device_bits

    def computing(self, samples: FloatArray) -> Work:
        """Return what devices with so many samples, (n,), compute in an edge iteration."""
        steps, processed = self.steps.of(samples)
        epochs = self.local_iterations
        return Work(epochs * samples, epochs * steps, epochs * processed, epochs, samples)


QUIET: dict[str, Any] = {"quiet": True}  # a field that states leave out while it is None


class AllocationLike(Protocol):
    """Any object with the bandwidth and CPU frequency of each scheduled device."""

    @property
    def bandwidth_hz(self) -> FloatArray:
        """The bandwidths b_n, (H,), Hz."""

    @property
    def cpu_hz(self) -> FloatArray:
        """The CPU frequencies f_n, (H,), Hz."""


@dataclass(frozen=True, eq=False)
class RoundCost:
    """The cost of one round, in total, per edge (M,) and per scheduled device (H,).

    Attributes:
        energy_j: E_i, J, equation (14).
        delay_s: T_i, s, equation (13).
        objective: E_i + λ T_i, J.
        message_bits: uplink bits, (H·Q + M)·z, or H·Q·z without a cloud hop; with two sizes each hop has its own.
        edge_energy_j: E_{m,i} with the cloud hop, (M,), J.
        edge_delay_s: T_{m,i} with the cloud hop, (M,), s.
        edge_devices: number of devices at each edge, (M,).
        compute_delay_s, compute_energy_j: computing of one edge iteration, (H,), s and J, equations (4) and (5).
        upload_delay_s, upload_energy_j: upload of one edge iteration, (H,), s and J, equations (7) and (8).
        download_delay_s, download_energy_j: download of one edge iteration, (H,), s and J of the edge; None: nothing.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, Workload, allocate_round, round_cost, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=1), np.random.default_rng(0))
        >>> work = Workload(model_bits=1e6, edge_iterations=5)
        >>> cost = round_cost(fleet, work, [0, 3], [0, 0], allocate_round(fleet, work, [0, 3], [0, 0]))
        >>> cost.edge_devices.tolist(), cost.message_bits  # (H · Q + M) · z
        ([2], 11000000.0)
    """

    energy_j: float
    delay_s: float
    objective: float
    message_bits: float
    edge_energy_j: FloatArray
    edge_delay_s: FloatArray
    edge_devices: IntArray
    compute_delay_s: FloatArray
    compute_energy_j: FloatArray
    upload_delay_s: FloatArray
    upload_energy_j: FloatArray
    download_delay_s: FloatArray | None = field(default=None, metadata=QUIET)
    download_energy_j: FloatArray | None = field(default=None, metadata=QUIET)

    @property
    def iteration_delay_s(self) -> FloatArray:
        """Download, computing and upload of each device in one edge iteration, (H,), s."""
        taken_s = self.compute_delay_s + self.upload_delay_s
        return taken_s if self.download_delay_s is None else self.download_delay_s + taken_s

    @classmethod
    def of_nobody(cls, num_edges: int, wait_s: float, delay_weight: float) -> RoundCost:
        """Return the cost of a round without devices, in which the cloud waits for `wait_s`; λ is `delay_weight`."""
        nothing, no_device = np.zeros(num_edges), np.zeros(0)
        return cls(
            energy_j=0.0,
            delay_s=wait_s,
            objective=delay_weight * wait_s,
            message_bits=0.0,
            edge_energy_j=nothing,
            edge_delay_s=nothing,
            edge_devices=np.zeros(num_edges, dtype=np.intp),
            compute_delay_s=no_device,
            compute_energy_j=no_device,
            upload_delay_s=no_device,
            upload_energy_j=no_device,
        )

    def with_poll(self, poll: PollCost, delay_weight: float) -> RoundCost:
        """Return the bill of the round with a poll before it; λ is `delay_weight`. No edge's bill changes."""
        energy_j, delay_s = self.energy_j + poll.energy_j, self.delay_s + poll.delay_s
        return replace(self, energy_j=energy_j, delay_s=delay_s, objective=energy_j + delay_weight * delay_s)


@dataclass(frozen=True)
class PollCost:
    """The cost of polling devices before a round (`poll_cost`).

    Attributes:
        delay_s: s.
        energy_j: J.
    """

    delay_s: float
    energy_j: float

    def __add__(self, other: PollCost) -> PollCost:
        return PollCost(self.delay_s + other.delay_s, self.energy_j + other.energy_j)


def forward_pass(fleet: Fleet, devices: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the delay, (n,), s, and the energy, (n,), J, of a forward pass of the samples of some devices at f_n^max.

    It takes a third of the cycles of a pass of training, whose backward pass takes twice as many: these are equations
    (4) and (5) with L = 1/3. Another computing takes a third of a step with all samples.
    """
    computers, samples = fleet.computers(devices), fleet.samples[devices]
    third = FORWARD_SHARE * samples
    work = Work(third, np.full(len(third), FORWARD_SHARE), third, FORWARD_SHARE, samples)
    return fleet.compute.run(fleet.compute.most(computers), computers, work)


def poll_cost(fleet: Fleet, devices: IntArray) -> PollCost:
    """Return the cost of a forward pass (`forward_pass`) of some devices, which compute at the same time.

    The delay is that of the slowest device. The losses that the devices send are a number each and are not billed.
    """
    delay_s, energy_j = forward_pass(fleet, devices)
    return PollCost(float(delay_s.max(initial=0.0)), float(energy_j.sum()))


def hops(fleet: Fleet, work: Workload) -> tuple[FloatArray, FloatArray]:
    """Return what each edge's hops up to the root take in a round: seconds (M,) and joules (M,).

    These are equations (11) and (12), or zeros where the work has no cloud hop. With R_i iterations of regions they are
    R_i h_m + h_r s, and R_i j_m J with an equal share of its region's j_r. Without a cloud they are `gossip_hops`.
    An edge that is not ``up`` in the tree has none.

    Raises:
        ConfigError: see `cloud_hop`.
    """
    regions, up = fleet.tree.regions, fleet.tree.up
    delay_s, energy_j = edge_hops(fleet, work, up)
    if regions is not None and work.cloud_hop:
        top_s, top_j = region_hops(fleet, work)
        members = np.bincount(regions.parent, up, regions.count)  # an edge that is down bears no share
        share_j = (top_j / np.maximum(members, 1))[regions.parent]
        delay_s = work.region_iterations * delay_s + top_s[regions.parent]
        energy_j = work.region_iterations * energy_j + share_j
    return (delay_s, energy_j) if up is None else (delay_s * up, energy_j * up)


def edge_hops(fleet: Fleet, work: Workload, up: BoolArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Return seconds and joules of one upload of each edge, (M,): to cloud, region, or neighbours that are `up`."""
    regions = fleet.tree.regions
    if not work.cloud_hop:
        return np.zeros(fleet.num_edges), np.zeros(fleet.num_edges)
    if fleet.tree.graph is not None:
        return gossip_hops(fleet, work.edge_bits, up)
    if regions is None:
        return cloud_hop(fleet, work.edge_bits)
    return _sent(fleet, work.edge_bits, regions.bandwidth_hz, regions.edge_gain, fleet.edge_power_w)


def region_hops(fleet: Fleet, work: Workload) -> tuple[FloatArray, FloatArray]:
    """Return what the upload of each region to the cloud takes: s (R,) and J (R,)."""
    regions = fleet.tree.regions
    assert regions is not None
    return _sent(fleet, work.region_bits, fleet.cloud_bandwidth_hz, regions.cloud_gain, regions.power_w)


def gossip_hops(fleet: Fleet, edge_bits: float, up: BoolArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Return what it takes each edge to send its model to each of its neighbours that are `up`: s (M,) and J (M,).

    It sends to all at once, with an equal share of its bandwidth for each, and its power on each link. The delay is
    that of the slowest link; the joules add up.
    """
    graph = fleet.tree.graph
    assert graph is not None
    linked = graph.linked if up is None else graph.linked & up & up[:, None]
    share_hz = (graph.bandwidth_hz / np.maximum(linked.sum(axis=1), 1))[:, None]
    rate = rate_bps(share_hz, graph.gain, fleet.edge_power_w[:, None], fleet.noise_w_per_hz)
    delay_s = np.where(linked, edge_bits / rate, 0.0)
    return delay_s.max(axis=1, initial=0.0), fleet.edge_power_w * delay_s.sum(axis=1)


def cloud_hop(fleet: Fleet, edge_bits: float) -> tuple[FloatArray, FloatArray]:
    """Return the delay (M,), s, and energy (M,), J, of each edge's upload to the cloud (equations 11 and 12).

    Raises:
        ConfigError: a gain, a power or the bandwidth is not above 0; the message names the first bad element.
    """
    for name in ("cloud_gain", "edge_power_w", "cloud_bandwidth_hz", "noise_w_per_hz"):
        check_above_0(name, getattr(fleet, name))
    return _sent(fleet, edge_bits, fleet.cloud_bandwidth_hz, fleet.cloud_gain, fleet.edge_power_w)


def _sent(
    fleet: Fleet, bits: float, bandwidth_hz: float, gain: FloatArray, power_w: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return seconds and joules of the upload of so many bits over each of some links of one bandwidth, (n,) each."""
    delay_s = upload_delay_s(bits, rate_bps(np.asarray(bandwidth_hz), gain, power_w, fleet.noise_w_per_hz))
    return delay_s, upload_energy_j(power_w, delay_s)


def check_above_0(name: str, values: ArrayLike, *indices: IntArray) -> None:
    """Raise ConfigError at the first value that is no finite number above 0; `indices` broadcast to those it is of."""
    values = np.asarray(values)
    bad = np.argwhere(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        at = tuple(bad[0])
        place = ", ".join(map(str, [np.broadcast_to(index, values.shape)[at] for index in indices] or at))
        raise ConfigError(f"{name}{place and f'[{place}]'}: got {values[at]}; a finite number above 0 is needed")


def mask_bits(key_bits: float, shares: int) -> float:
    """Return what secure aggregation adds to an upload of a device in an edge iteration, bits.

    It counts what a device sends in the four steps of Bonawitz et al., "Practical secure aggregation for
    privacy-preserving machine learning", 2017: 2 public keys; 2 encrypted shares, one of each of its 2 secrets, to each
    of `shares` other devices; the masked numbers, which keep the size of the update here; and at the end one share for
    each of them and for itself. These are 2 + 2s + (s + 1) messages of a key's size. There each device shares with all
    others of a sum, s = n − 1. In Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead",
    2020, it shares with its neighbours in a regular graph, whose degree need only grow with log n, so that s can be
    given before anybody is assigned. Signatures, identifiers and what encryption adds to a share are not counted.

    Args:
        key_bits: the size of a public key and of a share, bits.
        shares: s.
    """
    return float(key_bits * (2 + 2 * shares + (shares + 1)))


def message_bits(num_scheduled: int, fleet: Fleet, work: Workload) -> float:
    """Return a round's bits: Q models per device, and those of every hop above the edges (docs/design.md, D10)."""
    uploads = num_scheduled * work.edge_iterations
    if not work.cloud_hop:
        return uploads * work.device_bits
    if work.device_bits == work.edge_bits and fleet.tree.is_cloud_alone:
        return (uploads + fleet.num_edges) * work.device_bits  # one product, whose last bit is the paper's
    return uploads * work.device_bits + sent_above(fleet, work)


def sent_above(fleet: Fleet, work: Workload) -> float:
    """Return what edges and regions send in a round in which all are up, bits."""
    tree = fleet.tree
    if tree.graph is not None:
        return float(tree.graph.linked.sum()) * work.edge_bits
    from_edges = fleet.num_edges * work.region_iterations * work.edge_bits
    return from_edges + (0.0 if tree.regions is None else tree.regions.count * work.region_bits)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Who trains in a round, and where. It unpacks into its two arrays.

    Attributes:
        devices: the scheduled devices, (H,).
        edges: the edge of each, (H,).

    Raises:
        ConfigError: an array does not hold indices, or the two have different lengths.
    """

    devices: IntArray
    edges: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", _indices("devices", self.devices))
        object.__setattr__(self, "edges", _indices("assignment", self.edges))
        if len(self.devices) != len(self.edges):
            raise ConfigError(
                f"assignment: {len(self.edges)} edges for {len(self.devices)} devices; give one edge for each device"
            )

    def __iter__(self) -> Iterator[IntArray]:
        return iter((self.devices, self.edges))

    def __len__(self) -> int:
        return len(self.devices)

    @classmethod
    def of_nobody(cls) -> Self:
        """Return the schedule of a round without devices."""
        return cls(np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp))


@dataclass(frozen=True, eq=False)
class Senders:
    """Devices with what each has of its edge's resource, as an access gets them.

    Attributes:
        access: how they share it.
        share: the share of each, (n,).
        link: its link; its bandwidth is all of the edge's, or with frequency division the device's own, of which it has
            the share 1.
        bits: what each sends.
    """

    access: Access
    share: FloatArray
    link: Link
    bits: float

    @classmethod
    def of(
        cls,
        fleet: Fleet,
        work: Workload,
        schedule: Schedule,
        bandwidth_hz: FloatArray,
        share: FloatArray | None = None,
        gain: FloatArray | None = None,
    ) -> Senders:
        """Return scheduled devices with a share each, or by frequency division with these bandwidths.

        Raises:
            ConfigError: the access needs shares, and there are none.
        """
        access, link = fleet.access, fleet.uplinks(schedule.devices, schedule.edges, gain)
        if isinstance(access, Fdma):
            share, link = np.ones(len(schedule)), replace(link, bandwidth_hz=bandwidth_hz)
        elif share is None:
            raise ConfigError(
                "share: got an allocation without shares, and this access bills by shares; accepted: an allocation of "
                "allocate_round, or one with share; give it"
            )
        return cls(access, share, link, work.device_bits)

    def upload(self, factor: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Return seconds and joules of each upload, (n,), or with factors on the gains, (…, n), in their shape."""
        if factor is None:
            return self.access.upload(self.share, self.link, self.bits)
        return self._shaped(self.access.upload, factor, np.arange(len(self.share)))

    def pace(self, factor: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return bits per second and watts, (…,) each, of some devices, `rows` and `factor` (…,) that broadcast."""
        return self._shaped(self.access.pace, factor, rows)

    @property
    def power_w(self) -> FloatArray:
        """What each draws while it sends over its link as planned, (n,), W."""
        return self.access.pace(self.share, self.link, self.bits)[1]

    def _shaped(
        self, method: Callable[..., tuple[FloatArray, FloatArray]], factor: FloatArray, rows: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        shape = np.broadcast_shapes(factor.shape, rows.shape)
        index = np.broadcast_to(rows, shape).ravel()
        link = self.link.take(index)
        link = replace(link, gain=link.gain * np.broadcast_to(factor, shape).ravel())
        first, second = method(self.share[index], link, self.bits)
        return first.reshape(shape), second.reshape(shape)


def downloads(
    fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray, node: IntArray | None = None
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return seconds and joules of a download of each of some devices, (n,), from their edges; None: nothing.

    Those of one number in `node`, (n,), receive together; None: those of one edge.
    """
    if isinstance(fleet.download, NoDownload):
        return None, None
    return fleet.download.receive(fleet.downlinks(devices, edges), edges if node is None else node, work.download_bits)


def check_assignment(fleet: Fleet, devices: ArrayLike, assignment: ArrayLike) -> tuple[IntArray, IntArray]:
    """Return `devices` and `assignment` as index arrays (H,); raise a ConfigError that names the first bad index."""
    chosen, edges = Schedule(devices, assignment)  # type: ignore[arg-type]
    for name, kind, indices, count in (
        ("devices", "device", chosen, fleet.num_devices), ("assignment", "edge", edges, fleet.num_edges),
    ):  # fmt: skip
        bad = np.flatnonzero((indices < 0) | (indices >= count))
        if bad.size:
            raise ConfigError(f"{name}[{bad[0]}]: {kind} {indices[bad[0]]} does not exist; accepted: 0 to {count - 1}")
    if chosen.size == 0:
        raise ConfigError("devices: the list is empty; at least one device must be scheduled")
    if len(np.unique(chosen)) != chosen.size:
        raise ConfigError("devices: a device is listed twice; each may be scheduled once a round")
    return chosen, edges


def _indices(name: str, numbers: ArrayLike) -> IntArray:
    """Return a new array of indices; raise ConfigError if it is no 1-D array of integers."""
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(f"{name}: got shape {array.shape} of {array.dtype}; a 1-D array of integer indices is needed")
    return array.astype(np.intp)


def round_cost(
    fleet: Fleet, work: Workload, devices: ArrayLike, assignment: ArrayLike, allocation: AllocationLike
) -> RoundCost:
    """Return the cost of a round: equations (4) to (14), or those of the fleet's physics in place of (4) to (8).

    T_m and E_m have the downloads, which lie before computing in each edge iteration. An edge without devices keeps its
    cloud hop, as (13) and (14) read (docs/design.md, D10).

    Args:
        fleet: N devices and M edges.
        work: the round's model size, iterations and λ.
        devices: the scheduled devices, (H,) indices.
        assignment: the edge of each scheduled device, (H,) indices.
        allocation: the bandwidth and CPU frequency of each scheduled device, or its share (`Allocation.share`).

    Raises:
        ConfigError: an index is out of range, lengths differ, or a bandwidth or frequency is not above 0.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, Workload, allocate_round, round_cost, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=1), np.random.default_rng(0))
        >>> work = Workload(model_bits=1e6, delay_weight=1.0)
        >>> cost = round_cost(fleet, work, [0, 3], [0, 0], allocate_round(fleet, work, [0, 3], [0, 0]))
        >>> round(cost.delay_s, 2), round(cost.energy_j, 2), round(cost.objective, 2)
        (4.32, 0.18, 4.5)
    """
    chosen, edges = check_assignment(fleet, devices, assignment)
    bandwidth, cpu = np.asarray(allocation.bandwidth_hz), np.asarray(allocation.cpu_hz)
    share: FloatArray | None = getattr(allocation, "share", None)
    columns = {"bandwidth_hz": bandwidth, "cpu_hz": cpu} | ({} if share is None else {"share": share})
    for name, array in columns.items():
        if array.shape != chosen.shape:
            raise ConfigError(
                f"{name}: got shape {array.shape}, expected {chosen.shape}, one for each scheduled device"
            )
        # 0 Hz would give NaN seconds, and NaN could become a number that looks valid.
        if name != "cpu_hz" or fleet.compute.has_setting:
            check_above_0(name, array)
    t_cmp, e_cmp = fleet.compute.run(cpu, fleet.computers(chosen), work.computing(fleet.samples[chosen]))
    gain = fleet.gain_of(chosen, edges)
    check_above_0("gain", gain, chosen, edges)
    t_com, e_com = Senders.of(fleet, work, Schedule(chosen, edges), bandwidth, share, gain).upload()
    t_down, e_down = downloads(fleet, work, chosen, edges)
    of_device_s, of_device_j = t_cmp + t_com, e_cmp + e_com
    if t_down is not None and e_down is not None:
        of_device_s, of_device_j = t_down + of_device_s, e_down + of_device_j

    delay_s = work.edge_iterations * largest_of(of_device_s, edges, fleet.num_edges)  # (9)
    spent: FloatArray = np.bincount(edges, of_device_j, minlength=fleet.num_edges).astype(np.float64)
    energy_j = work.edge_iterations * spent  # (10)
    hop_delay_s, hop_energy_j = hops(fleet, work)
    delay_s, energy_j = delay_s + hop_delay_s, energy_j + hop_energy_j
    total_delay_s, total_energy_j = float(delay_s.max()), float(energy_j.sum())
    return RoundCost(
        energy_j=total_energy_j,
        delay_s=total_delay_s,
        objective=total_energy_j + work.delay_weight * total_delay_s,
        message_bits=message_bits(chosen.size, fleet, work),
        edge_energy_j=energy_j,
        edge_delay_s=delay_s,
        edge_devices=np.bincount(edges, minlength=fleet.num_edges),
        compute_delay_s=t_cmp,
        compute_energy_j=e_cmp,
        upload_delay_s=t_com,
        upload_energy_j=e_com,
        download_delay_s=t_down,
        download_energy_j=e_down,
    )
