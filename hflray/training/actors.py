"""The Ray actors that host devices and edges. They keep no state that a round depends on.

Every call names its round and carries its inputs, or references to them. Ray never restarts these actors, because a
restarted actor would silently serve the next call with fresh state. The driver replaces lost actors and repeats the
round instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.metrics import Counter, Gauge

from hflray.errors import HflrayError
from hflray.support.live_metrics import SAMPLES, LiveMetric
from hflray.training.nodes import EdgeWorker

if TYPE_CHECKING:
    from hflray.aggregation import FloatVector
    from hflray.training.exchange import EdgeTask, Version
    from hflray.training.job import DeviceData, LocalJob, Part, Shards
    from hflray.training.rules.base import Memory

NEVER_RETRY = {"max_restarts": 0, "max_task_retries": 0}


def instrument(metric: LiveMetric, labels: dict[str, str]) -> Any:
    """Return Ray's counter or gauge for a live metric.

    `labels` that the metric does not declare are ignored; labels that only the metric declares are set in each call.
    """
    kind = Counter if metric.kind == "counter" else Gauge
    default_labels = {name: value for name, value in labels.items() if name in metric.labels}
    return kind(metric.name, metric.description, metric.labels).set_default_tags(default_labels)


class DeviceWorker:
    """Hosts devices in a process of its own; a thin shell around `hflray.training.local.DeviceHost`.

    Args:
        job: how devices train.
        data: the samples of all devices.
        pin: whether the actor claims a CPU for itself, if one is free.
        expected: the driver's `release`. A different release on this node is an error, because it would give
            different results.
    """

    def __init__(
        self, job: LocalJob, data: DeviceData, pin: bool = False, expected: dict[str, str] | None = None
    ) -> None:
        # torch is imported here and not above: an edge's process has no use for its 200 MB.
        from hflray.support.provenance import differences, release
        from hflray.training.machine import CpuClaim

        if expected is not None and (mismatch := differences(expected, release())):
            raise HflrayError(f"node {ray.util.get_node_ip_address()} runs {mismatch}; run cluster/setup_node.sh there")

        self._busy_s = 0.0
        self._claim = CpuClaim() if pin else None
        self.serve(job, data)

    def serve(self, job: LocalJob, data: DeviceData) -> None:
        """Host another experiment's devices from now on, as if just started."""
        from hflray.training.local import DeviceHost

        self._job, self._samples = job, np.diff(data.offsets)
        self._trained: Any = None  # the live counter of trained samples, after `watch`
        vars(self).pop("_host", None)  # if the next one cannot be made, the one before must not train in its place
        self._host = DeviceHost(job, data)

    def about(self) -> tuple[int, float]:
        """Return the process id and the seconds that the process has spent in `train`, for monitoring."""
        return os.getpid(), self._busy_s

    def watch(self, labels: dict[str, str]) -> None:
        """Export from now on the number of samples that this actor trains, under these labels."""
        self._trained = instrument(SAMPLES, labels)

    def node_id(self) -> str:
        """Return the id of this actor's node."""
        return str(ray.get_runtime_context().get_node_id())

    def train(self, task: EdgeTask, memories: Mapping[int, Memory] | None, *versions: Version) -> Any:
        """See `DeviceHost.train`. Each result is an object of its own, which goes straight to where it is needed."""
        from hflray.training.job import sample_passes

        begin = time.perf_counter()
        results = self._host.train(task, memories, *versions)
        self._busy_s += time.perf_counter() - begin
        if self._trained is not None:
            devices = [device for share in task.shares for device in share.devices]
            self._trained.inc(sample_passes(self._job, self._samples[devices]))
        return results

    def train_auxiliary(
        self, job: LocalJob, data: DeviceData, vector: FloatVector, devices: Sequence[int]
    ) -> NDArray[np.float32]:
        """See `DeviceHost.train_auxiliary`."""
        return self._host.train_auxiliary(job, data, vector, devices)

    def losses(self, devices: Sequence[Sequence[int]], *versions: Version) -> NDArray[np.float64]:
        """See `DeviceHost.losses`."""
        return self._host.losses(devices, *versions)

    def evaluate(
        self, vector: FloatVector, shards: Sequence[int], keeps_outputs: bool = False, part: Part = "test"
    ) -> Shards:
        """See `DeviceHost.evaluate`."""
        return self._host.evaluate(vector, shards, keeps_outputs, part)


DeviceActor = ray.remote(**NEVER_RETRY)(DeviceWorker)
EdgeActor = ray.remote(num_cpus=0, **NEVER_RETRY)(EdgeWorker)
