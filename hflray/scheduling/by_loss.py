"""Schedulers that look at losses: devices on whose samples the model loses most train more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hflray.config.options import between, whole
from hflray.scheduling.base import Scheduler, highest, option, weighted_draw
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import IntArray


@dataclass(kw_only=True, eq=False, repr=False)
class Importance(Scheduler):
    """Draws devices with probabilities that grow with the value of their samples (active federated learning).

    The value of a device is √D_n times the mean loss of its samples, kept from the round in which it last trained; a
    device that never did is as valuable as the most valuable one.

    Source: J. Goetz, K. Malik, D. Bui, S. Moon, H. Liu, A. Kumar: "Active federated learning", 2019 (arXiv:1909.12641),
    with its values α₁ = 0.75, α₂ = 0.01 and α₃ = 0.1.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        dropped: α₁, the share of the available devices, the least valuable ones, that is not drawn by value.
        sharpness: α₂; the probability is in proportion to exp(α₂ · value).
        uniform: α₃, the share of the H devices that is drawn uniformly among all others.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})

    dropped: float = option(0.75, between, 0, 1)
    sharpness: float = option(0.01, between, 0)
    uniform: float = option(0.1, between, 0, 1)

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates, rng = np.flatnonzero(context.available), context.rng
        count = min(self.num_scheduled, len(candidates))
        value = np.sqrt(context.fleet.samples[candidates]) * context.last_loss[candidates]
        value = np.where(np.isnan(value), np.nanmax(value, initial=0.0), value)
        by_value = count - int(self.uniform * count)
        num_valuable = max(by_value, len(candidates) - int(self.dropped * len(candidates)))
        valuable = np.lexsort((rng.random(len(candidates)), -value))[:num_valuable]
        weights = np.exp(self.sharpness * (value[valuable] - value.max(initial=0.0)))
        drawn = weighted_draw(weights, candidates[valuable], by_value, rng)
        undrawn = np.setdiff1d(candidates, drawn)
        return np.sort(np.concatenate([drawn, rng.choice(undrawn, count - by_value, replace=False)])).astype(np.intp)


@dataclass(kw_only=True, eq=False, repr=False)
class PowerOfChoice(Scheduler):
    """Polls d available devices, and schedules the H on whose samples the current global model loses most.

    A candidate is drawn without replacement with a probability in proportion to its samples, p_n = D_n / D. The
    candidates' forward pass is billed.

    Source: Y. J. Cho, J. Wang, G. Joshi: "Client selection in federated learning: convergence analysis and
    power-of-choice selection strategies", 2020 (arXiv:2010.01243); "Towards understanding biased client selection in
    federated learning", AISTATS 2022.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        candidates: d; None: 2 H. Of d ≤ H candidates nobody is passed over, so nobody is polled, and H devices are
            drawn by their samples.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"poll"})
    looks_back: ClassVar[bool] = False

    candidates: int | None = option(None, whole, 1)

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        available, rng = np.flatnonzero(context.available), context.rng
        most = max(self.candidates or 2 * self.num_scheduled, self.num_scheduled)
        drawn = np.sort(weighted_draw(context.fleet.samples[available], available, most, rng))
        if len(drawn) <= self.num_scheduled:
            return drawn
        return np.sort(highest(context.poll_loss(drawn), drawn, self.num_scheduled, rng))
