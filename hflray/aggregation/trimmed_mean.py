"""The trimmed mean of each number (Yin et al., "Byzantine-robust distributed learning", 2018)."""

from __future__ import annotations

import math

import numpy as np

from hflray.aggregation.base import OfModels
from hflray.config.options import between
from hflray.support.arrays import FloatArray

ROUNDING = 1e-9  # 0.29 · 100 is 28.999999999999996, and means 29


class TrimmedMean(OfModels):
    """The mean of each number without its lowest and highest values. Weights are ignored.

    Args:
        share: the share of the models that is cut at each end, rounded down; 0 to 0.5. At least one model is left.

    Raises:
        ConfigError: the share is another number.
    """

    def __init__(self, share: float = 0.2) -> None:
        self.share = between("aggregation.edge.options.share", share, 0.0, 0.5)

    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the trimmed means, (P,)."""
        cut = min(math.floor(self.share * len(models) + ROUNDING), (len(models) - 1) // 2)
        ordered = np.sort(models, axis=0)
        return np.asarray(ordered[cut : len(models) - cut].mean(axis=0))
