"""The median of each number (Yin et al., "Byzantine-robust distributed learning", 2018)."""

from __future__ import annotations

import numpy as np

from hflray.aggregation.base import OfModels
from hflray.support.arrays import FloatArray


class Median(OfModels):
    """The median of each number of the models; of an even number, the mean of the two in the middle.

    Weights are ignored. It needs no options.
    """

    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the medians, (P,)."""
        return np.asarray(np.median(models, axis=0))
