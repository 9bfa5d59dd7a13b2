"""The allocation problem (27) of one edge as plain arrays, and the allocation that a solver returns.

With ``y = gain·power/noise`` (Hz), ``c = L·u·D`` cycles and ``s(b) = z / (b log2(1 + y/b))``, the problem of an edge
iteration is to minimise ``Σ [α/2·c·f² + p·s(b)] + λ·τ`` subject to ``s(b) + c/f ≤ τ``, ``Σ b ≤ B`` and ``f ≤ f_max``.
The factor Q of (9) and (10) multiplies the whole objective and the cloud hop is constant, so neither changes an edge's
solution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hflray.allocation.kernels.bundles import Devices, Edges
from hflray.cost import QUIET, Workload, check_above_0
from hflray.fleet import Fleet
from hflray.support.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Allocation:
    """The allocation of each scheduled device and, from method ``newton``, the proof that it is optimal.

    All values are those of one edge iteration; the Q edge iterations of a round are equal.

    Attributes:
        bandwidth_hz: b_n, (H,), Hz.
        cpu_hz: f_n, (H,), Hz.
        delay_price: π_n, (H,), J/s: the saving if this device alone took one second less.
        bandwidth_price: μ, (M,), J/Hz; 0 at an edge without devices.
        deadline_s: τ, (M,), s: computation and upload of the slowest device; 0 at an edge without devices.
        edge_price: λ_m, (M,), J/s: the weight of each edge's delay; it is λ unless the edges share a deadline.
        kkt_residual: the largest relative violation of the optimality conditions.
        duality_gap: bound on the objective's distance from the optimum, relative to the objective.
        share: x_n, (H,), of the edge's resource; None: the paper's kernels made it. Bills follow from the shares, and
            with frequency division from the bandwidths.

    Examples:
        An allocation may also come from elsewhere, such as a measurement, and be billed:

        >>> import numpy as np
        >>> from hflray import Allocation, FleetConfig, Workload, round_cost, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=1), np.random.default_rng(0))
        >>> allocation = Allocation(bandwidth_hz=np.full(2, 1e6), cpu_hz=np.full(2, 2e9))
        >>> round(round_cost(fleet, Workload(model_bits=1e6), [0, 3], [0, 0], allocation).delay_s, 2)
        4.99
    """

    bandwidth_hz: FloatArray
    cpu_hz: FloatArray
    delay_price: FloatArray | None = None
    bandwidth_price: FloatArray | None = None
    deadline_s: FloatArray | None = None
    edge_price: FloatArray | None = None
    kkt_residual: float | None = None
    duality_gap: float | None = None
    share: FloatArray | None = field(default=None, metadata=QUIET)


@dataclass(frozen=True, eq=False)
class Ragged:
    """The problems of all edges as flat arrays, in which the devices are sorted by edge.

    Attributes:
        order: position in the schedule of each sorted device, (H,).
        present: the edges that have devices, ascending, (e,).
        edges: the problems of these edges, in the same order.
    """

    order: IntArray
    present: IntArray
    edges: Edges


@dataclass(frozen=True, eq=False)
class EdgeProblem:
    """The problem of one edge with n devices.

    Attributes:
        edge: index of the edge.
        members: positions of its devices within the schedule, (n,).
        snr_hz: y = gain·power/noise, (n,), Hz.
        cycles: c = L·u·D, (n,), cycles.
        power_w: p, (n,), W.
        max_cpu_hz: f_max, (n,), Hz.
        bandwidth_hz: B_m, Hz.
        model_bits: z, bits.
        delay_weight: λ, J/s.
        capacitance: α, J·s²/cycles³.
    """

    edge: int
    members: IntArray
    snr_hz: FloatArray
    cycles: FloatArray
    power_w: FloatArray
    max_cpu_hz: FloatArray
    bandwidth_hz: float
    model_bits: float
    delay_weight: float
    capacitance: float

    def upload_delay_s(self, bandwidth_hz: FloatArray) -> FloatArray:
        """Return the upload times s(b), (n,), s (equations 6 and 7)."""
        return np.asarray(self.model_bits * np.log(2.0) / (bandwidth_hz * np.log1p(self.snr_hz / bandwidth_hz)))

    def upload_slope(self, bandwidth_hz: FloatArray) -> FloatArray:
        """Return the slopes s'(b), (n,), s/Hz, which are negative."""
        lg = np.log1p(self.snr_hz / bandwidth_hz)
        return (
            -self.upload_delay_s(bandwidth_hz) * (1.0 - self.snr_hz / (self.snr_hz + bandwidth_hz) / lg) / bandwidth_hz
        )

    def delay_s(self, bandwidth_hz: FloatArray, cpu_hz: FloatArray) -> float:
        """Return the delay of the slowest device, s."""
        return float((self.upload_delay_s(bandwidth_hz) + self.cycles / cpu_hz).max())

    def objective(self, bandwidth_hz: FloatArray, cpu_hz: FloatArray) -> float:
        """Return the energy plus λ times the slowest delay of one edge iteration, J."""
        upload = self.upload_delay_s(bandwidth_hz)
        energy = self.capacitance / 2 * self.cycles * cpu_hz**2 + self.power_w * upload
        return float(energy.sum() + self.delay_weight * self.delay_s(bandwidth_hz, cpu_hz))


def checked_gain(fleet: Fleet, devices: IntArray, edges: IntArray) -> FloatArray:
    """Return the gains of the links between `devices` and `edges`, arrays that broadcast to the shape of the result.

    Raises:
        ConfigError: a gain, or another value that an allocation to these devices needs, is not finite and above 0; the
            message names the array and its first bad index.
    """
    for name in ("power_w", "samples", "cycles_per_sample", "max_cpu_hz"):
        check_above_0(name, getattr(fleet, name)[devices], devices)
    for name in ("edge_bandwidth_hz", "noise_w_per_hz", "capacitance"):
        check_above_0(name, getattr(fleet, name))
    gain = fleet.gain_of(devices, edges)
    check_above_0("gain", gain, devices, edges)
    return gain


def edge_problems(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray) -> Iterator[EdgeProblem]:
    """Yield the problem of each edge that has devices, in the order of the edges."""
    for edge in np.unique(edges):
        members = np.flatnonzero(edges == edge)
        edge_devices = lay_out(fleet, work, devices[members], np.full(len(members), edge, dtype=np.intp))
        numbers = float(fleet.edge_bandwidth_hz[edge]), work.device_bits, work.delay_weight, float(fleet.capacitance)
        yield EdgeProblem(int(edge), members, *edge_devices, *numbers)


def lay_out(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray) -> Devices:
    """Return the kernels' arrays of `devices`, (n,), each of which is at its edge in `edges`, (n,)."""
    return Devices(
        snr=received_snr_hz(checked_gain(fleet, devices, edges), fleet.power_w[devices], fleet.noise_w_per_hz),
        cycles=compute_cycles(work.local_iterations, fleet.cycles_per_sample[devices], fleet.samples[devices]),
        power=fleet.power_w[devices],
        cap=fleet.max_cpu_hz[devices],
    )


def ragged(fleet: Fleet, work: Workload, devices: IntArray, edges: IntArray) -> Ragged:
    """Return the edges' problems as the batched kernels take them. Raises ConfigError as `checked_gain` does."""
    order = np.argsort(edges, kind="stable")
    by_edge, sorted_edges = devices[order], edges[order]
    present, first = np.unique(sorted_edges, return_index=True)
    problem = Edges(
        offsets=np.append(first, len(sorted_edges)).astype(np.intp),
        devices=lay_out(fleet, work, by_edge, sorted_edges),
        bandwidth=fleet.edge_bandwidth_hz[present],
        bits=float(work.device_bits),
        alpha=float(fleet.capacitance),
    )
    return Ragged(order, present, problem)


def received_snr_hz(gain: Any, power_w: Any, noise_w_per_hz: float) -> Any:
    """Return Y = ḡ p / N_0, Hz, for numbers or for arrays of one shape (equation 6)."""
    return gain * power_w / noise_w_per_hz


def received_snr_of_links_hz(gain: FloatArray, power_w: FloatArray, noise_w_per_hz: float) -> FloatArray:
    """Return Y, (H, K), Hz, of K links of each device; `gain` is (H, K) and `power_w` is (H,), W.

    The division is made once for each device, so the last bit may differ from that of `received_snr_hz`. Saved
    results have the bits of both, so both functions stay.
    """
    return np.asarray(gain * (power_w / noise_w_per_hz)[:, None])


def compute_cycles(local_iterations: Any, cycles_per_sample: Any, samples: Any) -> Any:
    """Return c = L u D, the cycles of one edge iteration, for numbers or for arrays of one shape (equation 4)."""
    return local_iterations * cycles_per_sample * samples
