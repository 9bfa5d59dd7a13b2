"""The geometric median: the point with the smallest sum of distances to the models (Pillutla et al., "Robust
aggregation for federated learning", 2022)."""

from __future__ import annotations

import math

import numpy as np

from hflray.aggregation.base import OfModels
from hflray.support.arrays import FloatArray, squared_norm

TOLERANCE = 1e-6  # of a step, relative to the mean distance to the models
MOST_STEPS = 1000


class GeometricMedian(OfModels):
    """The geometric median by Weiszfeld's steps, from the mean. Weights are ignored. It needs no options.

    Each step goes to the mean of the models, weighted by the inverses of their distances. A point that has reached a
    model leaves it, or stays, as Vardi and Zhang ("The multivariate L1-median and associated data depth", 2000) say.
    """

    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the geometric median, (P,)."""
        point = models.mean(axis=0)
        for _ in range(MOST_STEPS):
            differences = models - point
            distance = np.linalg.norm(differences, axis=1)
            spread = distance.mean()
            apart = distance > TOLERANCE * spread
            if not apart.any():  # all models are the same
                break
            pull = (differences[apart] / distance[apart, None]).sum(axis=0)
            # Models at the point hold it with a force of 1 each; they also shorten the step.
            left = math.sqrt(squared_norm(pull)) - np.count_nonzero(~apart)
            if left <= 0:
                break
            step = pull * (left / math.sqrt(squared_norm(pull))) / (1 / distance[apart]).sum()
            point = point + step
            if math.sqrt(squared_norm(step)) <= TOLERANCE * spread:
                break
        return np.asarray(point)
