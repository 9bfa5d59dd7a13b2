"""What devices, edges and the cloud hand to each other in a round, and how it is sent. No Ray, no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hflray.aggregation import FloatVector, Frame, SumVector
from hflray.compression import Compressor, Whole
from hflray.errors import DivergedError
from hflray.support.arrays import squared_norm
from hflray.support.contract import Contract, described, is_ours

Ref = Any  # a value, or a reference to it


class Version(NamedTuple):
    """What a device or an edge starts from.

    Attributes:
        model: (P,).
        vectors: the local rule's vectors for the devices of this edge, (P,) each.
    """

    model: FloatVector
    vectors: Mapping[str, FloatVector] = {}


class Measured(NamedTuple):
    """What is measured of the update of a device.

    Attributes:
        drift: the square of its L2 norm.
        whole: the square of the L2 norm of what the compressor was given; 0 without a compressor.
        lost: that of what did not arrive of it.
    """

    drift: float
    whole: float = 0.0
    lost: float = 0.0


class Lifted(NamedTuple):
    """What some devices of an edge hand up.

    Attributes:
        part: their models, as the edge's aggregator lifts and combines them.
        extra: the exact sums of the rule's further vectors, (P,) each, by name.
        measured: what was measured of each device's update, by device; nothing unless it is asked for.
    """

    part: Any
    extra: Mapping[str, SumVector] = {}
    measured: Mapping[int, Measured] = {}


class Share(NamedTuple):
    """What one host trains for one edge in one edge iteration.

    Attributes:
        frame: where and when the models will be combined.
        devices: the devices.
        scales: the factor of each device's update; empty: all are 1.
        mean_rate, last: see `hflray.training.rules.Received`.
        entered: for a device whose last update entered another version than the share's, that version's place among
            those that come with the task, and its mean rate; -1 and 0: it entered none.
    """

    frame: Frame
    devices: tuple[int, ...]
    scales: tuple[float, ...] = ()
    mean_rate: float = 0.0
    last: bool = True
    entered: Mapping[int, tuple[int, float]] = {}


class EdgeTask(NamedTuple):
    """One host's part of one edge iteration.

    Attributes:
        round, edge_iteration: the position in the training; both select the order of mini-batches.
        shares: what is trained for each edge, in the order of the versions that come with the task; those behind them
            are of earlier edge iterations (`Share.entered`).
        extra_bits: the binary places of the sums of a rule's vectors.
        first: the number of the first edge iteration of the round, or of a turn where the cloud is asynchronous.
    """

    round: int
    edge_iteration: int
    shares: tuple[Share, ...]
    extra_bits: int = 0
    first: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """The round, or the turn, to which what a device forgets belongs."""
        return self.round, self.first


def add_extra(extras: Iterable[Mapping[str, SumVector]]) -> dict[str, SumVector]:
    """Return the exact sums of vectors by name."""
    sums: dict[str, SumVector] = {}
    for extra in extras:
        for name, vector in extra.items():
            sums[name] = vector if name not in sums else sums[name] + vector
    return sums


def delivered(
    model: FloatVector,
    received: FloatVector,
    scale: float,
    compressor: Compressor,
    sizes: Sequence[int],
    rng: np.random.Generator,
    residual: FloatVector | None,
    place: Literal["device", "edge", "region"] = "device",
) -> tuple[FloatVector, FloatVector | None]:
    """Return a model as it arrives, (P,), and the sender's next residual.

    The update of the trained numbers is scaled and compressed; statistics travel whole.

    Args:
        model: what the sender has, (P,).
        received: what it started from, (P,).
        scale: the factor of its update.
        compressor: how the update is sent (`hflray.compression.Compressor`).
        sizes: how many numbers each trained tensor has.
        rng: draws of the compressor.
        residual: what the sender kept; None: nothing.
        place: who the sender is.

    Raises:
        ConfigError: a compressor of the user's own returned something else than an update and a residual.
        DivergedError: the update is not finite.
    """
    whole = isinstance(compressor, Whole)
    if whole and scale == 1.0:
        return model, residual
    end = sum(sizes)
    update = np.float32(scale) * (model[:end] - received[:end])
    if not whole:
        if not np.isfinite(update).all():  # a compressor might not send what is not finite
            raise DivergedError("the trained weights are not finite; lower training.learning_rate")
        update, residual = _checked(compressor, place, compressor.send(update, sizes, rng, residual), end)
    return np.concatenate([received[:end] + update, model[end:]]).astype(np.float32), residual


def _checked(compressor: Compressor, place: str, sent: Any, size: int) -> tuple[FloatVector, FloatVector | None]:
    """Return what a compressor has sent, after a look if the class is a user's own."""
    if is_ours(compressor):
        update, residual = sent
        return update, residual
    rest = f"the residual, of the same shape{'' if compressor.remembers else ' (None unless its class says remembers)'}"
    accepted = f"the update as it arrives, finite numbers of shape ({size},), and {rest}"
    contract = Contract.of(f"compression.{place}.name", compressor, accepted, "mend its method send")
    update, residual = contract.pair(sent)
    update = contract.array(update, (size,), where=" for the update")
    if residual is None:
        return update, None
    if not compressor.remembers:
        raise contract.error(f"{described(residual)} for the residual")
    return update, contract.array(residual, (size,), where=" for the residual")


def measured(
    model: FloatVector,
    received: FloatVector,
    size: int,
    scale: float,
    arrived: FloatVector | None,
    residual: FloatVector | None,
) -> Measured:
    """Return what is measured of an update.

    Args:
        model: what the sender has, (P,).
        received: what it started from, (P,).
        size: how many of the numbers are trained; the rest are statistics.
        scale: the factor of its update.
        arrived: its model as it arrives, (P,); None: without a compressor.
        residual: what the sender had kept of the last update, (size,); None: nothing.
    """
    start = received[:size].astype(np.float64)
    update = model[:size] - start
    drift = squared_norm(update)
    if arrived is None:
        return Measured(drift)
    whole = scale * update + (0.0 if residual is None else residual)
    lost = whole - (arrived[:size] - start)
    return Measured(drift, squared_norm(whole), squared_norm(lost))
