"""The weighted mean of models: equations (2) and (3) of the paper, taken as one exact sum in int64 fixed point.

Sums of sums are sums, so that the cloud may add the sums of the edges (equation 16). `OfUpdate` is the base class of
aggregators that take the mean's difference to the model before as a gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hflray.aggregation.base import Aggregator, Frame, Sent, State, checked_step
from hflray.aggregation.fixed_point import FloatVector, SumVector, mean, weighted
from hflray.support.arrays import FloatArray


class Mean(Aggregator):
    """The weighted mean. It needs no options, and it is the default at the edge and at the cloud."""

    linear: ClassVar[bool] = True

    def lift(self, sent: Sent, frame: Frame) -> SumVector:
        """Return ``weight × model`` in fixed point, (P,); see `hflray.aggregation.fixed_point.weighted`."""
        return weighted(sent.model, sent.weight, frame.fraction_bits, frame.statistics)

    def combine(self, parts: Sequence[SumVector]) -> SumVector:
        """Return the exact sum, (P,)."""
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total

    def finish(self, total: SumVector, before: FloatVector, state: State, frame: Frame) -> tuple[FloatVector, State]:
        """Return the mean, (P,)."""
        return mean(total, frame.weight, frame.fraction_bits, frame.statistics), state


class OfUpdate(Mean):
    """The base class of aggregators at the cloud that step along the mean update Δ = w̄ − w (Reddi et al., 2021).

    Statistics of normalisation layers are those of the mean.
    """

    linear: ClassVar[bool] = False
    at_edge: ClassVar[bool] = False

    def finish(self, total: SumVector, before: FloatVector, state: State, frame: Frame) -> tuple[FloatVector, State]:
        """Return the model after the step, (P,), and the next state."""
        combined, _ = super().finish(total, before, state, frame)
        end = len(before) - frame.statistics
        was = before[:end].astype(np.float64)
        change, state = checked_step(self, frame, self.step(combined[:end] - was, state), end)
        combined[:end] = was + change
        return combined, state

    @abstractmethod
    def step(self, update: FloatArray, state: State) -> tuple[FloatArray, State]:
        """Return the change of the model for the mean `update` Δ, (P,) float64, and the next state."""
