"""QSGD: numbers are rounded at random to a few levels (Alistarh et al., "QSGD: Communication-efficient SGD via gradient
quantization and encoding", 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hflray.compression.base import Compressor, FloatVector, tensors
from hflray.config.options import whole
from hflray.support.arrays import squared_norm

NORM_BITS = 32


class QSGD(Compressor):
    """Each tensor is sent as its L2 norm and a level from −s to s for each number. What arrives is right in the mean.

    A number takes ⌈log₂(2s + 1)⌉ bits, with no entropy coding, and a tensor 32 bits more.

    Args:
        levels: s, from 1 to 32,767. The default of 7 takes 4 bits a number.

    Raises:
        ConfigError: s is another number.
    """

    def __init__(self, levels: int = 7) -> None:
        self.levels = whole("option levels of qsgd", levels, 1, 2**15 - 1)

    def bits(self, sizes: Sequence[int]) -> float:
        """Return ⌈log₂(2s + 1)⌉·P + 32 for each tensor."""
        return float(math.ceil(math.log2(2 * self.levels + 1)) * sum(sizes) + NORM_BITS * len(sizes))

    def send(
        self, update: FloatVector, sizes: Sequence[int], rng: np.random.Generator, residual: FloatVector | None
    ) -> tuple[FloatVector, FloatVector | None]:
        """Return ‖u‖·sign(u)·l/s, where l is s·|u|/‖u‖, rounded up with the probability of its fraction."""
        arrived = np.zeros_like(update)
        draws = rng.random(len(update))
        for part in tensors(sizes):
            norm = math.sqrt(squared_norm(update[part]))
            if norm > 0:
                exact = self.levels * np.abs(update[part], dtype=np.float64) / norm
                level = np.minimum(np.floor(exact + draws[part]), self.levels)
                arrived[part] = norm / self.levels * np.sign(update[part]) * level
        return arrived, residual
