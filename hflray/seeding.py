"""Random streams: each stream of an experiment is a function of the root seed, a stream name and indices.

Nothing in hflray draws from global random state. A device's mini-batch order, for example, is
``stream(seed, "batches", round, edge_iteration, device)``. The numbers therefore do not depend on the actor that trains
the device, on the order of training or on restarts, and checkpoints need no generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_sequence(seed: int, name: str, *indices: int) -> np.random.SeedSequence:
    """Return the seed sequence of a stream. `indices` are non-negative integers (round, edge iteration, device…)."""
    # Use a stable hash, because Python's own hash() changes from process to process.
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.SeedSequence(entropy=seed, spawn_key=(key, *indices))


def stream(seed: int, name: str, *indices: int) -> np.random.Generator:
    """Return a fresh generator for the stream `name` at `indices`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, name, *indices)))
