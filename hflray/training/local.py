"""SGD on a device's data (equation 1 of the paper), and the host that trains many devices with one model. No Ray.

A *local iteration* is one pass of mini-batches over the device's data (docs/design.md, D2). One module is resident
per host, and parameters are passed as flat vectors. The order of mini-batches is a function of round, edge iteration
and device, so a device's training gives the same bits on every host and at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.aggregation import FloatVector, Sent, SumVector
from hflray.aggregation.fixed_point import weighted
from hflray.losses import find_loss, shard_sums
from hflray.models import build, is_papers, torch_seed
from hflray.models.vector import trained as trained_tensors
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.training.batched import BatchedTrainer
from hflray.training.differences import Differences, ResidentWeights
from hflray.training.exchange import EdgeTask, Lifted, Measured, Share, Version, delivered, measured
from hflray.training.job import (
    EVALUATION_BATCH,
    DeviceData,
    LocalJob,
    Part,
    Samples,
    Shards,
    batches_of,
    error_position,
    steps_of,
    torch_threads,
)
from hflray.training.kernel_base import Kernel
from hflray.training.kernels import ModuleKernel, build_kernel
from hflray.training.machine import quiet_heap
from hflray.training.nodes import add_up
from hflray.training.rules.base import RESIDUAL, TURN, Memory, Received, recalled
from hflray.training.rules.own import OwnTraining, after_training, begun

HELD_PARTS = 8  # so many are held before they are combined, because memory must not grow with the devices of an edge
Position = tuple[int, int]  # a round, and an edge iteration in it


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
        faulty = job.method.faulty
        self._faulty = None if faulty is None else faulty.devices(job.seed, len(data.offsets) - 1)
        self._own_draws = not is_papers(job.problem)
        self._parts, self._shapes = job.method.parts(), [tensor.shape for tensor in trained_tensors(module)]
        self._sizes = tuple(shape.numel() for shape in self._shapes)
        self._aggregator, self._measures = self._parts.edge, job.method.measures
        self._loss = find_loss(job.problem.loss)
        self.samples = Samples(job.problem, data)
        self._kernel: Kernel | BatchedTrainer
        if job.kernel == "batched":
            self._kernel = BatchedTrainer(module, self._loss, rate, job.device, job.precision, job.cuda_graph)
            self._kernel.hold(data.x, data.y, self.samples.scale, self.samples.shift)
        else:
            self._kernel = build_kernel(job.kernel, module, job.problem, rate, job.precision)

    def train(self, task: EdgeTask, memories: Mapping[int, Memory] | None, *versions: Version) -> Any:
        """Train the devices of ``task.shares[k]`` from ``versions[k]`` for each k.

        Args:
            task: what is trained.
            memories: what the devices of this host keep, by device; None: nothing is kept.
            versions: what the devices of each edge receive, and then those of `Share.entered`.

        Returns:
            A `Lifted`, what its devices hand up, for each edge and, if there are `memories`, what the devices keep now;
            in a tuple, unless it is one thing alone.

        Raises:
            DivergedError: a device's weights are not finite. The message names round, edge iteration and device.
        """
        position = task.round, task.edge_iteration
        memory_of = dict(memories or {})
        rows = [(share, version, k) for share, version in zip(task.shares, versions, strict=False)
                for k in range(len(share.devices))]  # fmt: skip
        starts = [
            self._start(task, share, version, share.devices[k], memory_of, versions) for share, version, k in rows
        ]
        with torch_threads(self._job.threads):
            trained = self._train_all(starts, position)
            by_edge: dict[int, list[Lifted]] = {share.frame.index: [] for share in task.shares}
            for (share, version, k), start in zip(rows, starts, strict=True):
                vector, parts = next(trained), by_edge[share.frame.index]
                with error_position(*position, start.device):
                    parts.append(self._hand_up(task, share, version, k, start, vector, memory_of))
                if len(parts) == HELD_PARTS:
                    parts[:] = [add_up(self._aggregator, parts)]
        handed = [add_up(self._aggregator, parts) for parts in by_edge.values()]
        results = (*handed, memory_of) if memories is not None else (*handed,)
        return results[0] if len(results) == 1 else results

    def _start(
        self, task: EdgeTask, share: Share, version: Version, device: int, memory_of: dict[int, Memory],
        versions: Sequence[Version],
    ) -> Start:  # fmt: skip
        """Return what a device begins with, and let the rule see what it has received."""
        if self._parts.plain_steps and not self._parts.remembers and not self._parts.rule.extra:
            return Start(device, version.model)
        end = sum(self._sizes)
        place, rate = share.entered.get(device, (-1, share.mean_rate))
        entered = versions[place].model[:end] if place >= 0 else None
        received = Received(
            version.model[:end], version.vectors, task.edge_iteration, rate, share.last, task.round, device, entered
        )
        memory = begun(self._parts.rule, received, recalled(self._parts.rule, memory_of.get(device, {}), task.turn))
        return Start(device, version.model, received, memory)

    def _hand_up(
        self, task: EdgeTask, share: Share, version: Version, row: int, start: Start, vector: FloatVector,
        memory_of: dict[int, Memory],
    ) -> Lifted:  # fmt: skip
        """Return what a device hands up after its training; update what it keeps."""
        parts, job, device, position = self._parts, self._job, start.device, (task.round, task.edge_iteration)
        end = sum(self._sizes)
        if job.method.faulty is not None and self._faulty is not None and self._faulty[device]:
            rng = stream(job.seed, "faulty", *position, device)
            vector = job.method.faulty.sent(vector, version.model, end, rng)
        residual = memory_of.get(device, {}).get(RESIDUAL)
        extra: dict[str, SumVector] = {}
        if start.received is not None and start.memory is not None:
            rate = job.method.total_rate(self._rates(device, position))
            memory, vectors = after_training(parts.rule, start.received, vector[:end], rate, start.memory)
            for name, further in vectors.items():
                noun = f"numbers of the rule's vector {name}"
                extra[name] = weighted(np.asarray(further, dtype=np.float32), 1, task.extra_bits, noun=noun)
            if parts.remembers:
                memory_of[device] = {**memory, TURN: task.turn} if parts.rule.forgets else memory
        scale = share.scales[row] if share.scales else 1.0
        learned, before = vector, residual
        if parts.compresses or scale != 1.0:
            rng = stream(job.seed, "compression", *position, device)
            vector, residual = delivered(
                vector, version.model, scale, parts.device_compressor, self._sizes, rng, residual
            )
        if residual is not None:
            memory_of[device] = {**memory_of.get(device, {}), RESIDUAL: residual}
        measures: dict[int, Measured] = {}
        if self._measures:
            arrived = vector if parts.compresses else None
            measures[device] = measured(learned, version.model, end, scale, arrived, before)
        if job.method.privacy is not None:  # the network has no statistics
            vector = job.method.privacy.clipped(vector, version.model)
        weight = 1 if job.method.uniform else self._data.size_of(device)
        return Lifted(self._aggregator.lift(Sent(vector, version.model, weight, device), share.frame), extra, measures)

    def train_each(self, vector: FloatVector, devices: Sequence[int]) -> NDArray[np.float32]:
        """Train `vector` on each device separately (Algorithm 2); return the models, (len(devices), P)."""
        models = np.empty((len(devices), len(vector)), dtype=np.float32)
        with torch_threads(self._job.threads):
            for row, trained in enumerate(self._train_all([Start(device, vector) for device in devices], (0, 0))):
                models[row] = trained
        return models

    @staticmethod
    def train_auxiliary(
        job: LocalJob, data: DeviceData, vector: FloatVector, devices: Sequence[int]
    ) -> NDArray[np.float32]:
        """Train the auxiliary model of Algorithm 2 on each device, with a job and data of its own; see `train_each`."""
        return DeviceHost(job, data).train_each(vector, devices)

    def _train_all(self, starts: Sequence[Start], position: Position) -> Iterator[FloatVector]:
        """Yield the trained model of each device. The batched kernel trains them all at once."""
        if not isinstance(self._kernel, BatchedTrainer):
            for start in starts:
                with error_position(*position, start.device):
                    yield self._fit(self._kernel, start, position)
            return
        batches = []
        for start in starts:
            with error_position(*position, start.device):
                index = self.samples.index(start.device)
                batches.append([index[batch] for batch in self._order(start.device, position)])

        def stepping(part: slice, resident: ResidentWeights) -> Differences:
            return self._differences(resident, starts[part], position)

        with error_position(*position, *(start.device for start in starts)):
            plain = self._parts.plain_steps or not starts or starts[0].received is None
            yield from self._kernel.fit([start.model for start in starts], batches, None if plain else stepping)

    def _fit(self, kernel: Kernel, start: Start, position: Position) -> FloatVector:
        """Return the device's model after L local iterations from what it received (equation 1)."""
        device = start.device
        kernel.load(start.model)
        kernel.hold(*self.samples.of(device))
        order = self._order(device, position)
        with self._drawing_alone(device, position):
            if isinstance(self._parts.rule, OwnTraining):
                assert isinstance(kernel, ModuleKernel)  # `Backend` has refused the others
                self._train_by_the_user(kernel, self._parts.rule, device, order, position)
            elif self._parts.plain_steps or start.received is None or not order:
                for batch in order:
                    kernel.step(batch)
            else:
                steps = self._differences(kernel, [start], position)
                for index, batch in enumerate(order):
                    steps.step(partial(kernel.step, batch), index)
        return kernel.vector()

    def _train_by_the_user(
        self, kernel: ModuleKernel, rule: OwnTraining, device: int, order: list[NDArray[np.int64]], position: Position
    ) -> None:
        rates = self._rates(device, position)
        rng = stream(self._job.seed, "own training", *position, device)
        at = {"device": device, "round": position[0]}
        options = rule.options | {name: at[name] for name in rule.further}
        kernel.train_by(rule.train, order, float(rates[0]) if len(rates) else 0.0, rng, **options)

    def _differences(self, resident: ResidentWeights, starts: Sequence[Start], position: Position) -> Differences:
        """Return what makes the steps of some devices, whose models are loaded."""
        rates_of = [self._rates(start.device, position) for start in starts]
        rates = np.zeros((len(starts), max(map(len, rates_of))))
        for row, values in zip(rates, rates_of, strict=True):
            row[: len(values)] = values
        received = [start.received for start in starts if start.received is not None]
        memories = [start.memory for start in starts if start.memory is not None]
        return Differences(self._job.method, self._job.learning_rate, resident, received, memories, rates, self._shapes)

    def _rates(self, device: int, position: Position) -> FloatArray:
        """Return the learning rate of each step of a device in an edge iteration, (K,)."""
        job = self._job
        steps = steps_of(self._data.size_of(device), job)
        return job.method.decay.rates(job.learning_rate, position, job.edge_iterations, steps)

    @contextmanager
    def _drawing_alone(self, device: int, position: Position) -> Iterator[None]:
        """Let random layers such as dropout draw from the device's own stream, whichever host trains the device."""
        if not self._own_draws:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            # `torch.manual_seed` would also copy the stack for GPUs, at each reception of a device.
            seed = torch_seed(self._job.seed, f"{self._job.stream} of layers", *position, device)
            torch.default_generator.manual_seed(seed)
            yield

    def _order(self, device: int, position: Position) -> list[NDArray[np.int64]]:
        """Return the sample positions of every gradient step of a device."""
        job = self._job
        if not job.local_iterations:
            return []
        rng = stream(job.seed, job.stream, *position, device)
        return list(batches_of(self._data.size_of(device), job, rng))

    def losses(self, devices: Sequence[Sequence[int]], *versions: Version) -> NDArray[np.float64]:
        """Return the losses of models on the devices' own samples, (number of devices, 2).

        A row holds the mean loss of a sample and Oort's utility |B|·√(Σ loss² / |B|) of the |B| samples.
        ``devices[k]`` receive ``versions[k]``.
        """
        rows = []
        with torch.no_grad(), torch_threads(self._job.threads):
            for version, group in zip(versions, devices, strict=True):
                self._kernel.load(version.model)
                for device in group:
                    x, y = self.samples.of(device)
                    parts = [slice(i, i + EVALUATION_BATCH) for i in range(0, len(y), EVALUATION_BATCH)]
                    losses = [self._loss(self._kernel.logits(x[p]), y[p], reduction="none") for p in parts]
                    loss = torch.cat(losses).double().numpy()
                    rows.append((loss.mean(), len(loss) * np.sqrt((loss**2).mean())))
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    def evaluate(
        self, vector: FloatVector, shards: Sequence[int], keeps_outputs: bool = False, part: Part = "test"
    ) -> Shards:
        """Evaluate on shards of the test set or of the validation part.

        Args:
            vector: the model, (P,).
            shards: the numbers of the shards; shard k consists of the k-th `EVALUATION_BATCH` samples.
            keeps_outputs: whether the network's outputs are returned.
            part: what is evaluated.
        """
        self._kernel.load(vector)
        result = Shards([], [])
        with torch.no_grad(), torch_threads(self._job.threads):
            for shard in shards:
                x, y = self._data.shard(part, shard)
                targets, scores = torch.from_numpy(np.array(y)), self._kernel.logits(self.samples.normalised(x))
                result.sums.append(shard_sums(self._job.problem.kind, scores, targets, self._loss))
                if keeps_outputs:
                    result.outputs.append(scores.numpy())
        return result
