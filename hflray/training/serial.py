"""Algorithm 1 of the paper in this process, without Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import FloatVector, Frame
from hflray.fleet.tree import Tree
from hflray.losses import summarise
from hflray.models import build, num_statistics, trained
from hflray.training.driver import train_round
from hflray.training.exchange import EdgeTask, Lifted, Trained, Version, beside, close, finish
from hflray.training.job import EVALUATION_BATCH, DeviceData, Evaluation, LocalJob, Part
from hflray.training.local import DeviceHost
from hflray.training.merging import Cloud, Gather, Merge, gathered, merged, mixed
from hflray.training.program import AnyTask
from hflray.training.rules.base import Memory
from hflray.training.state import RoundResult, Setting, TrainingState
from hflray.training.steps import steps_of


def setting_of(job: LocalJob, data: DeviceData, num_edges: int, tree: Tree) -> Setting:
    """Return what is the same in all rounds of an experiment with M edges, and what lies above them."""
    module, samples = build(job.problem, job.seed), np.diff(data.offsets)
    counts, which = np.unique(samples, return_inverse=True)
    return Setting(
        method=job.method,
        seed=job.seed,
        samples=samples,
        num_edges=num_edges,
        steps=np.array([steps_of(int(count), job) for count in counts])[which],
        rate=job.learning_rate,
        sizes=tuple(tensor.numel() for tensor in trained(module)),
        statistics=num_statistics(module),
        tree=tree,
    )


class SerialExecutor:
    """Does the steps of a round in this process. A reference is the value itself."""

    hosts = 1

    def __init__(self, job: LocalJob, data: DeviceData) -> None:
        self.host, self._aggregator = DeviceHost(job, data), job.method.parts().edge

    def put(self, value: Any) -> Any:
        """See `Executor.put`."""
        return value

    def train(
        self, host: int, task: EdgeTask, versions: Sequence[Version], memories: Mapping[int, Memory] | None
    ) -> Trained:
        """See `Executor.train`."""
        parts, memory_of = self.host.train(task, versions, memories)
        return Trained(parts, None if memories is None else memory_of)

    def losses(self, host: int, devices: Sequence[Sequence[int]], versions: Sequence[Version]) -> NDArray[np.float64]:
        """See `Executor.losses`."""
        return self.host.losses(devices, *(version.model for version in versions))

    def close(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Lifted]]) -> Lifted:
        """See `Executor.close`."""
        return close(self._aggregator, [part for _, part in parts], frame)

    def finish(
        self, edge: int, frame: Frame, parts: Sequence[tuple[int, Lifted]], before: Version
    ) -> tuple[Version, Lifted]:
        """See `Executor.finish`."""
        lifted = [part for _, part in parts]
        return finish(self._aggregator, lifted, before, frame), beside(lifted)

    def mix(
        self, edge: int, frame: Frame, share: float, before: Version, arrival: tuple[int, Lifted]
    ) -> tuple[Version, Lifted]:
        """See `Executor.mix`."""
        return mixed(self._aggregator, frame, share, before, arrival[1]), beside([arrival[1]])

    def merge(
        self, merge: Merge, cloud: Cloud, trained: Version, fetched: Version, beside: Sequence[Lifted]
    ) -> tuple[Version, Cloud]:
        """See `Executor.merge`."""
        return merged(merge, cloud, trained, fetched, beside)

    def gather(
        self, gather: Gather, before: Version, versions: Sequence[Version], residuals: Mapping[int, FloatVector]
    ) -> tuple[Version, Mapping[int, FloatVector]]:
        """See `Executor.gather`."""
        return gathered(gather, before, versions, residuals)

    def get(self, refs: Sequence[Any]) -> list[Any]:
        """See `Executor.get`."""
        return list(refs)


class SerialHierarchy:
    """Algorithm 1 in this process.

    Args:
        job: how devices train.
        data: the samples of all devices.
        num_edges: M.
        tree: what lies above the edges.
    """

    def __init__(self, job: LocalJob, data: DeviceData, num_edges: int, tree: Tree | None = None) -> None:
        self._data, self._kind = data, job.problem.kind
        self._executor, self.setting = SerialExecutor(job, data), setting_of(job, data, num_edges, tree or Tree())

    def train_round(self, task: AnyTask, before: TrainingState) -> RoundResult:
        """See `Hierarchy.train_round`."""
        return train_round(self._executor, self.setting, task, before)

    def losses(self, model: FloatVector, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """See `Hierarchy.losses`."""
        return self._executor.host.losses([devices.tolist()], model)

    def train_each(self, job: LocalJob, data: DeviceData, vector: FloatVector) -> NDArray[np.float32]:
        """See `Hierarchy.train_each`."""
        return DeviceHost(job, data).train_each(vector, range(len(data.offsets) - 1))

    def evaluate(self, model: FloatVector, keeps_outputs: bool = False, part: Part = "test") -> Evaluation:
        """See `Hierarchy.evaluate`."""
        count = self._data.evaluated(part)
        numbers = range(math.ceil(count / EVALUATION_BATCH))
        shards = self._executor.host.evaluate(model, numbers, keeps_outputs, part)
        score, loss = summarise(shards.sums, count, self._kind)
        return Evaluation(score, loss, shards.outputs)

    def close(self) -> None:
        """Do nothing, because there is nothing to release."""
