"""Robust aggregators at an edge: a few models, however far they lie, move what it makes by a bounded amount.

* ``median`` and ``trimmed_mean`` of each number: Yin et al., "Byzantine-robust distributed learning", 2018;
* ``krum`` and ``multi_krum``: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
  descent", 2017;
* ``geometric_median``: Pillutla et al., "Robust aggregation for federated learning", 2022.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.aggregation.base import OfModels
from hflray.config.options import between, whole
from hflray.support.arrays import FloatArray, squared_norm

ROUNDING = 1e-9  # 0.29 · 100 is 28.999999999999996, and means 29
TOLERANCE = 1e-6  # of a step of the geometric median, relative to the mean distance to the models
MOST_STEPS = 1000


class Median(OfModels):
    """The median of each number of the models; of an even number, the mean of the two in the middle.

    Weights are ignored. It needs no options.
    """

    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the medians, (P,)."""
        return np.asarray(np.median(models, axis=0))


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


class MultiKrum(Krum):
    """The plain mean of the models with the lowest scores of `Krum`.

    Args:
        f: see `Krum`.
        keep: how many models are averaged, or all if there are fewer; None: n − f.

    Raises:
        ConfigError: f or `keep` is another number.
    """

    def __init__(self, f: int, keep: int | None = None) -> None:
        super().__init__(f)
        self.keep = None if keep is None else whole("aggregation.edge.options.keep", keep, 1)

    def of_models(self, models: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the mean of the chosen models, (P,)."""
        chosen = np.argsort(self.scores(models), kind="stable")[: self.keep or len(models) - self.f]
        return np.asarray(models[np.sort(chosen)].mean(axis=0))


class GeometricMedian(OfModels):
    """The point with the smallest sum of distances to the models, by Weiszfeld's steps from the mean.

    Weights are ignored. It needs no options.

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
