"""Multi-Krum: the mean of the models with the lowest scores of Krum (Blanchard et al., 2017)."""

from __future__ import annotations

import numpy as np

from hflray.aggregation.krum import Krum
from hflray.config.options import whole
from hflray.support.arrays import FloatArray


class MultiKrum(Krum):
    """The plain mean of the models with the lowest scores of `hflray.aggregation.krum.Krum`.

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
