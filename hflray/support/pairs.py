"""The comparison of two contestants by what each needs to a target, paired by what repeats: a seed, or a fleet.

The unit is what was drawn independently. Runs that share a seed share fleet and data, so that they are averaged to one
unit first (`Pairs.average`).

**The test** is Wilcoxon's signed-rank test, two-sided and exact for any number of units. The absolute steps are ranked,
and equal ones share their mean rank. Units without a step are ranked as well and then leave (Pratt 1959). Each of the m
other ranks has either sign with probability 1/2, and p is the share of the 2^m patterns whose sum is at least as far
from 0 as ours, counted exactly and without an approximation for ties. Its least value is 2 / 2^n for n units.

**Censoring.** A contestant that missed the target would have needed more than it has spent. The logarithm of a ratio
is then known by a bound only, and a pair is an interval. If the interval contains 0, the order of the two is uncertain:
the smaller value is the censored one. Such a pair scores 0 and is counted (`Pairs.uncertain`). Otherwise it scores the
bound that is nearer to 0. The mean over runs that share a unit is the interval between the means of the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student

from hflray.support.arrays import FloatArray

LEVEL = 0.05
FAR = 1e6  # a difference of logarithms that is larger than any between two runs that reached the target
DIGITS = 12  # steps that agree to as many decimals are ties, so that rounding makes no order


def least_p(units: int, family: int = 1) -> float:
    """Return the least p-value that the test can give with this many units, by Holm's method in a family of tests."""
    return min(1.0, family * 2.0 ** (1 - units)) if units else 1.0


def signed_rank_p(steps: Sequence[float] | FloatArray) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test; 1 if no step differs from 0.

    Args:
        steps: the signed differences, (units,).
    """
    rounded = np.round(np.asarray(steps, dtype=float), DIGITS)
    moved = rounded != 0
    # Twice the ranks, because the mean of tied ranks may end in a half.
    ranks = np.rint(2 * rankdata(np.abs(rounded))).astype(int)[moved]
    total, ours = int(ranks.sum()), int(ranks[rounded[moved] > 0].sum())
    shares = np.zeros(total + 1)  # of the patterns of signs, by the sum of the ranks with a plus
    shares[0] = 1.0
    for rank in ranks:
        shares[rank:] = (shares[rank:] + shares[:-rank]) / 2
        shares[:rank] /= 2
    as_far = np.abs(2 * np.arange(total + 1) - total) >= abs(2 * ours - total)
    return min(1.0, float(shares[as_far].sum()))


def mean_interval(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Return the mean of independent values, (units,), and the half width of its Student interval of 95 %.

    Of logarithms of ratios, the exponentials of mean ± half width are the geometric mean and its interval. The half
    width is NaN for one value, and both are NaN without any.
    """
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        return (float(sample[0]) if len(sample) else np.nan), np.nan
    error = float(sample.std(ddof=1)) / np.sqrt(len(sample))
    return float(sample.mean()), float(student.ppf(0.975, len(sample) - 1) * error)


@dataclass(frozen=True)
class Pairs:
    """A contestant against a reference, a step for each unit that both have.

    A step is the logarithm of the contestant's value divided by the reference's, known by its bounds.

    Attributes:
        low, high: the bounds of the steps, (units,); equal where nothing is censored.
    """

    low: FloatArray
    high: FloatArray

    @classmethod
    def censored(
        cls,
        contestant: Sequence[float] | FloatArray,
        own_reached: Sequence[bool] | FloatArray,
        other: Sequence[float] | FloatArray,
        other_reached: Sequence[bool] | FloatArray,
    ) -> Pairs:
        """Return the comparison of what was spent up to the target, or up to the end where it was missed, (units,).

        Nothing is known of a unit of which a value is NaN. Two that spent nothing tie.
        """
        own_spent, other_spent = np.asarray(contestant, dtype=float), np.asarray(other, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            steps = np.nan_to_num(np.log(own_spent / other_spent), nan=0.0, posinf=FAR, neginf=-FAR)
        is_known = ~(np.isnan(own_spent) | np.isnan(other_spent))
        low = np.where(is_known & np.asarray(other_reached, dtype=bool), steps, -np.inf)
        return cls(low, np.where(is_known & np.asarray(own_reached, dtype=bool), steps, np.inf))

    @classmethod
    def exact(cls, steps: Sequence[float] | FloatArray) -> Pairs:
        """Return the comparison of which all steps, (units,), are known."""
        bounds = np.asarray(steps, dtype=float)
        return cls(bounds, bounds)

    @classmethod
    def ordered(cls, contestant: Sequence[float] | FloatArray, other: Sequence[float] | FloatArray) -> Pairs:
        """Return the comparison of values, (units,), of which an infinite one is the worst and two of these tie."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.asarray(contestant, dtype=float) / np.asarray(other, dtype=float)
            steps = np.clip(np.nan_to_num(np.log(ratios), nan=0.0, posinf=FAR, neginf=-FAR), -FAR, FAR)
        return cls.exact(steps)

    @classmethod
    def average(cls, units: Sequence[Pairs]) -> Pairs:
        """Return one step for each of `units`, the mean of its steps; bounds are averaged as bounds."""
        return cls(np.array([unit.low.mean() for unit in units]), np.array([unit.high.mean() for unit in units]))

    @property
    def units(self) -> int:
        """The number of units."""
        return len(self.low)

    @property
    def steps(self) -> FloatArray:
        """The step that each unit scores, (units,): its bound nearer to 0, or 0 where the order is uncertain."""
        return np.where(self.low > 0, self.low, np.where(self.high < 0, self.high, 0.0))

    @property
    def uncertain(self) -> int:
        """The number of units whose order is uncertain."""
        return int(((self.low < 0) & (self.high > 0)).sum())

    @property
    def p(self) -> float:
        """Two-sided p-value, not adjusted; NaN if so few units cannot give one below `LEVEL`."""
        return signed_rank_p(self.steps) if least_p(self.units) < LEVEL else np.nan

    @property
    def median(self) -> tuple[float, float]:
        """The least and the largest value that the median ratio can have; NaN without units.

        Both are infinite where most units' contestants have the worst rank.
        """
        if not self.units:
            return np.nan, np.nan
        with np.errstate(over="ignore"):
            return float(np.median(np.exp(self.low))), float(np.median(np.exp(self.high)))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted by Holm's method; NaN stays NaN and is not counted."""
    tested = sorted((p, name) for name, p in p_values.items() if not np.isnan(p))
    adjusted, largest = dict.fromkeys(p_values, np.nan), 0.0
    for place, (p, name) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - place) * p))
        adjusted[name] = largest
    return adjusted


def family_p(pairs: Mapping[str, Pairs]) -> dict[str, float]:
    """Return the p-value of each comparison of a family, adjusted by Holm's method.

    The family consists of the comparisons whose units can give a p-value below `LEVEL` by themselves. The result is NaN
    where so few units cannot give one below `LEVEL` in this family.
    """
    adjusted = holm({name: pair.p for name, pair in pairs.items()})
    family = sum(not np.isnan(p) for p in adjusted.values())
    return {name: p if least_p(pairs[name].units, family) < LEVEL else np.nan for name, p in adjusted.items()}
