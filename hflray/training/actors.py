"""The Ray actors: hosts of devices, and edges. They keep nothing that a round depends on.

Every call names its round and carries (references to) what it needs, because a restarted actor would serve the next
call with fresh state and say nothing; so actors are never restarted by Ray, and the driver redoes the round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.metrics import Counter, Gauge

from hflray.errors import HflrayError
from hflray.metrics import LIVE_SAMPLES, LiveMetric
from hflray.training.aggregate import FloatVector, SumVector, mean

if TYPE_CHECKING:
    from hflray.training.local import DeviceData, EdgeTask, LocalJob

NEVER_RETRY = {"max_restarts": 0, "max_task_retries": 0}


def instrument(metric: LiveMetric, labels: dict[str, str]) -> Any:
    """Ray's counter or gauge for a live metric. `labels` it lacks are left out; those it has besides come per call."""
    kind = Counter if metric.kind == "counter" else Gauge
    known = {name: value for name, value in labels.items() if name in metric.labels}
    return kind(metric.name, metric.description, metric.labels).set_default_tags(known)


class DeviceWorker:
    """Hosts devices in a process of its own; a thin shell around `hflray.training.local.DeviceHost`.

    `pin`: keep a CPU for itself, where one is free. `expected`: the `release` of the driver; another one here is an
    error, because its results would be others.
    """

    def __init__(
        self, job: LocalJob, data: DeviceData, pin: bool = False, expected: dict[str, str] | None = None
    ) -> None:
        # torch is imported here and not above: an edge's process has no use for its 200 MB.
        from hflray.provenance import differences, release
        from hflray.training.local import DeviceHost
        from hflray.training.machine import CpuClaim

        if expected is not None and (what := differences(expected, release())):
            raise HflrayError(f"node {ray.util.get_node_ip_address()} runs {what}; run cluster/setup_node.sh there")

        self._busy_s = 0.0
        self._job, self._samples = job, np.diff(data.offsets)
        self._trained: Any = None  # a live counter, once somebody watches
        self._claim = CpuClaim() if pin else None
        self._host = DeviceHost(job, data)

    def about(self) -> tuple[int, float]:
        """The process, and the seconds it has spent in `train`; for whoever watches."""
        return os.getpid(), self._busy_s

    def watch(self, labels: dict[str, str]) -> None:
        """From now on export how many samples were trained here, under these labels."""
        self._trained = instrument(LIVE_SAMPLES, labels)

    def where(self) -> str:
        """The id of the node this actor is on."""
        return str(ray.get_runtime_context().get_node_id())

    def train(self, task: EdgeTask, *edge_models: FloatVector) -> SumVector | tuple[SumVector, ...]:
        """See `DeviceHost.train`; one return value per edge, so that each goes straight to its edge."""
        begin = time.perf_counter()
        sums = self._host.train(task, *edge_models)
        self._busy_s += time.perf_counter() - begin
        if self._trained is not None:
            self._trained.inc(self._passes(task))
        return sums[0] if len(sums) == 1 else sums

    def _passes(self, task: EdgeTask) -> int:
        """Samples through local training in a task."""
        samples = self._samples[[device for edge in task.devices for device in edge]]
        if self._job.local_iteration == "step":
            samples = np.minimum(samples, self._job.batch_size)
        return int(samples.sum()) * self._job.local_iterations

    def train_each(
        self, job: LocalJob, data: DeviceData, vector: FloatVector, devices: Sequence[int]
    ) -> NDArray[np.float32]:
        """Train the auxiliary model of Algorithm 2 on each device; its job and data come with the call."""
        from hflray.training.local import DeviceHost

        return DeviceHost(job, data).train_each(vector, devices)

    def evaluate(self, vector: FloatVector, shards: Sequence[int]) -> list[tuple[int, float]]:
        """See `DeviceHost.evaluate`."""
        return self._host.evaluate(vector, shards)


class EdgeWorker:
    """Adds the partial sums of an edge's devices: the paper's edge aggregation (equation 2)."""

    def aggregate(self, samples: int, bits: int, *partial_sums: SumVector) -> FloatVector:
        """Return the edge model of the next edge iteration, (P,) float32."""
        return mean(self.total(*partial_sums), samples, bits)

    def total(self, *partial_sums: SumVector) -> SumVector:
        """Return the exact sum of the partial sums, (P,) int64: after the last edge iteration, the cloud's share."""
        total: SumVector = np.sum(partial_sums, axis=0, dtype=np.int64)
        return total


DeviceActor = ray.remote(**NEVER_RETRY)(DeviceWorker)
EdgeActor = ray.remote(num_cpus=0, **NEVER_RETRY)(EdgeWorker)
