"""Differential privacy of devices: each uploads a clipped update, and each edge's sum is noised (``privacy``).

*The mechanism.* Updates are clipped, and the sum of an edge is noised once. The noise is a function of the seed, the
round, the edge iteration and the edge, so that any number of actors gives the same bits. It enters the exact sum in
fixed point, before anybody divides it or adds it to another one.

*The accountant* (`hflray.experiment.observers.Accountant`) says what ε the uploads of each device have cost, in closed
form. An upload of a device is one release of a Gaussian mechanism whose noise is `noise_multiplier` times its
sensitivity. Schedulers do not sample devices at random, so that nothing is amplified: k releases are together exactly
one Gaussian mechanism with the noise divided by √k (Dong, Roth and Su, "Gaussian differential privacy", 2022, corollary
3.3). Its ε for a given δ follows from the analytic form of Balle and Wang, "Improving the Gaussian mechanism for
differential privacy", 2018, theorem 8.
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
TOLERANCE = 1e-12  # relative; ε is rounded up by as much


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

    @property
    def beside(self) -> str:
        """How messages about another setting name this one."""
        return f"with privacy.clip = {self.clip:g}"

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


def delta_of(epsilon: float, ratio: float) -> float:
    """Return the δ of a Gaussian mechanism at `epsilon`: Φ(r/2 − ε/r) − exp(ε)·Φ(−r/2 − ε/r).

    Args:
        epsilon: ε, from 0.
        ratio: r, the sensitivity divided by the noise's standard deviation, above 0.
    """
    from scipy.special import log_ndtr  # importing it takes 0.4 s

    first = float(log_ndtr(ratio / 2 - epsilon / ratio))
    second = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))
    # The difference of two numbers that may both be far below the smallest float, or close to each other.
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def epsilon_of(ratio: float, delta: float) -> float:
    """Return the least ε of a Gaussian mechanism for a δ, rounded up; see `delta_of`.

    Args:
        ratio: r, from 0, which is a mechanism that releases nothing.
        delta: δ, above 0 and below 1.
    """
    if not ratio or delta_of(0.0, ratio) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high, ratio) > delta:
        low, high = high, 2 * high
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, ratio) > delta else (low, middle)
    return high
