"""Nonnegative constants of many groups of rows at once, by robust regression, with intervals.

In each group y = x · b with b ≥ 0 and errors in proportion to y, because the seconds of rows differ by orders. Rows are
weighted by 1/ŷ² and by Huber's weights, anew in each iteration. With at most three constants the nonnegative least
squares of a group are the best of all subsets, so that all groups are solved together. Intervals are those of the
solution without the bound, cut at 0: Huber's sandwich with leverages (HC3), which takes rows as independent. By
Bonferroni, those of a group hold all of its constants together with 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # Student's quantile; scipy.stats takes a second to import

from hflray.support.arrays import BoolArray, FloatArray, IntArray

HUBER = 1.345  # standard deviations from which on an error counts less (Huber 1981: 95 % efficiency)
NORMAL_MAD = 1.4826  # the standard deviation of normal errors for a median absolute error of 1
APART = 1e-4  # part of a column's square that others must leave, so that its constant is told apart
LEAST_SCALE = 1e-9  # of relative errors
MOST_LEVERAGE = 0.9
ITERATIONS, BRIEF_ITERATIONS, CONVERGED = 40, 6, 1e-6
SPREADS = 6  # iterations after which the spread of a group stays, so that its constants converge


@dataclass(frozen=True, eq=False)
class Fit:
    """The constants of groups.

    Attributes:
        values: (G, K), of each column; 0 where the rows do not tell it apart.
        low, high: the 95 % interval of each, (G, K); NaN where there is none.
        apart: whether the rows of a group tell a column apart from those before it, (G, K).
        spread: the relative standard deviation of errors, (G,).
        rows: how many rows of a group were used, (G,).
        inverse: of the sum of squares of the columns, each row's over what it predicts, (G, K, K).
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    apart: BoolArray
    spread: FloatArray
    rows: IntArray
    inverse: FloatArray

    def predict(self, x: FloatArray, group: IntArray) -> FloatArray:
        """Return x · b, (n,), of rows with columns x, (n, K), in these groups, (n,)."""
        return np.asarray((x * self.values[group]).sum(axis=1))

    def leverage(self, x: FloatArray, group: IntArray) -> FloatArray:
        """Return the variance of what is predicted of rows, beside that of the noise of a row, (n,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            u = x * self.apart[group] / self.predict(x, group)[:, None]
            return np.asarray(np.einsum("ni,nij,nj->n", u, self.inverse[group], u))


def medians(values: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the median of the finite values of each group, (G,); NaN for a group without one."""
    by_group = pd.Series(values).groupby(group).median()
    result = np.full(groups, np.nan)
    result[by_group.index.to_numpy(dtype=np.intp)] = by_group
    return result


def fit(y: FloatArray, x: FloatArray, group: IntArray, groups: int, brief: bool = False) -> Fit:
    """Return the constants of each group.

    Args:
        y: what was measured, (n,); rows that are not above 0 are left out.
        x: the columns, (n, K); the constant of one that others before it explain is 0.
        group: the group of each row, (n,), from 0.
        groups: G.
        brief: whether a few iterations are enough, as for held-out rows, and no intervals.
    """
    use = np.flatnonzero(np.isfinite(y) & (y > 0) & np.isfinite(x).all(axis=1))
    y, x, group = y[use], x[use], group[use]
    count = x.shape[1]
    scale = np.zeros((groups, count))
    np.maximum.at(scale, group, x)
    scale[scale == 0] = 1.0
    z = x / scale[group]
    rows = np.bincount(group, minlength=groups)
    apart = _are_apart(_gram(z, np.ones(len(y)), group, groups))
    free = np.maximum(rows - apart.sum(axis=1), 1)
    middle = medians(y, group, groups)[group]
    expected, weight = np.clip(y, middle / 10, middle * 10), np.ones(len(y))
    b = np.zeros((groups, count))
    for iteration in range(BRIEF_ITERATIONS if brief else ITERATIONS):
        u = z / expected[:, None]
        part: FloatArray = (
            y / expected if iteration else np.ones(len(y))
        )  # the first is without what lies far from the median
        gram, right = _gram(u, weight, group, groups), _right(u, weight * part, group, groups)
        b = _nonnegative(gram, right, apart)
        former, expected = expected, (z * b[group]).sum(axis=1)
        expected = np.maximum(expected, np.minimum(y, middle) * 1e-3)
        error = y / expected - 1
        if iteration < SPREADS:
            spread = np.maximum(NORMAL_MAD * medians(np.abs(error), group, groups) * np.sqrt(rows / free), LEAST_SCALE)
            most = HUBER * spread[group]
        weight = np.minimum(1.0, most / np.maximum(np.abs(error), 1e-300))
        if len(y) and np.abs(expected / former - 1).max() < CONVERGED:
            break
    values, scales = b / scale, scale[:, :, None] * scale[:, None, :]
    spread = np.where(rows > apart.sum(axis=1), spread, np.nan)
    none = np.full((groups, count), np.nan)
    if brief:
        return Fit(values, none, none, apart, spread, rows, np.linalg.inv(_masked(gram, apart)) / scales)
    u, inner, pull = z / expected[:, None], np.abs(error) <= most, np.clip(error, -most, most)
    free_b = _solve(gram, right, apart)
    inverse = np.linalg.inv(_masked(_gram(u, inner.astype(float), group, groups), apart))
    leverage = np.einsum("ni,nij,nj->n", u * apart[group], inverse[group], u * apart[group])
    squares = (pull / (1 - np.clip(leverage, 0, MOST_LEVERAGE))) ** 2
    meat = _gram(u, squares, group, groups)
    error_b = np.sqrt(np.maximum(np.einsum("gij,gjk,gki->gi", inverse, meat, inverse), 0.0))
    reach = stdtrit(free, 1 - 0.025 / np.maximum(apart.sum(axis=1), 1))[:, None] * error_b
    has = apart & (rows > apart.sum(axis=1))[:, None]
    low = np.where(has, np.clip(free_b - reach, 0, b), np.nan) / scale
    high = np.where(has, np.maximum(free_b + reach, b), np.nan) / scale
    return Fit(values, low, high, apart, spread, rows, inverse / scales)


def _right(u: FloatArray, y: FloatArray, group: IntArray, groups: int) -> FloatArray:
    return np.stack([np.bincount(group, u[:, k] * y, groups) for k in range(u.shape[1])], axis=-1)


def _gram(u: FloatArray, weight: FloatArray, group: IntArray, groups: int) -> FloatArray:
    gram = np.zeros((groups, u.shape[1], u.shape[1]))
    for i, j in product(range(u.shape[1]), repeat=2):
        if i <= j:
            gram[:, i, j] = gram[:, j, i] = np.bincount(group, u[:, i] * u[:, j] * weight, groups)
    return gram


def _are_apart(gram: FloatArray) -> BoolArray:
    """Return which columns the columns before them do not explain, by Cholesky's elimination, (G, K)."""
    left, apart = gram.copy(), np.zeros(gram.shape[:2], bool)
    for k in range(gram.shape[1]):
        apart[:, k] = left[:, k, k] > APART * gram[:, k, k]
        pivot = np.where(apart[:, k], left[:, k, k], 1.0)
        change = left[:, :, k, None] * left[:, None, k, :] / pivot[:, None, None]
        left -= np.where(apart[:, k, None, None], change, 0.0)
    return apart


def _masked(gram: FloatArray, apart: BoolArray) -> FloatArray:
    """Return the matrices with those of the identity in place of columns that are not told apart, never singular."""
    size = np.maximum(np.einsum("gii->gi", gram), 1e-300)
    ridge = np.eye(gram.shape[1]) * (1e-12 * size)[:, :, None]
    return np.where(apart[:, :, None] & apart[:, None, :], gram + ridge, np.eye(gram.shape[1]))


def _solve(gram: FloatArray, right: FloatArray, apart: BoolArray) -> FloatArray:
    return np.asarray(np.linalg.solve(_masked(gram, apart), np.where(apart, right, 0.0)[:, :, None])[:, :, 0])


def _nonnegative(gram: FloatArray, right: FloatArray, apart: BoolArray) -> FloatArray:
    """Return the nonnegative least squares, (G, K): the best solution on a subset of columns without negative ones."""
    best, gain = np.zeros(right.shape), np.zeros(len(right))
    for subset in product((True, False), repeat=right.shape[1]):
        b = _solve(gram, right, apart & np.array(subset))
        value = (b * right).sum(axis=1)
        better = (b >= 0).all(axis=1) & (value > gain)
        best[better], gain[better] = b[better], value[better]
    return best
