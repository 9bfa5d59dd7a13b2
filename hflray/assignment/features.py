"""The input of the learned assigner: one row of features for each scheduled device (paper, equation (24)).

A row has the features of the device's link to each edge, edge after edge, and then those of the device itself. There
are three feature sets:

``paper``
    χ of equation (24): the linear gains, u, D and p, each scaled to [0, 1] over the H devices. It serves reproduction:
    one outlier makes all other linear gains of a column nearly equal, and the edges' bandwidths, on which the cost
    depends most, are missing.
``paper_db``
    The same with gains in dB. The paper does not say on which scale gains are when (24) takes their least and largest.
``db``
    Gains in dB on one scale for all edges, and quantities that the paper leaves out: the edge's bandwidth, the upload
    time at a fair share and at the share if every device went to its strongest edge, the cloud hop, and the round's λ,
    z, Q and size. The scales are constants, so that a row means the same in every fleet. The first feature of a link is
    1; in rows padded to more edges it is 0 for the padding, which the networks mask.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.allocation.kernels.device import LN2
from hflray.assignment.objective import RoundProblem, round_problem
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray

Rows = NDArray[np.float32]
FeatureSet = Literal["paper", "paper_db", "db"]
PAPERS: tuple[FeatureSet, ...] = ("paper", "paper_db")  # the readings of equation (24), with features from 0 to 1


class Width(NamedTuple):
    """The number of features of a link and of a device."""

    link: int
    device: int

    def row(self, num_edges: int) -> int:
        """Return the number of features of a row."""
        return num_edges * self.link + self.device

    def edges(self, row: int) -> int:
        """Return M for rows of `row` features.

        Raises:
            ConfigError: no number of edges gives rows of this length.
        """
        count, rest = divmod(row - self.device, self.link)
        if rest or count < 1:
            raise ConfigError(f"rows: got {row} features; {self.link} for each edge and {self.device} more are needed")
        return count


WIDTHS: dict[str, Width] = {"paper": Width(1, 3), "paper_db": Width(1, 3), "db": Width(9, 8)}


def feature_rows(kind: FeatureSet, fleet: Fleet, work: Workload, devices: ArrayLike) -> tuple[Rows, IntArray]:
    """Return the features of `devices` in their order, (H, ``WIDTHS[kind].row(M)``), and their checked indices, (H,).

    Raises:
        ConfigError: an index is wrong, or a value is not finite and above 0.
    """
    problem, scheduled = round_problem(fleet, work, devices, links_alone=True)
    if kind == "db":
        return db_rows(problem), scheduled
    columns = (fleet.gain, fleet.cycles_per_sample, fleet.samples, fleet.power_w)
    return paper_rows(kind, *(np.asarray(column[scheduled]) for column in columns)), scheduled


def paper_rows(
    kind: FeatureSet,
    gain: NDArray[np.float64],
    cycles_per_sample: NDArray[np.float64],
    samples: NDArray[np.float64],
    power_w: NDArray[np.float64],
) -> Rows:
    """Return the features of equation (24): ``(x - min) / (max - min)`` of each column, or 0 where all are equal.

    Args:
        kind: ``paper``, or ``paper_db`` for gains in dB.
        gain: linear power gains, (H, M); a constant factor of all of them changes no feature.
        cycles_per_sample, samples, power_w: u, D and p, (H,).
    """
    scaled = 10.0 * np.log10(gain) if kind == "paper_db" else gain
    columns = np.column_stack([scaled, cycles_per_sample, samples, power_w])
    low, high = columns.min(axis=0), columns.max(axis=0)
    return np.asarray((columns - low) / np.where(high > low, high - low, 1.0), dtype=np.float32)


def db_rows(problem: RoundProblem) -> Rows:
    """Return the ``db`` set of a round, (H, 9 M + 8): all quantities of its objective, in logarithms."""
    y = problem.snr.T  # Y of each link, (H, M), Hz
    h, m = y.shape
    bandwidth, cycles, power = problem.bandwidth[None], problem.cycles, problem.power
    level_db = 10.0 * np.log10(y)  # Y is the gain times p/N_0, so ...
    power_db = 10.0 * np.log10(power)[:, None]
    gain_db = level_db - power_db  # ... this is the gain over the noise density
    strongest = y.argmax(axis=1)
    crowd = np.bincount(strongest, minlength=m)[None] + 1.0  # devices of an edge if each took its strongest link
    fair = bandwidth.sum() / h

    def upload_s(b: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(problem.bits * LN2 / (b * np.log1p(y / b)))

    links = np.empty((h, m, WIDTHS["db"].link))
    links[..., 0] = 1.0
    links[..., 1] = (gain_db - 100.0) / 20.0  # -174 dBm/Hz and the mean gain of about -104 dB give 100
    links[..., 2] = (gain_db - gain_db.max(axis=1, keepdims=True)) / 20.0
    links[..., 3] = np.log(bandwidth / 1.5e6)
    links[..., 4] = np.log(crowd / bandwidth * fair)
    links[..., 5] = np.log(upload_s(np.full((1, m), fair))) / 2.0
    links[..., 6] = np.log(upload_s(bandwidth / crowd)) / 2.0
    links[..., 7] = np.log(upload_s(bandwidth)) / 2.0
    links[..., 8] = problem.hop.delay[None] / 10.0
    device = np.empty((h, WIDTHS["db"].device))
    device[:, 0] = np.log(cycles / 1.5e8)
    device[:, 1] = power_db[:, 0] / 10.0 + 2.0
    device[:, 2] = np.log(cycles / problem.cap) / 2.0 + 1.0
    # The frequency depends on the price of a second in joules: a device's share of λ against α f³.
    device[:, 3] = np.log(problem.weight)
    device[:, 4] = np.log(problem.bits / 3.7e6)
    device[:, 5] = np.log(problem.iterations / 5.0)
    device[:, 6] = np.log(h / 50.0)
    device[:, 7] = np.log(h / m / 10.0)
    return np.concatenate([links.reshape(h, -1), device], axis=1).astype(np.float32)


def pad_edges(rows: Rows, width: Width, num_edges: int) -> Rows:
    """Return rows (…, row) of M edges as rows of `num_edges` ≥ M edges, with zeros for the added edges."""
    count = width.edges(rows.shape[-1])
    if num_edges == count:
        return rows
    padding = np.zeros((*rows.shape[:-1], (num_edges - count) * width.link), dtype=np.float32)
    return np.concatenate([rows[..., : count * width.link], padding, rows[..., count * width.link :]], axis=-1)
