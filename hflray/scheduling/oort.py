"""Oort: devices of high loss and tolerable delay, with exploration, staleness and a pacer.

Source: F. Lai, X. Zhu, H. V. Madhyastha, M. Chowdhury: "Oort: efficient federated learning via guided participant
selection", OSDI 2021, Algorithm 1. Where it leaves values open, they are those of the authors' code
(github.com/SymbioticLab/Oort): utilities are clipped at the 95th percentile and scaled to 0 to 1 before the staleness
is added, and the preferred duration T is a quantile of the durations, which the pacer raises. Durations are those of
an edge iteration as it happened; under the optimal allocation they score a device's edge rather than the device, as
docs/explanation/schedulers.md says. The paper's limit on the times that a device is chosen is left out; the code has
it off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hflray.arrays import FloatArray, IntArray
from hflray.scheduling.base import Scheduler, check_option
from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import nominal_iteration, weighted_draw

CUT_OFF, CLIP = 0.95, 0.95


class Oort(Scheduler):
    """Algorithm 1 of Oort.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        exploration, decay, least_exploration: ε of the first round, its factor a round, and its smallest value.
        penalty: α, the exponent of the penalty (T/t)^α of a device that takes t > T seconds.
        duration_share: the quantile of the known delays that is T in the first rounds.
        window: W, the rounds over which the pacer sums the utility.
        step: Δ, by which the pacer raises the quantile if the sum has fallen.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __init__(
        self,
        *,
        num_devices: int,
        num_scheduled: int,
        clusters: ArrayLike | None = None,
        exploration: float = 0.9,
        decay: float = 0.98,
        least_exploration: float = 0.2,
        penalty: float = 2.0,
        duration_share: float = 0.3,
        window: int = 20,
        step: float = 0.1,
    ) -> None:
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.exploration = check_option("exploration", exploration, 0, 1)
        self.decay = check_option("decay", decay, 0, 1)
        self.least_exploration = check_option("least_exploration", least_exploration, 0, 1)
        self.penalty = check_option("penalty", penalty, 0)
        self.duration_share = check_option("duration_share", duration_share, 0, 1)
        self.window = int(check_option("window", window, 1, whole=True))
        self.step = check_option("step", step, 0, 1)
        self.sums: list[float] = []  # the utility of each round's devices, of the last 2 W rounds

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        self._pace(context)
        rng, candidates = context.rng, np.flatnonzero(context.available)
        count = min(self.num_scheduled, len(candidates))
        has_utility = np.isfinite(context.last_utility[candidates])
        explored, fresh = candidates[has_utility], candidates[~has_utility]
        rate = max(self.least_exploration, self.exploration * self.decay ** (context.round - 1))
        num_new = min(len(fresh), max(round(rate * count), count - len(explored)))
        chosen = _exploit(self.utility(context, explored), explored, count - num_new, rng)
        delay_s, _ = nominal_iteration(context, self.num_scheduled)
        fresh_chosen = weighted_draw(
            1.0 / delay_s[fresh], fresh, num_new, rng
        )  # by speed, because the loss is not known
        return np.sort(np.concatenate([chosen, fresh_chosen])).astype(np.intp)

    def utility(self, context: RoundContext, devices: IntArray) -> FloatArray:
        """Return the utility of devices that have trained, (n,): clipped and scaled loss, staleness, and delay."""
        if not len(devices):
            return np.zeros(0)
        loss = context.last_utility[devices]
        least = 0.999 * loss.min()  # so that the smallest utility is not 0
        scaled = (np.minimum(loss, np.quantile(loss, CLIP)) - least) / max(loss.max() - least, 1e-4)
        value = scaled + np.sqrt(0.1 * np.log(context.round) / context.last_round[devices])
        delay_s = context.last_delay_s[devices]
        preferred_s = np.quantile(delay_s, self.duration_share)
        return np.asarray(value * np.where(delay_s > preferred_s, (preferred_s / delay_s) ** self.penalty, 1.0))

    def _pace(self, context: RoundContext) -> None:
        """Note the last round's utility; every W rounds, allow longer delays if it has fallen over the last W."""
        if context.round > 1:
            self.sums.append(float(np.nansum(context.last_utility[context.last_round == context.round - 1])))
        self.sums = self.sums[-2 * self.window :]
        due = len(self.sums) == 2 * self.window and (context.round - 1) % self.window == 0
        if due and sum(self.sums[: self.window]) > sum(self.sums[self.window :]):
            self.duration_share = min(1.0, self.duration_share + self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the base state and that of the pacer."""
        return super().state_dict() | {"sums": list(self.sums), "duration_share": self.duration_share}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ConfigError if it is another scheduler's, N's or H's."""
        super().load_state_dict(state)
        self.sums, self.duration_share = list(state["sums"]), float(state["duration_share"])


def _exploit(utility: FloatArray, devices: IntArray, count: int, rng: np.random.Generator) -> IntArray:
    """Draw `count` devices by utility among those above 95 % of the utility of number `count`."""
    if count <= 0 or not len(devices):
        return devices[:0]
    limit = CUT_OFF * np.sort(utility)[-min(count, len(devices))]
    among = utility >= limit
    return weighted_draw(utility[among], devices[among], count, rng)
