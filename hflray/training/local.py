"""SGD on a device's data (equation 1 of the paper), and the host that trains many devices with one model. No Ray.

A *local iteration* is one pass of mini-batches over the device's data (docs/design.md, D2). One module is resident
per host, and parameters are passed as flat vectors. The order of mini-batches is a function of round, edge iteration
and device, so a device's training gives the same bits on every host and at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.aggregation import FloatVector, Sent, SumVector
from hflray.aggregation.fixed_point import weighted
from hflray.arrays import FloatArray
from hflray.errors import HflrayError
from hflray.losses import Sums, find_loss, shard_sums
from hflray.models import build, is_papers, torch_seed
from hflray.models import trained as trained_tensors
from hflray.problem import Problem
from hflray.seeding import stream
from hflray.training.algorithm1 import RESIDUAL, EdgeTask, Lifted, Share, Version, add_up, delivered
from hflray.training.batched import BatchedTrainer
from hflray.training.differences import Differences, Resident
from hflray.training.kernels import Kernel, KernelName, ModuleKernel, Precision, build_kernel
from hflray.training.machine import quiet_heap
from hflray.training.method import Method
from hflray.training.rules.base import Memory, Received
from hflray.training.rules.own import OwnTraining
from hflray.training.steps import batches_of, error_position, steps_of, torch_threads

Outputs = list[NDArray[np.float32]]  # a network's outputs for shards of the test set, (…, num_outputs) each
HELD_PARTS = 8  # so many are held before they are combined, because memory must not grow with the devices of an edge
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


class Shards(NamedTuple):
    """The evaluation of some shards of the test set.

    Attributes:
        sums: the sums of each shard, see `hflray.losses.shard_sums`.
        outputs: the network's outputs for each shard, (…, num_outputs); empty unless they are kept.
    """

    sums: list[Sums]
    outputs: Outputs


class Evaluation(NamedTuple):
    """The evaluation of a model on the test set.

    Attributes:
        score: the main metric of the kind of data (`hflray.losses.summarise`).
        loss: the mean loss.
        outputs: the network's outputs in the order of the test set, in parts (…, num_outputs); empty unless kept.
    """

    score: float
    loss: float
    outputs: Outputs


class Start(NamedTuple):
    """What a device begins an edge iteration with.

    Attributes:
        device: the device.
        model: what it received, (P,).
        received: the same for the local rule; None where steps are plain.
        memory: what it keeps; None where steps are plain.
    """

    device: int
    model: FloatVector
    received: Received | None = None
    memory: Memory | None = None


class DeviceHost:
    """Trains any of the devices, and combines what they send for each edge."""

    def __init__(self, job: LocalJob, data: DeviceData) -> None:
        self._job, self._data = job, data
        quiet_heap()
        module, rate = build(job.problem, job.seed), job.learning_rate
        self._own_draws = not is_papers(job.problem)
        self._parts, self._sizes = job.method.parts(), tuple(tensor.numel() for tensor in trained_tensors(module))
        self._aggregator = self._parts.edge
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

    def train(
        self, task: EdgeTask, versions: Sequence[Version], memories: Mapping[int, Memory] | None = None
    ) -> tuple[list[Lifted], dict[int, Memory]]:
        """Train the devices of ``task.shares[k]`` from ``versions[k]`` for each k.

        Args:
            task: what is trained.
            versions: what the devices of each edge receive.
            memories: what the devices of this host keep, by device.

        Returns:
            What the devices of each edge hand up, and what all devices of this host keep now.

        Raises:
            DivergedError: a device's weights are not finite. The message names round, edge iteration and device.
        """
        position = task.round, task.edge_iteration
        kept = dict(memories or {})
        rows = [(share, version, k) for share, version in zip(task.shares, versions, strict=True)
                for k in range(len(share.devices))]  # fmt: skip
        starts = [self._start(share, version, share.devices[k], position, kept) for share, version, k in rows]
        with torch_threads(self._job.threads):
            trained = self._train_all(starts, *position)
            by_edge: dict[int, list[Lifted]] = {share.frame.index: [] for share in task.shares}
            for (share, version, k), start in zip(rows, starts, strict=True):
                vector, parts = next(trained), by_edge[share.frame.index]
                with error_position(*position, start.device):
                    parts.append(self._hand_up(task, share, version, k, start, vector, kept))
                if len(parts) == HELD_PARTS:
                    parts[:] = [add_up(self._aggregator, parts)]
        return [add_up(self._aggregator, parts) for parts in by_edge.values()], kept

    def _start(
        self, share: Share, version: Version, device: int, position: tuple[int, int], kept: dict[int, Memory]
    ) -> Start:
        """Return what a device begins with, and let the rule see what it has received."""
        if self._parts.plain_steps and not self._parts.remembers and not self._parts.rule.extra:
            return Start(device, version.model)
        received = Received(version.model[: sum(self._sizes)], version.vectors, position[1], share.mean_rate)
        own = {name: value for name, value in kept.get(device, {}).items() if name != RESIDUAL}
        memory = self._parts.rule.begin(received, own)
        return Start(device, version.model, received, memory)

    def _hand_up(
        self,
        task: EdgeTask,
        share: Share,
        version: Version,
        row: int,
        start: Start,
        vector: FloatVector,
        kept: dict[int, Memory],
    ) -> Lifted:
        """Return what a device hands up after its training; update what it keeps."""
        parts, job, device, position = self._parts, self._job, start.device, (task.round, task.edge_iteration)
        residual = kept.get(device, {}).get(RESIDUAL)
        extra: dict[str, SumVector] = {}
        if start.received is not None and start.memory is not None:
            rate, end = float(self._rates(device, *position).sum()), sum(self._sizes)
            memory, vectors = parts.rule.finish(start.received, vector[:end], rate, start.memory)
            whole = {name: np.asarray(each, dtype=np.float32) for name, each in vectors.items()}
            extra = {name: weighted(each, 1, task.extra_bits) for name, each in whole.items()}
            if parts.remembers:
                kept[device] = memory
        scale = share.scales[row] if share.scales else 1.0
        if parts.compresses or scale != 1.0:
            rng = stream(job.seed, "compression", *position, device)
            vector, residual = delivered(
                vector, version.model, scale, parts.device_compressor, self._sizes, rng, residual
            )
        if residual is not None:
            kept[device] = {**kept.get(device, {}), RESIDUAL: residual}
        weight = 1 if job.method.uniform else len(self._data.samples_of(device))
        return Lifted(self._aggregator.lift(Sent(vector, version.model, weight, device), share.frame), extra)

    def train_each(self, vector: FloatVector, devices: Sequence[int]) -> NDArray[np.float32]:
        """Train `vector` on each device separately (Algorithm 2); return the models, (len(devices), P)."""
        models = np.empty((len(devices), len(vector)), dtype=np.float32)
        with torch_threads(self._job.threads):
            for row, trained in enumerate(self._train_all([Start(device, vector) for device in devices], 0, 0)):
                models[row] = trained
        return models

    def _train_all(self, starts: Sequence[Start], round_index: int, edge_iteration: int) -> Iterator[FloatVector]:
        """Yield the trained model of each device. The batched kernel trains them all at once."""
        if self._batched is None:
            for start in starts:
                with error_position(round_index, edge_iteration, start.device):
                    yield self._fit(start, round_index, edge_iteration)
            return
        batches = []
        for start in starts:
            with error_position(round_index, edge_iteration, start.device):
                index = self._index(start.device)
                batches.append([index[batch] for batch in self._order(start.device, round_index, edge_iteration)])

        def stepping(part: slice, resident: Resident) -> Differences:
            return self._differences(resident, starts[part], round_index, edge_iteration)

        with error_position(round_index, edge_iteration, *(start.device for start in starts)):
            plain = self._parts.plain_steps or not starts or starts[0].received is None
            yield from self._batched.fit([start.model for start in starts], batches, None if plain else stepping)

    def _differences(
        self, resident: Resident, starts: Sequence[Start], round_index: int, edge_iteration: int
    ) -> Differences:
        """Return what makes the steps of some devices, whose models are loaded."""
        each = [self._rates(start.device, round_index, edge_iteration) for start in starts]
        rates = np.zeros((len(each), max(map(len, each))))
        for row, values in zip(rates, each, strict=True):
            row[: len(values)] = values
        received = [start.received for start in starts if start.received is not None]
        memories = [start.memory for start in starts if start.memory is not None]
        return Differences(self._job.method, self._job.learning_rate, resident, received, memories, rates)

    def _rates(self, device: int, round_index: int, edge_iteration: int) -> FloatArray:
        """Return the learning rate of each step of a device in an edge iteration, (K,)."""
        job = self._job
        steps = steps_of(len(self._data.samples_of(device)), job)
        return job.method.decay.rates(job.learning_rate, (round_index, edge_iteration), job.edge_iterations, steps)

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

    def evaluate(self, vector: FloatVector, shards: Sequence[int], keeps_outputs: bool = False) -> Shards:
        """Evaluate on shards of the test set.

        Args:
            vector: the model, (P,).
            shards: the numbers of the shards; shard k consists of the k-th `EVALUATION_BATCH` test samples.
            keeps_outputs: whether the network's outputs are returned.
        """
        scorer = self._batched or self._kernel
        assert scorer is not None
        scorer.load(vector)
        result = Shards([], [])
        with torch.no_grad(), torch_threads(self._job.threads):
            for shard in shards:
                part = slice(shard * EVALUATION_BATCH, (shard + 1) * EVALUATION_BATCH)
                targets = torch.from_numpy(np.array(self._data.y_test[part]))
                scores = scorer.logits(self._normalise(self._data.x_test[part]))
                result.sums.append(shard_sums(self._job.problem.kind, scores, targets, self._loss))
                if keeps_outputs:
                    result.outputs.append(scores.numpy())
        return result

    def _normalise(self, inputs: NDArray[Any]) -> torch.Tensor:
        # Arrays from Ray's object store are read-only and must be copied; inputs picked by index are copies already.
        tensor = torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())
        if tensor.dtype == torch.uint8:
            return tensor.float().mul_(self._scale).add_(self._shift)
        return tensor if tensor.is_floating_point() else tensor.long()

    def _fit(self, start: Start, round_index: int, edge_iteration: int) -> FloatVector:
        """Return the device's model after L local iterations from what it received (equation 1)."""
        kernel, device = self._kernel, start.device
        assert kernel is not None
        kernel.load(start.model)
        kernel.hold(*self.samples(device))
        order = self._order(device, round_index, edge_iteration)
        with self._drawing_alone(device, round_index, edge_iteration):
            if isinstance(self._parts.rule, OwnTraining):
                self._train_by_the_user(kernel, device, order, round_index, edge_iteration)
            elif self._parts.plain_steps or start.received is None or not order:
                for batch in order:
                    kernel.step(batch)
            else:
                steps = self._differences(kernel, [start], round_index, edge_iteration)
                for index, batch in enumerate(order):
                    steps.step(partial(kernel.step, batch), index)
        return kernel.vector()

    def _train_by_the_user(
        self, kernel: Kernel, device: int, order: list[NDArray[np.int64]], round_index: int, edge_iteration: int
    ) -> None:
        rule = self._parts.rule
        assert isinstance(rule, OwnTraining)
        assert isinstance(kernel, ModuleKernel)  # `Backend` has refused the others
        rates = self._rates(device, round_index, edge_iteration)
        rng = stream(self._job.seed, "own training", round_index, edge_iteration, device)
        kernel.train_by(rule.train, order, float(rates[0]) if len(rates) else 0.0, rng, **rule.options)

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
