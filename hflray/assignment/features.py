"""What the learned assigner sees of a round: one row a scheduled device (paper, equation (24), and a fuller set).

A row is the features of the device's link to each edge, edge after edge, and then those of the device itself. Two sets:

``paper``
    χ of equation (24): the linear gains, u, D and p, each scaled to [0, 1] over the H devices. One outlier squashes a
    column of linear gains, and what the cost depends on most is missing, the edges' bandwidths: for reproduction.
``db``
    Gains in dB on one scale for all edges, and what the paper leaves out: the edge's bandwidth, the upload time at a
    fair share and at the share that the edge would have if all devices went by gain, the cloud hop, and the round's
    λ, z, Q and size. The scales are constants, so that a row means the same in every fleet. The first feature of a
    link is 1; rows padded to more edges have zeros there, by which networks know them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.allocation.kernels.terms import LN2
from hflray.arrays import IntArray
from hflray.assignment.objective import RoundProblem, round_problem
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet

Rows = NDArray[np.float32]
FeatureSet = Literal["paper", "db"]


class Width(NamedTuple):
    """Features of a link and of a device."""

    link: int
    device: int

    def row(self, num_edges: int) -> int:
        """Features of a row."""
        return num_edges * self.link + self.device

    def edges(self, row: int) -> int:
        """M of rows of so many features.

        Raises:
            ConfigError: no number of edges gives such rows.
        """
        count, rest = divmod(row - self.device, self.link)
        if rest or count < 1:
            raise ConfigError(f"rows: got {row} features; {self.link} for each edge and {self.device} more are needed")
        return count


WIDTHS: dict[str, Width] = {"paper": Width(1, 3), "db": Width(9, 8)}


def feature_rows(kind: FeatureSet, fleet: Fleet, work: Workload, devices: ArrayLike) -> Rows:
    """Return the features of `devices` in their order, (H, ``WIDTHS[kind].row(M)``), float32.

    Raises:
        ConfigError: an unknown set, a bad index, or a value no allocation can work with (NaN among them).
    """
    if kind not in WIDTHS:
        raise ConfigError(f"assignment.features: unknown set '{kind}'; known: {', '.join(WIDTHS)}")
    return rows_of(kind, fleet, *round_problem(fleet, work, devices))


def rows_of(kind: FeatureSet, fleet: Fleet, problem: RoundProblem, chosen: IntArray) -> Rows:
    """`feature_rows` of a round that is laid out already: what `round_problem` gave for `fleet`."""
    if kind == "db":
        return db_rows(problem)
    return paper_rows(fleet.gain[chosen], fleet.cycles_per_sample[chosen], fleet.samples[chosen], fleet.power_w[chosen])


def paper_rows(
    gain: NDArray[np.float64],
    cycles_per_sample: NDArray[np.float64],
    samples: NDArray[np.float64],
    power_w: NDArray[np.float64],
) -> Rows:
    """Equation (24): ``(x - min) / (max - min)`` of each column over the H devices; 0 where all are equal.

    Args:
        gain: linear power gains, (H, M).
        cycles_per_sample, samples, power_w: u, D and p, (H,).
    """
    columns = np.column_stack([gain, cycles_per_sample, samples, power_w])
    low, high = columns.min(axis=0), columns.max(axis=0)
    return np.asarray((columns - low) / np.where(high > low, high - low, 1.0), dtype=np.float32)


def db_rows(problem: RoundProblem) -> Rows:
    """The ``db`` set of a round, (H, 9 M + 8): all that its objective depends on, in logarithms."""
    y = problem.snr.T  # Y of each link, (H, M), Hz
    h, m = y.shape
    bandwidth, cycles, power = problem.bandwidth[None], problem.cycles, problem.power
    level_db = 10.0 * np.log10(y)  # Y is the gain times p/N_0, so that ...
    power_db = 10.0 * np.log10(power)[:, None]
    gain_db = level_db - power_db  # ... this is the gain over the noise density
    strongest = y.argmax(axis=1)
    crowd = np.bincount(strongest, minlength=m)[None] + 1.0  # as if every device went by gain
    fair = bandwidth.sum() / h

    def upload_s(b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(problem.bits * LN2 / (b * np.log1p(y / b)))

    links = np.empty((h, m, WIDTHS["db"].link))
    links[..., 0] = 1.0
    links[..., 1] = (gain_db - 100.0) / 20.0  # -174 dBm/Hz and -104 dB, about the mean, give 100
    links[..., 2] = (gain_db - gain_db.max(axis=1, keepdims=True)) / 20.0
    links[..., 3] = np.log(bandwidth / 1.5e6)
    links[..., 4] = np.log(crowd / bandwidth * fair)
    links[..., 5] = np.log(upload_s(np.full((1, m), fair))) / 2.0
    links[..., 6] = np.log(upload_s(bandwidth / crowd)) / 2.0
    links[..., 7] = np.log(upload_s(bandwidth)) / 2.0
    links[..., 8] = problem.hop.delay[None] / 10.0
    own = np.empty((h, WIDTHS["db"].device))
    own[:, 0] = np.log(cycles / 1.5e8)
    own[:, 1] = power_db[:, 0] / 10.0 + 2.0
    own[:, 2] = np.log(cycles / problem.cap) / 2.0 + 1.0
    # The price of a second against a joule decides f: λ shared by a device's fair part of the edge, against α f³.
    own[:, 3] = np.log(problem.weight)
    own[:, 4] = np.log(problem.bits / 3.7e6)
    own[:, 5] = np.log(problem.iterations / 5.0)
    own[:, 6] = np.log(h / 50.0)
    own[:, 7] = np.log(h / m / 10.0)
    return np.concatenate([links.reshape(h, -1), own], axis=1).astype(np.float32)


def pad_edges(rows: Rows, width: Width, num_edges: int) -> Rows:
    """Rows (…, row) of M edges as rows of `num_edges` ≥ M, with zeros for the edges that are not there."""
    count = width.edges(rows.shape[-1])
    if num_edges == count:
        return rows
    missing = np.zeros((*rows.shape[:-1], (num_edges - count) * width.link), dtype=np.float32)
    return np.concatenate([rows[..., : count * width.link], missing, rows[..., count * width.link :]], axis=-1)
