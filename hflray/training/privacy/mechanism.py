"""The Gaussian mechanism on the sum of an edge: updates are clipped, and the sum is noised once.

The noise is a function of the seed, the round, the edge iteration and the edge, so that any number of actors gives the
same bits. It enters the exact sum in fixed point, before anybody divides it or adds it to another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hflray.aggregation import FloatVector, Frame, SumVector
from hflray.aggregation.fixed_point import MAX_WEIGHT
from hflray.errors import DivergedError
from hflray.seeding import stream
from hflray.support.arrays import squared_norm

MARGIN = 1e-6  # relative; it is far above what rounding to fixed point adds to the length of an update


@dataclass(frozen=True)
class Mechanism:
    """How updates are made private.

    Attributes:
        clip: the largest L2 norm of a device's update, above 0.
        noise_multiplier: the standard deviation of the noise in multiples of `clip`, above 0.
    """

    clip: float
    noise_multiplier: float

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in each number of an edge's sum."""
        return self.noise_multiplier * self.clip

    def clipped(self, model: FloatVector, received: FloatVector) -> FloatVector:
        """Return a model whose update, as float32 holds it, has an L2 norm of at most `clip`.

        Args:
            model: the trained numbers as they arrive, (P,); it is returned itself if it is within the bound.
            received: what the device started from, (P,).
        """
        start = received.astype(np.float64)
        update = model - start
        norm = math.sqrt(squared_norm(update))
        most, margin = self.clip * (1 - MARGIN), 0.0
        if not np.isfinite(norm):  # the sum refuses it, with the name of its device
            return model
        factor, scaled = 1.0, model
        while norm > most:  # rounding to float32 may lengthen an update again
            factor *= most / norm * (1 - margin)
            scaled = (start + factor * update).astype(np.float32)
            norm = math.sqrt(squared_norm(scaled - start))
            margin = max(MARGIN, 2 * margin)
        return scaled


def noised(total: SumVector, frame: Frame) -> SumVector:
    """Return an edge's sum with its noise; without noise in the frame, the sum itself.

    Args:
        total: the sum of all models of the edge in fixed point, (P,).
        frame: where and when; `Frame.deviation` is the noise's standard deviation.

    Raises:
        DivergedError: a number of the noise is larger than the sum of models may be.
    """
    if not frame.deviation:
        return total
    rng = stream(frame.seed, "privacy", frame.round, frame.iteration, frame.index)
    noise = frame.deviation * rng.standard_normal(len(total))
    largest, most = float(np.abs(noise).max(initial=0.0)), MAX_WEIGHT * frame.weight
    if largest > most:
        raise DivergedError(
            f"round {frame.round}, edge {frame.index}: the noise of privacy is as large as {largest:.3g} in a sum of "
            f"{frame.weight} models, in which {most:.3g} has room; lower privacy.clip or privacy.noise_multiplier"
        )
    return total + np.rint(np.ldexp(noise, frame.fraction_bits)).astype(np.int64)
