"""The comparison of two contestants by what each needs to a target, on pairs of runs that are otherwise alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from hflray.arrays import FloatArray

LEAST_PAIRS = 10
FAR = 1e6  # a difference of logarithms that is larger than any between two runs that reached the target


@dataclass(frozen=True)
class Pairs:
    """A contestant against the reference in a quantity, over the blocks that both have.

    Attributes:
        ratios: the contestant's value divided by the reference's, one for each pair; infinite if only the reference
            reached the target, 0 if only the contestant did, NaN if neither did.
        p: two-sided p-value of Wilcoxon's test, not adjusted; NaN if there are too few pairs.
    """

    ratios: FloatArray
    p: float

    @classmethod
    def of(cls, own: Sequence[float], other: Sequence[float]) -> Pairs:
        """Return the comparison of values that are paired in order; a value is infinite without the target."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.asarray(own, dtype=float) / np.asarray(other, dtype=float)
            steps = np.clip(np.nan_to_num(np.log(ratios), nan=0.0, posinf=FAR, neginf=-FAR), -FAR, FAR)
        if len(ratios) < LEAST_PAIRS:
            return cls(ratios, np.nan)
        return cls(ratios, float(wilcoxon(steps, zero_method="pratt").pvalue) if steps.any() else 1.0)

    @property
    def median(self) -> float:
        """The median ratio; infinite where most pairs are, NaN without pairs in which one reached the target."""
        ratios = np.sort(self.ratios[~np.isnan(self.ratios)])
        if not len(ratios):
            return np.nan
        low, high = ratios[(len(ratios) - 1) // 2], ratios[len(ratios) // 2]
        return float(low if low == high else (low + high) / 2)
