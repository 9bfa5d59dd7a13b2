"""Oort written outside hflray, as a scheduler of one's own that sees losses, delays and who answers.

It is Algorithm 1 of Lai, Zhu, Madhyastha and Chowdhury (OSDI 2021) on NumPy and hflray's public calls, and chooses the
same devices as the built-in `oort`. A sweep file beside it names it with `scheduling.name: oort.py:Oort`.
"""

import numpy as np

from hflray import Scheduler
from hflray.cost import compute_delay_s, rate_bps, upload_delay_s


class Oort(Scheduler):
    """Devices of high loss and tolerable delay, and some that have never trained."""

    needs = frozenset({"loss"})  # without it, context.last_utility is not computed

    def __init__(self, *, exploration=0.9, window=20, step=0.1, **counts):
        super().__init__(**counts)
        self.exploration, self.window, self.step = exploration, window, step
        self.share, self.sums = 0.3, []  # the quantile of delays that is tolerated, and the utility of past rounds

    def schedule(self, context):
        self.pace(context)
        candidates = np.flatnonzero(context.available)
        count = min(self.num_scheduled, len(candidates))
        trained = np.isfinite(context.last_utility[candidates])
        old, new = candidates[trained], candidates[~trained]
        rate = max(0.2, self.exploration * 0.98 ** (context.round - 1))
        explore = min(len(new), max(round(rate * count), count - len(old)))
        chosen = old[:0]
        if count > explore:
            utility = self.utility(context, old)
            among = utility >= 0.95 * np.sort(utility)[-(count - explore)]
            chosen = draw(utility[among], old[among], count - explore, context.rng)
        by_speed = draw(1.0 / self.delay_s(context)[new], new, explore, context.rng)
        return np.sort(np.concatenate([chosen, by_speed]))

    def utility(self, context, devices):
        """Clipped and scaled loss, plus staleness, times the penalty of a long delay."""
        loss, delay_s = context.last_utility[devices], context.last_delay_s[devices]
        least = 0.999 * loss.min()
        scaled = (np.minimum(loss, np.quantile(loss, 0.95)) - least) / max(loss.max() - least, 1e-4)
        value = scaled + np.sqrt(0.1 * np.log(context.round) / context.last_round[devices])
        tolerated_s = np.quantile(delay_s, self.share)
        return value * np.where(delay_s > tolerated_s, (tolerated_s / delay_s) ** 2.0, 1.0)

    def pace(self, context):
        """Every `window` rounds, tolerate longer delays if the utility has fallen."""
        if context.round > 1:
            self.sums.append(float(np.nansum(context.last_utility[context.last_round == context.round - 1])))
        self.sums = self.sums[-2 * self.window :]
        due = len(self.sums) == 2 * self.window and (context.round - 1) % self.window == 0
        if due and sum(self.sums[: self.window]) > sum(self.sums[self.window :]):
            self.share = min(1.0, self.share + self.step)

    def delay_s(self, context):
        """A device's edge iteration at its full speed, over its best link, with an equal share of the bandwidth."""
        fleet, work = context.fleet, context.work
        everyone = np.arange(fleet.num_devices)
        edges = fleet.strongest_edges(everyone)[:, 0]
        share_hz = fleet.edge_bandwidth_hz[edges] * fleet.num_edges / self.num_scheduled
        rate = rate_bps(share_hz, fleet.gain_of(everyone, edges), fleet.power_w, fleet.noise_w_per_hz)
        computing_s = compute_delay_s(work.local_iterations, fleet.cycles_per_sample, fleet.samples, fleet.max_cpu_hz)
        return computing_s + upload_delay_s(work.model_bits, rate)

    def state_dict(self):
        return super().state_dict() | {"sums": list(self.sums), "share": self.share}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.sums, self.share = list(state["sums"]), state["share"]


def draw(weights, devices, count, rng):
    """Draw devices without replacement, in proportion to their weights (Efraimidis and Spirakis, 2006)."""
    keys = np.log(rng.random(len(devices))) / weights
    return devices[np.lexsort((rng.random(len(devices)), -keys))[:count]]
