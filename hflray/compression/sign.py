"""Signs with one size a tensor, and error feedback (Karimireddy et al., "Error feedback fixes SignSGD and other
gradient compression schemes", 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from hflray.compression.base import Compressor, FloatVector, tensors

SCALE_BITS = 32


class Sign(Compressor):
    """Each tensor is sent as the mean size of its numbers and a sign for each; the sender keeps the error.

    A number takes 1 bit, and a tensor 32 bits more; 0 has the sign +. It needs no options.
    """

    remembers: ClassVar[bool] = True

    def bits(self, sizes: Sequence[int]) -> float:
        """Return P + 32 for each tensor."""
        return float(sum(sizes) + SCALE_BITS * len(sizes))

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
