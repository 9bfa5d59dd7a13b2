"""Random streams: each stream of an experiment is a function of the root seed, a stream name and indices.

Nothing in hflray draws from global random state. A device's mini-batch order, for example, is
``stream(seed, "batches", round, edge_iteration, device)``. The numbers therefore do not depend on the actor that trains
the device, on the order of training or on restarts, and checkpoints need no generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def seed_sequence(seed: int, name: str, *indices: int) -> np.random.SeedSequence:
    """Return the seed sequence of a stream. `indices` are non-negative integers (round, edge iteration, device…)."""
    # Use a stable hash, because Python's own hash() changes from process to process.
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.SeedSequence(entropy=seed, spawn_key=(key, *indices))


def stream(seed: int, name: str, *indices: int) -> np.random.Generator:
    """Return a fresh generator for the stream `name` at `indices`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, name, *indices)))


def random_bits(key: int, *indices: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 random bits for each combination of the indices, which broadcast against each other.

    The bits are a counter for each index, mixed by SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
    Generators", 2014). The first index is mixed alone first, so that the numbers of neighbouring ones are not shifted
    copies.

    Args:
        key: the key of the stream, of which 64 bits count.
        indices: integers of 0 and more.
    """
    # Use at least one dimension, because NumPy warns of overflows of scalars, and the overflow is intended.
    state = np.array([key & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    for index in indices:
        counter = np.array(index, dtype=np.uint64, ndmin=1)
        counter *= _GOLDEN
        state = _mix(counter + (state + _GOLDEN))
    shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
    return np.asarray(state.reshape(shape), dtype=np.uint64)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's mix of an array, which is overwritten."""
    shifted = z >> _SHIFTS[0]
    z ^= shifted
    z *= _FACTORS[0]
    np.right_shift(z, _SHIFTS[1], out=shifted)
    z ^= shifted
    z *= _FACTORS[1]
    np.right_shift(z, _SHIFTS[2], out=shifted)
    z ^= shifted
    return z
