"""No compression: an update travels whole, with 32 bits for each number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hflray.compression.base import Compressor, FloatVector

BITS_PER_NUMBER = 32


class Whole(Compressor):
    """The default: every number is sent as it is."""

    def bits(self, sizes: Sequence[int]) -> float:
        """Return 32 bits for each number."""
        return float(BITS_PER_NUMBER * sum(sizes))

    def send(
        self, update: FloatVector, sizes: Sequence[int], rng: np.random.Generator, residual: FloatVector | None
    ) -> tuple[FloatVector, FloatVector | None]:
        """Return the update itself."""
        return update, residual
