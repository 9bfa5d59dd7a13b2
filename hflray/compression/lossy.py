"""Compressors that lose something of an update, and send it with fewer bits.

* ``qsgd`` rounds numbers at random to a few levels: Alistarh et al., "QSGD: Communication-efficient SGD via gradient
  quantization and encoding", 2017;
* ``top_k`` sends only the numbers that have changed most: Stich et al., "Sparsified SGD with memory", 2018;
* ``sign`` sends signs with one size a tensor, and keeps the error: Karimireddy et al., "Error feedback fixes SignSGD
  and other gradient compression schemes", 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hflray.compression.base import BITS_PER_NUMBER, Compressor, FloatVector, tensors
from hflray.config.options import positive, whole
from hflray.support.arrays import squared_norm


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
        return float(math.ceil(math.log2(2 * self.levels + 1)) * sum(sizes) + BITS_PER_NUMBER * len(sizes))

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


class TopK(Compressor):
    """The k numbers of the whole vector with the largest sizes are sent; the sender keeps the rest (error feedback).

    Each takes 32 bits and ⌈log₂ P⌉ for its position. The lower position wins ties.

    Args:
        share: k/P, above 0 and at most 1; k is rounded up.

    Raises:
        ConfigError: the share is another number.
    """

    remembers: ClassVar[bool] = True

    def __init__(self, share: float = 0.01) -> None:
        self.share = positive("option share of top_k", share, 1.0)

    def _count(self, size: int) -> int:
        return min(size, math.ceil(self.share * size - 1e-9))

    def bits(self, sizes: Sequence[int]) -> float:
        """Return k·(32 + ⌈log₂ P⌉)."""
        size = sum(sizes)
        return float(self._count(size) * (BITS_PER_NUMBER + math.ceil(math.log2(size))))

    def send(
        self, update: FloatVector, sizes: Sequence[int], rng: np.random.Generator, residual: FloatVector | None
    ) -> tuple[FloatVector, FloatVector | None]:
        """Return the k largest of what is to send, and the others."""
        due = update if residual is None else update + residual
        count, size = self._count(len(due)), np.abs(due)
        limit = np.partition(size, len(size) - count)[len(size) - count]  # faster than a sort
        above, at_limit = np.flatnonzero(size > limit), np.flatnonzero(size == limit)
        chosen = np.concatenate([above, at_limit[: count - len(above)]])
        arrived = np.zeros_like(due)
        arrived[chosen] = due[chosen]
        return arrived, due - arrived


class Sign(Compressor):
    """Each tensor is sent as the mean size of its numbers and a sign for each; the sender keeps the error.

    A number takes 1 bit, and a tensor 32 bits more; 0 has the sign +. It needs no options.
    """

    remembers: ClassVar[bool] = True

    def bits(self, sizes: Sequence[int]) -> float:
        """Return P + 32 for each tensor."""
        return float(sum(sizes) + BITS_PER_NUMBER * len(sizes))

    def send(
        self, update: FloatVector, sizes: Sequence[int], rng: np.random.Generator, residual: FloatVector | None
    ) -> tuple[FloatVector, FloatVector | None]:
        """Return (‖u‖₁/P_t)·sign(u) for each tensor of what is to send, and the error."""
        due = update if residual is None else update + residual
        arrived = np.zeros_like(due)
        for part in tensors(sizes):
            scale = np.abs(due[part], dtype=np.float64).mean()
            arrived[part] = np.where(due[part] < 0, -scale, scale)
        return arrived, due - arrived
