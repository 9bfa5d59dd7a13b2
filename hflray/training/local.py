"""SGD on a device's data (equation 1 of the paper), and the host that trains many devices with one model. No Ray.

A *local iteration* is one pass of mini-batches over the device's data (docs/design.md, D2). One module is resident
per host, and parameters are passed as flat vectors. The order of mini-batches is a function of round, edge iteration
and device, so a device's training gives the same bits on every host and at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.errors import HflrayError
from hflray.losses import Sums, find_loss, shard_sums
from hflray.models import build, is_papers, num_statistics, torch_seed
from hflray.problem import Problem
from hflray.seeding import stream
from hflray.training.aggregate import FloatVector, SumVector, weighted
from hflray.training.batched import BatchedTrainer
from hflray.training.kernels import Kernel, KernelName, Precision, build_kernel
from hflray.training.machine import quiet_heap
from hflray.training.steps import batches_of, error_position, torch_threads

Outputs = list[NDArray[np.float32]]  # a network's outputs for shards of the test set, (…, num_outputs) each
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


@dataclass(frozen=True, eq=False)
class DeviceData:
    """The samples of all devices, held once per node.

    Attributes:
        x: inputs of the training set, (n, …). uint8 images (n, C, H, W) are normalised on the fly, float32 is used as
            it is, and other integers are tokens.
        y: targets, (n,): int64, or float32 for a regression.
        index: the sample indices of all devices, concatenated.
        offsets: (N + 1,); device d holds ``index[offsets[d]:offsets[d + 1]]``.
        x_test, y_test: the test set; it is empty if nothing is evaluated.
        channel_mean, channel_std: statistics of the training images scaled to [0, 1], (C,).
    """

    x: NDArray[Any]
    y: NDArray[np.int64] | NDArray[np.float32]
    index: NDArray[np.int64]
    offsets: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64] | NDArray[np.float32]
    channel_mean: NDArray[np.float32]
    channel_std: NDArray[np.float32]

    def samples_of(self, device: int) -> NDArray[np.int64]:
        """Return the indices of a device's samples."""
        return self.index[self.offsets[device] : self.offsets[device + 1]]


@dataclass(frozen=True)
class EdgeTask:
    """One host's share of one edge iteration.

    Attributes:
        round, edge_iteration: the position in the training; both select the order of mini-batches.
        fraction_bits: binary places of the fixed-point sums, see `hflray.training.aggregate`.
        devices: for each edge, in the order of the edge models, the devices that this host trains for it.
    """

    round: int
    edge_iteration: int
    fraction_bits: int
    devices: tuple[tuple[int, ...], ...]


class DeviceHost:
    """Trains any of the devices and adds up their weighted models per edge."""

    def __init__(self, job: LocalJob, data: DeviceData) -> None:
        self._job, self._data = job, data
        quiet_heap()
        module, rate = build(job.problem, job.seed), job.learning_rate
        self._num_statistics, self._own_draws = num_statistics(module), not is_papers(job.problem)
        self._loss = find_loss(job.problem.loss)
        # This is (x / 255 - mean) / std as one multiplication and one addition.
        std = np.asarray(data.channel_std, dtype=np.float64).reshape(1, -1, 1, 1)
        mean = np.asarray(data.channel_mean, dtype=np.float64).reshape(1, -1, 1, 1)
        self._scale = torch.from_numpy((1 / (255 * std)).astype(np.float32))
        self._shift = torch.from_numpy((-mean / std).astype(np.float32))
        # Exactly one of these two is set, and it also evaluates.
        self._kernel: Kernel | None = None
        self._batched: BatchedTrainer | None = None
        if job.kernel == "batched":
            self._batched = BatchedTrainer(module, self._loss, rate, job.device, job.precision, job.cuda_graph)
            self._batched.hold(data.x, data.y, self._scale, self._shift)
        else:
            self._kernel = build_kernel(job.kernel, module, job.problem, rate, job.batch_size, job.precision)

    def train(self, task: EdgeTask, *edge_models: FloatVector) -> tuple[SumVector, ...]:
        """Train `task.devices[k]` from ``edge_models[k]`` for each k; return each edge's partial sum, (P,) int64.

        Raises:
            DivergedError: a device's weights are not finite. The message names round, edge iteration and device.
        """
        position = task.round, task.edge_iteration
        starts = [(model, d) for model, devices in zip(edge_models, task.devices, strict=True) for d in devices]
        with torch_threads(self._job.threads):
            trained = self._train_all(starts, *position)
            sums = []
            for model, devices in zip(edge_models, task.devices, strict=True):
                total = np.zeros(len(model), dtype=np.int64)
                for device in devices:
                    vector = next(trained)
                    with error_position(*position, device):
                        samples = len(self._data.samples_of(device))
                        total += weighted(vector, samples, task.fraction_bits, self._num_statistics)
                sums.append(total)
        return tuple(sums)

    def train_each(self, vector: FloatVector, devices: Sequence[int]) -> NDArray[np.float32]:
        """Train `vector` on each device separately (Algorithm 2); return the models, (len(devices), P)."""
        models = np.empty((len(devices), len(vector)), dtype=np.float32)
        with torch_threads(self._job.threads):
            for row, trained in enumerate(self._train_all([(vector, device) for device in devices], 0, 0)):
                models[row] = trained
        return models

    def _train_all(
        self, starts: Sequence[tuple[FloatVector, int]], round_index: int, edge_iteration: int
    ) -> Iterator[FloatVector]:
        """Yield the trained model of each (model, device). The batched kernel trains them all at once."""
        if self._batched is None:
            for vector, device in starts:
                with error_position(round_index, edge_iteration, device):
                    yield self._fit(vector, device, round_index, edge_iteration)
            return
        batches = []
        for _, device in starts:
            with error_position(round_index, edge_iteration, device):
                index = self._index(device)
                batches.append([index[batch] for batch in self._order(device, round_index, edge_iteration)])
        with error_position(round_index, edge_iteration, *(device for _, device in starts)):
            yield from self._batched.fit([vector for vector, _ in starts], batches)

    def losses(self, devices: Sequence[Sequence[int]], *models: FloatVector) -> NDArray[np.float64]:
        """Return the losses of models on the devices' own samples, (number of devices, 2).

        A row holds the mean loss of a sample and Oort's utility |B|·√(Σ loss² / |B|) of the |B| samples.
        ``devices[k]`` receive ``models[k]``.
        """
        scorer = self._batched or self._kernel
        assert scorer is not None
        rows = []
        with torch.no_grad(), torch_threads(self._job.threads):
            for model, group in zip(models, devices, strict=True):
                scorer.load(model)
                for device in group:
                    x, y = self.samples(device)
                    parts = [slice(i, i + EVALUATION_BATCH) for i in range(0, len(y), EVALUATION_BATCH)]
                    each = [self._loss(scorer.logits(x[p]), y[p], reduction="none") for p in parts]
                    loss = torch.cat(each).double().numpy()
                    rows.append((loss.mean(), len(loss) * np.sqrt((loss**2).mean())))
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    def evaluate(self, vector: FloatVector, shards: Sequence[int], outputs: Outputs | None = None) -> list[Sums]:
        """Evaluate on shards of the test set; return the sums of each shard, see `hflray.losses.shard_sums`.

        Args:
            vector: the model, (P,).
            shards: the numbers of the shards; shard k consists of the k-th `EVALUATION_BATCH` test samples.
            outputs: receives the network's outputs for each shard, (…, num_outputs); None: they are not kept.
        """
        scorer = self._batched or self._kernel
        assert scorer is not None
        scorer.load(vector)
        results = []
        with torch.no_grad(), torch_threads(self._job.threads):
            for shard in shards:
                part = slice(shard * EVALUATION_BATCH, (shard + 1) * EVALUATION_BATCH)
                targets = torch.from_numpy(np.array(self._data.y_test[part]))
                scores = scorer.logits(self._normalise(self._data.x_test[part]))
                results.append(shard_sums(self._job.problem.kind, scores, targets, self._loss))
                if outputs is not None:
                    outputs.append(scores.numpy())
        return results

    def _normalise(self, inputs: NDArray[Any]) -> torch.Tensor:
        # Arrays from Ray's object store are read-only and must be copied; inputs picked by index are copies already.
        tensor = torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())
        if tensor.dtype == torch.uint8:
            return tensor.float().mul_(self._scale).add_(self._shift)
        return tensor if tensor.is_floating_point() else tensor.long()

    def _fit(self, vector: FloatVector, device: int, round_index: int, edge_iteration: int) -> FloatVector:
        """Return the device's model after L local iterations from `vector` (equation 1)."""
        kernel = self._kernel
        assert kernel is not None
        kernel.load(vector)
        kernel.hold(*self.samples(device))
        with self._drawing_alone(device, round_index, edge_iteration):
            for batch in self._order(device, round_index, edge_iteration):
                kernel.step(batch)
        return kernel.vector()

    @contextmanager
    def _drawing_alone(self, device: int, round_index: int, edge_iteration: int) -> Iterator[None]:
        """Let random layers such as dropout draw from the device's own stream, whichever host trains the device."""
        if not self._own_draws:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            seed = self._job.seed, f"{self._job.stream} of layers"
            torch.manual_seed(torch_seed(*seed, round_index, edge_iteration, device))
            yield

    def samples(self, device: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a device's normalised inputs and its targets."""
        index = self._index(device)
        return self._normalise(self._data.x[index]), torch.from_numpy(self._data.y[index])

    def _index(self, device: int) -> NDArray[np.int64]:
        """Return the indices of a device's samples after a check of its labels.

        A GPU would not name the device with an invalid label, and the failed assertion would make the GPU unusable
        for the process.
        """
        index, classes = self._data.samples_of(device), self._job.problem.num_outputs
        if not len(index):
            raise HflrayError("the device holds no samples; schedule devices that have data")
        labels = self._data.y[index]
        if self._job.problem.kind != "regression" and (labels.min() < 0 or labels.max() >= classes):
            raise HflrayError(
                f"the device's labels go from {labels.min()} to {labels.max()}; accepted: 0 to {classes - 1}; correct "
                "the data set"
            )
        return index

    def _order(self, device: int, round_index: int, edge_iteration: int) -> list[NDArray[np.int64]]:
        """Return the sample positions of every gradient step of a device."""
        job = self._job
        if not job.local_iterations:
            return []
        rng = stream(job.seed, job.stream, round_index, edge_iteration, device)
        return list(batches_of(len(self._data.samples_of(device)), job, rng))
