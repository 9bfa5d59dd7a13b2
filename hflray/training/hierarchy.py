"""The training backend of an experiment: Algorithm 1 over hosts and edges in this process, or in actors of Ray.

Both run the same loop, and give the same bits. A round is a graph of calls that is submitted at once. Hosts train
devices and pass what they combine to the edges, edges pass their models to the next edge iteration, and only what the
edges hand up returns to the driver, which does the cloud aggregation (equation 3). With a mean, traffic grows with
actors × edges, not with devices. The round is the unit of recovery.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import FloatVector
from hflray.errors import WorkerLostError
from hflray.fleet.tree import CLOUD_ALONE, Tree
from hflray.losses import summarise
from hflray.models import build
from hflray.models.vector import num_statistics, trained
from hflray.training.actor_pool import ActorPool, pool_of
from hflray.training.driver import Executor, LocalPool, train_round
from hflray.training.exchange import Version
from hflray.training.job import EVALUATION_BATCH, DeviceData, LocalJob, ModelEvaluation, Part, steps_of
from hflray.training.plan import PoolSize, balance
from hflray.training.start import last_line, start_ray
from hflray.training.state import RoundResult, RoundTask, TrainingSetting, TrainingState

__all__ = ["Hierarchy", "RayHierarchy", "SerialHierarchy", "start_ray"]

log = logging.getLogger(__name__)
Result = TypeVar("Result")

MAX_EDGE_ACTORS = 8  # an edge only adds a few arrays, so more processes would cost more than they save
ATTEMPTS = 3  # attempts at a round before lost actors end the trial


def setting_of(job: LocalJob, data: DeviceData, num_edges: int, tree: Tree) -> TrainingSetting:
    """Return what is the same in all rounds of an experiment with M edges, and what lies above them."""
    module, samples = build(job.problem, job.seed), np.diff(data.offsets)
    counts, which = np.unique(samples, return_inverse=True)
    return TrainingSetting(
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


class Hierarchy:
    """Algorithm 1 over the hosts and edges of a pool.

    Args:
        job: how devices train.
        data: the samples of all devices.
        num_edges: M.
        pool: where its work is done.
        tree: what lies above the edges.

    Attributes:
        setting: what is the same in all rounds.
        pool: where its work is done.
    """

    def __init__(self, job: LocalJob, data: DeviceData, num_edges: int, pool: Executor, tree: Tree) -> None:
        self.setting, self.pool, self._kind = setting_of(job, data, num_edges, tree), pool, job.problem.kind
        self._evaluated: dict[Part, int] = {part: data.evaluated(part) for part in get_args(Part)}

    def train_round(self, task: RoundTask, before: TrainingState) -> RoundResult:
        """Train a round of any clock; see `hflray.training.driver.train_round`."""

        def attempt() -> RoundResult:
            return train_round(self.pool, self.setting, task, before)

        return self._recovering(f"round {task.round_index}", attempt)

    def losses(self, model: FloatVector, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the losses of a model on the samples of some devices, (n, 2); see `DeviceHost.losses`."""

        def attempt() -> NDArray[np.float64]:
            version, rows = self.pool.put(Version(model)), np.empty((len(devices), 2))
            groups = self._dealt(self.setting.samples[devices])
            calls = [
                self.pool.call(host, "losses", [devices[group].tolist()], version)[0]
                for host, group in zip(self.pool.devices, groups, strict=True)
                if len(group)
            ]
            for group, part in zip(filter(len, groups), self.pool.get(calls), strict=True):
                rows[group] = part
            return rows

        return self._recovering("losses", attempt)

    def train_each(self, job: LocalJob, data: DeviceData, vector: FloatVector) -> NDArray[np.float32]:
        """Train `vector` on every device separately (Algorithm 2); return the models, (N, P)."""
        samples = np.diff(data.offsets)
        data_ref, vector_ref = self.pool.put(data), self.pool.put(vector)

        def attempt() -> NDArray[np.float32]:
            models, groups = np.empty((len(samples), len(vector)), dtype=np.float32), self._dealt(samples)
            calls = [
                self.pool.call(host, "train_auxiliary", job, data_ref, vector_ref, group.tolist())[0]
                for host, group in zip(self.pool.devices, groups, strict=True)
            ]
            for group, rows in zip(groups, self.pool.get(calls), strict=True):
                models[group] = rows
            return models

        return self._recovering("clustering", attempt)

    def evaluate(self, model: FloatVector, keeps_outputs: bool = False, part: Part = "test") -> ModelEvaluation:
        """Evaluate a model on the test set, or on the validation part.

        Args:
            model: the model, (P,).
            keeps_outputs: whether the network's outputs are returned; otherwise they stay where they are computed.
            part: what is evaluated.
        """
        total = self._evaluated[part]
        shards = range(math.ceil(total / EVALUATION_BATCH))

        def attempt() -> ModelEvaluation:
            model_ref, count = self.pool.put(model), len(self.pool.devices)
            calls = [
                self.pool.call(host, "evaluate", model_ref, shards[h::count], keeps_outputs, part)[0]
                for h, host in enumerate(self.pool.devices)
            ]
            results = self.pool.get(calls)
            sums = [results[shard % count].sums[shard // count] for shard in shards]
            outputs = [results[shard % count].outputs[shard // count] for shard in shards] if keeps_outputs else []
            return ModelEvaluation(*summarise(sums, total, self._kind), outputs)

        return self._recovering("evaluation", attempt)

    def close(self) -> None:
        """End the hosts and the edges."""
        self.pool.close()

    def _dealt(self, samples: NDArray[np.int64]) -> list[NDArray[np.intp]]:
        """Return the positions of the devices, given their samples, that each host gets."""
        count = len(self.pool.devices)
        host = balance(samples, count)
        return [np.flatnonzero(host == h) for h in range(count)]

    def _recovering(self, activity: str, attempt: Callable[[], Result]) -> Result:
        """Run `attempt`, which `activity` names."""
        return attempt()


class SerialHierarchy(Hierarchy):
    """Algorithm 1 in this process."""

    def __init__(self, job: LocalJob, data: DeviceData, num_edges: int, tree: Tree = CLOUD_ALONE) -> None:
        super().__init__(job, data, num_edges, LocalPool(job, data), tree)


class RayHierarchy(Hierarchy):
    """Algorithm 1 over device and edge actors.

    Args:
        job: how devices train.
        data: the samples of all devices; they are put into the object store once.
        num_edges: M; edges beyond `edge_actors` share actors.
        size: the number of device actors, and what each reserves.
        keep: `close` leaves the actors to the next experiment of the same shape, see `hflray.training.actor_pool`.
        tree: what lies above the edges.
    """

    pool: ActorPool

    def __init__(
        self,
        job: LocalJob,
        data: DeviceData,
        num_edges: int,
        size: PoolSize,
        keep: bool = False,
        tree: Tree = CLOUD_ALONE,
    ) -> None:
        import ray

        self._keep = keep
        self._idle = True  # no call is under way, and the last one did not fail
        make = pool_of if keep else ActorPool
        pool = make(job, ray.put(data), size, edge_actors(num_edges, size.actors))
        super().__init__(job, data, num_edges, pool, tree)

    def _recovering(self, activity: str, attempt: Callable[[], Result]) -> Result:
        """Run `attempt`. If actors die, replace all of them and repeat it; a repetition gives the same bits."""
        import ray
        from ray.exceptions import ActorUnschedulableError, NodeDiedError, ObjectLostError, RayActorError, RayTaskError

        loss_errors = (RayActorError, ObjectLostError, NodeDiedError, ActorUnschedulableError)
        self._idle = False
        for number in range(1, ATTEMPTS + 1):
            try:
                self.pool.refresh()
                result = attempt()
                self._idle = True
                return result
            except RayTaskError as error:
                cause = error.cause
                if not isinstance(cause, loss_errors):
                    raise cause from None
                failure: Exception = cause
            except loss_errors as error:
                failure = error
            if "creation task" in str(failure):  # the actor failed to start, and a new one would fail too
                raise WorkerLostError(f"{activity}: a worker could not start: {last_line(failure)}") from failure
            reason = type(failure).__name__
            log.warning("%s: a worker was lost (%s); starting new ones and doing it again", activity, reason)
            if number < ATTEMPTS:
                self.pool.close()
                self.pool.start()
        raise WorkerLostError(
            f"{activity}: workers were lost {ATTEMPTS} times in a row ({failure}); look at the memory of this machine "
            f"({ray.cluster_resources().get('memory', 0) / 2**30:.1f} GiB known to Ray), or lower training.num_actors"
        )

    def close(self) -> None:
        """End the actors, or keep them for the next experiment of this process."""
        if self._keep and self._idle:
            self.pool.rest()
        else:
            self.pool.close()


def edge_actors(num_edges: int, num_actors: int) -> int:
    """Return the number of edge actors; if few devices train at once, more actors would only take time to start."""
    return min(num_edges, MAX_EDGE_ACTORS, max(1, num_actors))
