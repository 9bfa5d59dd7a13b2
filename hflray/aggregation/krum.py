"""Krum: the model that lies closest to its neighbours (Blanchard et al., "Machine learning with adversaries: Byzantine
tolerant gradient descent", 2017)."""

from __future__ import annotations

import numpy as np

from hflray.aggregation.base import OfModels
from hflray.config.options import whole
from hflray.support.arrays import FloatArray


class Krum(OfModels):
    """The model with the smallest sum of squared distances to its n − f − 2 nearest other models.

    Weights are ignored; the lower index wins ties. Its proof needs n ≥ 2f + 3 models: a plan with fewer devices at an
    edge is an error, and an edge at which fewer arrive keeps its model.

    Args:
        f: the number of devices of an edge that may send anything, 0 or more.

    Raises:
        ConfigError: f is another number.
    """

    def __init__(self, f: int) -> None:
        self.f = whole("aggregation.edge.options.f", f, 0)

    @property
    def least(self) -> int:
        """2f + 3."""
        return 2 * self.f + 3

    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the chosen model, (P,)."""
        return np.asarray(models[self.scores(models).argmin()])

    def scores(self, models: FloatArray) -> FloatArray:
        """Return the sum of the squared distances of each model to its nearest others, (n,)."""
        squares = np.zeros((len(models), len(models)))
        for i, model in enumerate(models):  # by differences: expanded squares would cancel where models are close
            differences = models[i + 1 :] - model
            squares[i, i + 1 :] = squares[i + 1 :, i] = np.einsum("np,np->n", differences, differences)
        np.fill_diagonal(squares, np.inf)
        nearest = np.sort(squares, axis=1)[:, : len(models) - self.f - 2]
        return np.asarray(nearest.sum(axis=1))
