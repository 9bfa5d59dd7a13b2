"""Oort: devices of high loss and tolerable delay, with exploration, staleness and a pacer.

Source: F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury: "Oort: efficient federated learning via guided participant
selection", OSDI 2021, Algorithm 1. The variant ``paper`` takes ε, its decay and least value, α, W, the clip at the 95th
percentile and the cut-off of 95 % from the paper. The variant ``code`` takes the constants and the pacer of the
authors' code (github.com/SymbioticLab/Oort, training/argParser.py and oort/oort.py at commit 25c8853, as stored in a
public archive): clip 0.98, cut-off 0.7, decay 0.95, a first quantile of 10 %, Δ of 5 %, and a pacer that raises the
quantile if the utility of the exploited devices is flat and lowers it if it changes sharply.

Both variants take from that code that utilities are scaled to 0 to 1 before the staleness is added, and that the
preferred duration T is a quantile of the durations. The quantile of 30 % in ``paper`` is the default of FedScale, which
has the code too, and Δ of 10 % that of an earlier version of the authors' code. Both draw devices that never trained by
their speed, as the paper says; the code draws them by their number of samples, with T as a penalty. Durations are those
of an edge iteration as it happened; under the optimal allocation they score a device's edge rather than the device, as
docs/explanation/schedulers.md says. The paper's limit on the times that a device is chosen is left out; the code has
it off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from hflray.config.options import between, one_of, whole
from hflray.scheduling.base import Scheduler, option, weighted_draw
from hflray.scheduling.context import RoundContext, nominal_iteration
from hflray.support.arrays import FloatArray, IntArray

FLAT, SHARP = 0.1, 5.0  # relative changes of the utility on which the pacer of the code acts


class Constants(NamedTuple):
    """What differs between the variants by default; the options of `Oort` say what the first three are.

    Attributes:
        decay, duration_share, step: see `Oort`.
        clip: quantile at which utilities are clipped.
        cut_off: share of the last utility that would fit, above which devices are drawn.
    """

    decay: float
    duration_share: float
    step: float
    clip: float
    cut_off: float


VARIANTS = {"paper": Constants(0.98, 0.3, 0.1, 0.95, 0.95), "code": Constants(0.95, 0.1, 0.05, 0.98, 0.7)}


@dataclass(kw_only=True, eq=False, repr=False)
class Oort(Scheduler):
    """Algorithm 1 of Oort.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        variant: ``paper`` or ``code``.
        exploration, decay, least_exploration: ε of the first round, its factor a round, and its smallest value.
        penalty: α, the exponent of the penalty (T/t)^α of a device that takes t > T seconds.
        duration_share: the quantile of the known delays that is T in the first rounds; in ``code``, 1 stands for no T.
        window: W, the rounds over which the pacer sums the utility.
        step: Δ, by which the pacer raises the quantile: in ``paper`` if the sum has fallen, in ``code`` if it has
            changed by at most 10 %; if it has changed fivefold or more, ``code`` lowers it.

        None stands for the variant's own constant (`VARIANTS`).

    Raises:
        ConfigError: the variant is unknown, or a number is outside what it accepts.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})

    variant: str = option("paper", one_of, tuple(VARIANTS))
    exploration: float = option(0.9, between, 0, 1)
    decay: float = option(None, between, 0, 1)
    least_exploration: float = option(0.2, between, 0, 1)
    penalty: float = option(2.0, between, 0)
    duration_share: float = option(None, between, 0, 1)
    window: int = option(20, whole, 1)
    step: float = option(None, between, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.constants = VARIANTS[self.variant]
        for name in ("decay", "duration_share", "step"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self.constants, name))
        self.sums: list[float] = []  # the utility of each round's devices, of the last 2 W rounds
        self.exploited: list[int] = []  # the devices of the round before that were not new, in the variant "code"
        self.state_names = ("sums", "duration_share", *(("exploited",) if self.variant == "code" else ()))

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        self._pace(context)
        rng, candidates = context.rng, np.flatnonzero(context.available)
        count = min(self.num_scheduled, len(candidates))
        has_utility = np.isfinite(context.last_utility[candidates])
        explored, fresh = candidates[has_utility], candidates[~has_utility]
        rate = max(self.least_exploration, self.exploration * self.decay ** (context.round - 1))
        num_new = min(len(fresh), max(round(rate * count), count - len(explored)))
        chosen = self._exploit(self.utility(context, explored), explored, count - num_new, rng)
        delay_s, _ = nominal_iteration(context, self.num_scheduled)
        fresh_chosen = weighted_draw(1.0 / delay_s[fresh], fresh, num_new, rng)  # by speed: the loss is not known
        self.exploited = chosen.tolist() if self.variant == "code" else []
        return np.sort(np.concatenate([chosen, fresh_chosen])).astype(np.intp)

    def utility(self, context: RoundContext, devices: IntArray) -> FloatArray:
        """Return the utility of devices that have trained, (n,): clipped and scaled loss, staleness, and delay."""
        if not len(devices):
            return np.zeros(0)
        loss = context.last_utility[devices]
        least = 0.999 * loss.min()  # so that the smallest utility is not 0
        scaled = (np.minimum(loss, self._quantile(loss, self.constants.clip)) - least) / max(loss.max() - least, 1e-4)
        value = scaled + np.sqrt(0.1 * np.log(context.round) / context.last_round[devices])
        delay_s = context.last_delay_s[devices]
        finite_s = delay_s[np.isfinite(delay_s)]  # that of a device whose first turn is open is not known
        preferred_s = self._quantile(finite_s, self.duration_share) if len(finite_s) else math.inf
        if self.variant == "code" and self.duration_share >= 1:
            preferred_s = math.inf
        return np.asarray(value * np.where(delay_s > preferred_s, (preferred_s / delay_s) ** self.penalty, 1.0))

    def _quantile(self, values: FloatArray, share: float) -> float:
        """Return a quantile of values (n,); in the variant ``code`` it is one of them."""
        if self.variant == "code":
            return float(np.sort(values)[min(int(len(values) * share), len(values) - 1)])
        return float(np.quantile(values, share))

    def _exploit(self, utility: FloatArray, devices: IntArray, count: int, rng: np.random.Generator) -> IntArray:
        """Draw `count` devices by utility among those above the cut-off.

        It is a share of the utility of number `count`, or in the variant ``code`` of the one after it.
        """
        if count <= 0 or not len(devices):
            return devices[:0]
        last = min(count + (self.variant == "code"), len(devices))
        among = utility >= self.constants.cut_off * np.sort(utility)[-last]
        return weighted_draw(utility[among], devices[among], count, rng)

    def _pace(self, context: RoundContext) -> None:
        """Note the last round's utility; every W rounds, move the quantile of the delays as the variant says."""
        counted = context.last_round == context.round - 1
        if self.variant == "code":
            exploited = np.array(self.exploited, dtype=np.intp)
            utility = context.last_utility[exploited[counted[exploited]]]
            self.sums.append(float(utility.mean()) if len(utility) else 0.0)
        elif context.round > 1:
            self.sums.append(float(np.nansum(context.last_utility[counted])))
        self.sums = self.sums[-2 * self.window :]
        if len(self.sums) < 2 * self.window:
            return
        before, now = sum(self.sums[: self.window]), sum(self.sums[self.window :])
        if self.variant == "code":
            if context.round % self.window == 0:
                self._pace_by_change(before, now)
        elif (context.round - 1) % self.window == 0 and before > now:
            self.duration_share = min(1.0, self.duration_share + self.step)

    def _pace_by_change(self, before: float, now: float) -> None:
        """Raise the quantile if the utility is flat, and lower it if it changes sharply."""
        change = abs(now - before)
        if change <= FLAT * before:
            self.duration_share = min(1.0, self.duration_share + self.step)
        elif change >= SHARP * before:
            self.duration_share = max(self.step, self.duration_share - self.step)
