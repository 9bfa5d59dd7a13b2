"""A learning curve in place of training: the accuracy after some rounds, from who took part in them.

The accuracy after round i is ``A · c_i^γ · (1 - exp(-(x_i / τ)^κ))``. Here x_i is the sum of the rounds' class balance,
the entropy of the scheduled devices' labels divided by its largest value, so that a round without some classes counts
less. c_i is the share of all samples whose device has taken part at least once. Neither depends on the order within a
round, on costs, or on the model's size.

`DIGITS` was fitted on 17 runs of ``tune_configs/joint_cost.yaml`` with even seeds, of IKC and of joint_cost with and
without turns. On the 13 runs with odd seeds its mean absolute error over the rounds is 1.7 points of accuracy. Its end
is too low: it stays below 90.5 %, where runs go on to 92 %. Other data need another fit (`fit`). The curve is a
stand-in for quick experiments and no result: what a scheduler is worth, a real run shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from hflray import metrics
from hflray.support.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Progress:
    """What the curve depends on; `after` gives that of the next round.

    Attributes:
        balance: x, the sum of the class balances of the rounds so far.
        participated: whether a device has taken part, (N,).
        coverage: c, the share of the samples that devices which took part hold.
    """

    balance: float
    participated: BoolArray
    coverage: float = 0.0

    @classmethod
    def start(cls, num_devices: int) -> Progress:
        """Return the progress before the first round."""
        return cls(0.0, np.zeros(num_devices, dtype=bool))

    def after(self, devices: IntArray, class_counts: IntArray) -> Progress:
        """Return the progress after a round of `devices`, (H,), of a fleet with `class_counts`, (N, C)."""
        participated = self.participated.copy()
        participated[devices] = True
        samples = class_counts.sum(axis=1)
        balance = metrics.class_balance(class_counts[devices].sum(axis=0))
        return replace(
            self,
            balance=self.balance + balance,
            participated=participated,
            coverage=float(samples[participated].sum() / samples.sum()),
        )


@dataclass(frozen=True)
class Curve:
    """The parameters of the curve.

    Attributes:
        best: A, the accuracy of endless training on all samples.
        pace: τ, the rounds of perfect balance after which a share 1 - 1/e is reached.
        shape: κ; below 1 the curve rises fast at first and long afterwards.
        breadth: γ; how much accuracy it costs to leave devices out.
    """

    best: float
    pace: float
    shape: float
    breadth: float

    def accuracy(self, progress: Progress) -> float:
        """Return the accuracy after the rounds of `progress`."""
        return float(self._of(np.array([progress.balance]), np.array([progress.coverage]))[0])

    def _of(self, balance: FloatArray, coverage: FloatArray) -> FloatArray:
        rise = 1.0 - np.exp(-((balance / self.pace) ** self.shape))
        return np.asarray(self.best * coverage**self.breadth * rise)

    def error(self, runs: Sequence[Observed]) -> float:
        """Return the mean absolute error over all rounds of some runs."""
        return float(
            np.concatenate([np.abs(self._of(run.balance, run.coverage) - run.accuracy) for run in runs]).mean()
        )


@dataclass(frozen=True)
class Observed:
    """A real run as the curve sees it: balance, coverage and accuracy after each of its n rounds, (n,) each."""

    balance: FloatArray
    coverage: FloatArray
    accuracy: FloatArray

    @classmethod
    def of(cls, schedules: Sequence[IntArray], accuracy: Sequence[float], class_counts: IntArray) -> Observed:
        """Return the run that scheduled these devices round by round and reached these accuracies."""
        progress, rows = Progress.start(len(class_counts)), []
        for devices in schedules:
            progress = progress.after(np.asarray(devices, dtype=np.intp), class_counts)
            rows.append((progress.balance, progress.coverage))
        balance, coverage = np.array(rows).T
        return cls(balance, coverage, np.asarray(accuracy, dtype=np.float64))


def fit(runs: Sequence[Observed], start: Curve | None = None) -> Curve:
    """Return the curve of the smallest squared error over the rounds of some runs."""

    def errors(values: FloatArray) -> FloatArray:
        curve = Curve(*values)
        return np.concatenate([curve._of(run.balance, run.coverage) - run.accuracy for run in runs])

    bounds = ([0.1, 0.1, 0.1, 0.0], [1.0, 1e4, 3.0, 3.0])
    solution = least_squares(errors, astuple(start or Curve(0.95, 5.0, 0.7, 0.1)), bounds=bounds)
    return Curve(*map(float, solution.x))


DIGITS = Curve(best=0.905, pace=3.72, shape=0.903, breadth=0.0104)
