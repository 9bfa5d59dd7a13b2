"""How the devices of an experiment train: the job, the samples, the batches of each step, and an evaluation's result.

The order of mini-batches is a function of round, edge iteration and device, so that a device's training gives the same
bits on every host and at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.config import TrainingConfig
from hflray.data.resampled import ResampledParts
from hflray.errors import DivergedError, HflrayError
from hflray.losses import Sums
from hflray.models.problem import Problem
from hflray.support.references import reason
from hflray.training.kernels import KernelName, Precision
from hflray.training.method import Method

Part = Literal["test", "validation"]  # what is evaluated
Outputs = list[NDArray[np.float32]]  # a network's outputs for shards of what is evaluated, (…, num_outputs) each
EVALUATION_BATCH = 1000  # fixed: the shards of an evaluation must not depend on the number of actors


@dataclass(frozen=True)
class LocalJob:
    """How devices train. All hosts of an experiment share one job, and it fixes the resulting bits for given data.

    Attributes:
        problem: what is learned, by which network.
        seed: the root seed.
        stream: the name of the random stream that orders the mini-batches.
        local_iterations: L.
        batch_size: samples of a mini-batch.
        learning_rate: β.
        local_iteration: what a local iteration is (docs/design.md, D2).
        kernel, precision, threads: how a step is computed; they decide the low bits.
        device: where a step is computed.
        cuda_graph: see `BatchedTrainer`; it does not change the bits.
        method: what happens beside plain steps, and how models are sent and combined.
        edge_iterations: Q, for a learning rate that falls.
    """

    problem: Problem
    seed: int
    stream: str = "batches"
    local_iterations: int = 5
    batch_size: int = 64
    learning_rate: float = 0.01
    local_iteration: Literal["epoch", "full_batch", "step"] = "epoch"
    kernel: KernelName = "channels_last"
    precision: Precision = "float32"
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    cuda_graph: bool | None = None
    method: Method = field(default_factory=Method)
    edge_iterations: int = 1


@dataclass(frozen=True, eq=False)
class DeviceData:
    """The samples of all devices, held once per node.

    Attributes:
        x: inputs of the training set, (n, …). uint8 images (n, C, H, W) are normalised on the fly, float32 is used as
            it is, and other integers are tokens.
        y: targets, (n,): int64, or float32 for a regression.
        index: the sample indices of all devices, concatenated; empty if they are `drawn`.
        offsets: (N + 1,); device d holds ``index[offsets[d]:offsets[d + 1]]``, or as many drawn samples.
        x_test, y_test: the test set; it is empty if nothing is evaluated.
        channel_mean, channel_std: statistics of the training images scaled to [0, 1], (C,).
        drawn: draws a device's sample indices when they are looked up; None: they are in `index`.
        validation: the sample indices of the validation part, which no device has.
    """

    x: NDArray[Any]
    y: NDArray[np.int64] | NDArray[np.float32]
    index: NDArray[np.int64]
    offsets: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64] | NDArray[np.float32]
    channel_mean: NDArray[np.float32]
    channel_std: NDArray[np.float32]
    drawn: ResampledParts | None = None
    validation: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def evaluated(self, part: Part) -> int:
        """Return the number of samples of the test set or of the validation part."""
        return len(self.y_test if part == "test" else self.validation)

    def shard(self, part: Part, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return inputs and targets of a shard, of `EVALUATION_BATCH` samples of the part; the last one is smaller."""
        rows = slice(number * EVALUATION_BATCH, (number + 1) * EVALUATION_BATCH)
        if part == "test":
            return self.x_test[rows], self.y_test[rows]
        return self.x[self.validation[rows]], self.y[self.validation[rows]]

    def size_of(self, device: int) -> int:
        """Return the number of a device's samples, D_n."""
        return int(self.offsets[device + 1] - self.offsets[device])

    def samples_of(self, device: int) -> NDArray[np.int64]:
        """Return the indices of a device's samples."""
        if self.drawn is not None:
            return self.drawn[device]
        return self.index[self.offsets[device] : self.offsets[device + 1]]


class Shards(NamedTuple):
    """The evaluation of some shards of the test set or the validation part.

    Attributes:
        sums: the sums of each shard, see `hflray.losses.shard_sums`.
        outputs: the network's outputs for each shard, (…, num_outputs); empty unless they are kept.
    """

    sums: list[Sums]
    outputs: Outputs


class ModelEvaluation(NamedTuple):
    """The evaluation of a model on the test set or the validation part.

    Attributes:
        score: the main metric of the kind of data (`hflray.losses.summarise`).
        loss: the mean loss.
        outputs: the network's outputs in the order of the samples, in parts (…, num_outputs); empty unless kept.
    """

    score: float
    loss: float
    outputs: Outputs


class Samples:
    """The samples of all devices as a host trains with them: checked and normalised.

    Args:
        problem: what is learned.
        data: the samples.

    Attributes:
        scale, shift: normalise images to ``x · scale + shift``.
    """

    def __init__(self, problem: Problem, data: DeviceData) -> None:
        self._problem, self._data = problem, data
        # This is (x / 255 - mean) / std as one multiplication and one addition.
        std = np.asarray(data.channel_std, dtype=np.float64).reshape(1, -1, 1, 1)
        mean = np.asarray(data.channel_mean, dtype=np.float64).reshape(1, -1, 1, 1)
        self.scale = torch.from_numpy((1 / (255 * std)).astype(np.float32))
        self.shift = torch.from_numpy((-mean / std).astype(np.float32))

    def normalised(self, inputs: NDArray[Any]) -> torch.Tensor:
        """Return images given as bytes with the training set's mean and deviation, and any other inputs as they are."""
        # Arrays from Ray's object store are read-only and must be copied; inputs picked by index are copies already.
        tensor = torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())
        if tensor.dtype == torch.uint8:
            return tensor.float().mul_(self.scale).add_(self.shift)
        return tensor if tensor.is_floating_point() else tensor.long()

    def of(self, device: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a device's normalised inputs and its targets."""
        index = self.index(device)
        return self.normalised(self._data.x[index]), torch.from_numpy(self._data.y[index])

    def index(self, device: int) -> NDArray[np.int64]:
        """Return the indices of a device's samples after a check of its labels.

        A GPU would not name the device with an invalid label, and the failed assertion would make the GPU unusable
        for the process.
        """
        index, classes = self._data.samples_of(device), self._problem.num_outputs
        if not len(index):
            raise HflrayError("the device holds no samples; schedule devices that have data")
        labels = self._data.y[index]
        if self._problem.kind != "regression" and (labels.min() < 0 or labels.max() >= classes):
            raise HflrayError(
                f"the device's labels go from {labels.min()} to {labels.max()}; accepted: 0 to {classes - 1}; correct "
                "the data set"
            )
        return index


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
    return job.local_iterations * (math.ceil(samples / job.batch_size) if job.local_iteration == "epoch" else 1)


def sample_passes(settings: LocalJob | TrainingConfig, samples: NDArray[Any]) -> int:
    """Return how many samples pass through the local training of devices with so many samples, (n,) or (Q, n)."""
    if settings.local_iteration == "step":
        samples = np.minimum(samples, settings.batch_size)
    return int(samples.sum()) * settings.local_iterations


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
