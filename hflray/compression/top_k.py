"""Top-k: only the numbers that have changed most are sent (Stich et al., "Sparsified SGD with memory", 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hflray.compression.base import Compressor, FloatVector
from hflray.config.options import positive

VALUE_BITS = 32


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
        return float(self._count(size) * (VALUE_BITS + math.ceil(math.log2(size))))

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
