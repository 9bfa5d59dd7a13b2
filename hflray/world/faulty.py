"""Faulty devices: a share of the devices sends something else in place of what it has learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hflray.aggregation import FloatVector
from hflray.support.arrays import BoolArray, squared_norm
from hflray.world.draws import Draws


@dataclass(frozen=True)
class Faulty:
    """What faulty devices send. The edge does not know them, and they compute and upload like all others.

    Attributes:
        share: their share of all devices, above 0 and up to 1; their number is rounded.
        kind: ``noise``: an update in a random direction; ``sign_flip``: the update backwards; ``zero``: no update.
        strength: the length of such an update in multiples of the true one; ``zero`` has none.
    """

    share: float
    kind: Literal["noise", "sign_flip", "zero"]
    strength: float

    def devices(self, seed: int, num_devices: int) -> BoolArray:
        """Return whether each device is faulty, (N,). They are drawn once, so that a larger share has all of these."""
        order = np.argsort(Draws(seed, "faulty").uniform(np.arange(num_devices)))
        chosen = np.zeros(num_devices, dtype=bool)
        chosen[order[: round(self.share * num_devices)]] = True
        return chosen

    def sent(self, model: FloatVector, received: FloatVector, size: int, rng: np.random.Generator) -> FloatVector:
        """Return what a faulty device has in place of its model, (P,). Its statistics are the true ones.

        Args:
            model: what it has learned, (P,).
            received: what it started from, (P,).
            size: how many of the numbers are trained.
            rng: draws of the noise.
        """
        if self.kind == "zero":
            return np.concatenate([received[:size], model[size:]])
        start = received[:size].astype(np.float64)
        update = model[:size] - start
        if self.kind == "noise":
            direction = rng.standard_normal(len(update))
            update = -direction * math.sqrt(squared_norm(update) / squared_norm(direction))
        return np.concatenate([start - self.strength * update, model[size:]]).astype(np.float32)
