"""The gradient steps of a device: their batches, their threads, and the place that an error in them is named by.

The order of mini-batches is a function of round, edge iteration and device, so that a device's training gives the same
bits on every host and at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.errors import DivergedError, HflrayError
from hflray.support.references import reason

if TYPE_CHECKING:
    from hflray.training.job import LocalJob


def batches_of(samples: int, job: LocalJob, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the sample positions of every gradient step of L local iterations."""
    if job.local_iteration == "full_batch":
        for _ in range(job.local_iterations):
            yield np.arange(samples)
    elif job.local_iteration == "step":
        order = rng.permutation(samples)
        size = min(job.batch_size, samples)
        for step in range(job.local_iterations):
            yield np.take(order, np.arange(step * size, (step + 1) * size), mode="wrap")
    else:
        for _ in range(job.local_iterations):
            order = rng.permutation(samples)
            for start in range(0, samples, job.batch_size):
                yield order[start : start + job.batch_size]


def steps_of(samples: int, job: LocalJob) -> int:
    """Return the number of gradient steps of L local iterations, K."""
    each = math.ceil(samples / job.batch_size) if job.local_iteration == "epoch" else 1
    return job.local_iterations * each


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the block with `count` torch threads. Their number changes the order of sums, hence the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def error_position(round_index: int, edge_iteration: int, *devices: int) -> Iterator[None]:
    """Prefix the message of any error in the block with round, edge iteration and device."""
    device_text = f"device {devices[0]}" if len(devices) == 1 else f"devices {', '.join(map(str, devices))}"
    position = f"round {round_index}, edge iteration {edge_iteration}, {device_text}"
    try:
        yield
    except DivergedError as error:
        raise DivergedError(f"{position}: {error}") from error
    except HflrayError as error:
        raise HflrayError(f"{position}: {error}") from error
    except Exception as error:  # a model's forward may raise any type
        raise HflrayError(f"{position}: {reason(error)}") from error
