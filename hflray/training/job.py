"""How the devices of an experiment train, on which samples, and what an evaluation returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.data.resampled import ResampledParts
from hflray.losses import Sums
from hflray.models.problem import Problem
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


class Evaluation(NamedTuple):
    """The evaluation of a model on the test set or the validation part.

    Attributes:
        score: the main metric of the kind of data (`hflray.losses.summarise`).
        loss: the mean loss.
        outputs: the network's outputs in the order of the samples, in parts (…, num_outputs); empty unless kept.
    """

    score: float
    loss: float
    outputs: Outputs
