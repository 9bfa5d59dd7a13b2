"""How a device or an edge shortens what it sends: the contract of a compressor.

What is compressed is the *update*, the difference between the trained model and the model that was received. It is
decoded where it arrives, before anything is combined. Statistics of normalisation layers and the further vectors of a
local rule travel whole. The bits of an update follow from the sizes of the network's tensors alone, so that a round's
bill is complete before anything is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

FloatVector = NDArray[np.float32]
BITS_PER_NUMBER = 32


class Compressor(ABC):
    """The base class of compressors.

    Attributes:
        remembers: whether `send` keeps a residual, which the sender adds to its next update (error feedback).

    Examples:
        A file of one's own needs one class, and is used by ``compression.device: {name: mine.py:Half}``:

        >>> import numpy as np
        >>> from hflray.compression import Compressor
        >>> class Half(Compressor):
        ...     def bits(self, sizes):
        ...         return 16.0 * sum(sizes)
        ...     def send(self, update, sizes, rng, residual):
        ...         return update.astype("float16").astype("float32"), residual
        >>> arrived, _ = Half().send(np.float32([1.0, 1e-9]), [2], np.random.default_rng(0), None)
        >>> Half().bits([2]), arrived.tolist()
        (32.0, [1.0, 0.0])
    """

    remembers: ClassVar[bool] = False

    @abstractmethod
    def bits(self, sizes: Sequence[int]) -> float:
        """Return the bits of an update whose tensors have so many numbers each."""

    @abstractmethod
    def send(
        self, update: FloatVector, sizes: Sequence[int], rng: np.random.Generator, residual: FloatVector | None
    ) -> tuple[FloatVector, FloatVector | None]:
        """Return the update as it arrives, (P,), and the next residual.

        Args:
            update: what the sender has learned, (P,), all tensors after each other.
            sizes: how many numbers each tensor has; their sum is P.
            rng: the only source of randomness.
            residual: what the sender kept, (P,); None before it has sent anything.
        """


def tensors(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield the place of each tensor in a vector, given how many numbers each has."""
    begin = 0
    for size in sizes:
        yield slice(begin, begin + size)
        begin += size


class Whole(Compressor):
    """No compression, the default: every number is sent as it is, with 32 bits."""

    def bits(self, sizes: Sequence[int]) -> float:
        """Return 32 bits for each number."""
        return float(BITS_PER_NUMBER * sum(sizes))

    def send(
        self, update: FloatVector, sizes: Sequence[int], rng: np.random.Generator, residual: FloatVector | None
    ) -> tuple[FloatVector, FloatVector | None]:
        """Return the update itself."""
        return update, residual
