"""Algorithm 1 of the paper over Ray actors. `hflray.training.serial` runs the same loop without Ray, and gives the same
bits.

A round is a graph of calls that is submitted at once. Device actors train and pass what they combine to the edges,
edges pass their models to the next edge iteration, and only what the edges hand up returns to the driver, which does
the cloud aggregation (equation 3). With a mean, traffic grows with actors × edges, not with devices. The round is the
unit of recovery.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import FloatVector, Frame
from hflray.errors import WorkerLostError
from hflray.fleet.tree import Tree
from hflray.losses import summarise
from hflray.training.actor_pool import ActorPool, pool_of
from hflray.training.driver import train_round
from hflray.training.exchange import EdgeTask, Trained
from hflray.training.job import EVALUATION_BATCH, DeviceData, Evaluation, LocalJob, Part
from hflray.training.merging import Gather, Merge
from hflray.training.method import Method
from hflray.training.plan import balance
from hflray.training.program import AnyTask
from hflray.training.serial import SerialHierarchy, setting_of
from hflray.training.start import last_line, start_ray
from hflray.training.state import RoundResult, Setting, TrainingState

__all__ = ["Hierarchy", "RayHierarchy", "SerialHierarchy", "start_ray"]

log = logging.getLogger(__name__)
Result = TypeVar("Result")

MAX_EDGE_ACTORS = 8  # an edge only adds a few arrays, so more processes would cost more than they save
ATTEMPTS = 3  # attempts at a round before lost actors end the trial


class Hierarchy(Protocol):
    """The operations that an experiment needs of its training backend."""

    setting: Setting

    def train_round(self, task: AnyTask, before: TrainingState) -> RoundResult:
        """Train a round; see `hflray.training.driver.train_round`."""

    def losses(self, model: FloatVector, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the losses of a model on the samples of some devices, (n, 2); see `DeviceHost.losses`."""

    def train_each(self, job: LocalJob, data: DeviceData, vector: FloatVector) -> NDArray[np.float32]:
        """Train `vector` on every device separately (Algorithm 2); return the models, (N, P)."""

    def evaluate(self, model: FloatVector, keeps_outputs: bool = False, part: Part = "test") -> Evaluation:
        """Evaluate a model on the test set, or on the validation part.

        Args:
            model: the model, (P,).
            keeps_outputs: whether the network's outputs are returned; otherwise they stay where they are computed.
            part: what is evaluated.
        """

    def close(self) -> None:
        """Release the backend's resources."""


class RayExecutor:
    """Does the steps of a round in actors. A reference is one to an object of Ray."""

    def __init__(self, pool: ActorPool, method: Method) -> None:
        self._pool, self._edge = pool, method.edge
        self._tells = bool(method.parts().rule.extra) or method.measures

    @property
    def hosts(self) -> int:
        """See `Executor.hosts`."""
        return len(self._pool.devices)

    def put(self, value: Any) -> Any:
        """See `Executor.put`."""
        import ray

        return ray.put(value)

    def train(self, host: int, task: EdgeTask, versions: Sequence[Any], memories: Any | None) -> Trained:
        """See `Executor.train`. There is one object for each edge, so that each goes straight to its edge."""
        keeps = memories is not None
        count = len(versions) + keeps
        refs = self._pool.devices[host].train.options(num_returns=count).remote(task, memories, *versions)
        each = [refs] if count == 1 else list(refs)
        return Trained(each[: len(versions)], each[-1] if keeps else None)

    def losses(self, host: int, devices: Sequence[Sequence[int]], versions: Sequence[Any]) -> Any:
        """See `Executor.losses`."""
        return self._pool.devices[host].losses_of.remote(list(devices), *versions)

    def close(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Any]]) -> Any:
        """See `Executor.close`."""
        actor, refs = self._gathered(edge, parts)
        return actor.close.remote(self._edge, frame, *refs)

    def finish(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Any]], before: Any) -> tuple[Any, Any | None]:
        """See `Executor.finish`."""
        actor, refs = self._gathered(edge, parts)
        if not self._tells:
            return actor.finish.remote(self._edge, frame, before, *refs), None
        version, rest = actor.finish_and_tell.options(num_returns=2).remote(self._edge, frame, before, *refs)
        return version, rest

    def mix(
        self, edge: int, frame: Frame, share: float, before: Any, arrival: tuple[int, Any]
    ) -> tuple[Any, Any | None]:
        """See `Executor.mix`. All arrivals at an edge go to one actor, because they follow each other."""
        actor = self._pool.edges[edge % len(self._pool.edges)]
        if not self._tells:
            return actor.mix.remote(self._edge, frame, share, before, arrival[1]), None
        version, rest = actor.mix_and_tell.options(num_returns=2).remote(self._edge, frame, share, before, arrival[1])
        return version, rest

    def merge(self, merge: Merge, cloud: Any, trained: Any, fetched: Any, beside: Sequence[Any]) -> tuple[Any, Any]:
        """See `Executor.merge`. Updates follow each other, so that one actor makes all of them."""
        call = self._pool.edges[0].merge.options(num_returns=2)
        version, after = call.remote(merge, cloud, trained, fetched, *beside)
        return version, after

    def gather(self, gather: Gather, before: Any, versions: Sequence[Any], residuals: Any) -> tuple[Any, Any]:
        """See `Executor.gather`."""
        actor = self._pool.edges[gather.frame.index % len(self._pool.edges)]
        version, after = actor.gather.options(num_returns=2).remote(gather, before, residuals, *versions)
        return version, after

    def get(self, refs: Sequence[Any]) -> list[Any]:
        """See `Executor.get`."""
        import ray

        return list(ray.get(list(refs)))

    def _gathered(self, edge: int, parts: Sequence[tuple[int, Any]]) -> tuple[Any, list[Any]]:
        number = edge % len(self._pool.edges)
        return self._pool.edges[number], self._pool.gather(number, list(parts), self._edge)


class RayHierarchy:
    """Algorithm 1 over device and edge actors.

    Args:
        job: how devices train.
        data: the samples of all devices; they are put into the object store once.
        num_edges: M; edges beyond `edge_actors` share actors.
        num_actors: the number of device actors.
        cpus_per_actor: CPUs that each device actor reserves.
        gpus_per_actor: the part of a GPU that each device actor reserves.
        keep: `close` leaves the actors to the next experiment of the same shape, see `hflray.training.actor_pool`.
        tree: what lies above the edges.
    """

    def __init__(
        self,
        job: LocalJob,
        data: DeviceData,
        num_edges: int,
        num_actors: int,
        cpus_per_actor: float = 1.0,
        gpus_per_actor: float = 0.0,
        keep: bool = False,
        tree: Tree | None = None,
    ) -> None:
        import ray

        self._keep = keep
        self._idle = True  # no call is under way, and the last one did not fail
        self._samples, self._kind = np.diff(data.offsets), job.problem.kind
        self._evaluated: dict[Part, int] = {part: data.evaluated(part) for part in get_args(Part)}
        self.setting = setting_of(job, data, num_edges, tree or Tree())
        make = pool_of if keep else ActorPool
        edges = edge_actors(num_edges, num_actors)
        self.pool = make(job, ray.put(data), num_actors, cpus_per_actor, edges, gpus_per_actor)

    def train_round(self, task: AnyTask, before: TrainingState) -> RoundResult:
        """See `Hierarchy.train_round`."""

        def attempt() -> RoundResult:
            executor = RayExecutor(self.pool, self.setting.method)
            return train_round(executor, self.setting, task, before)

        return self._with_recovery(f"round {task.round_index}", attempt)

    def losses(self, model: FloatVector, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """See `Hierarchy.losses`."""
        import ray

        def attempt() -> NDArray[np.float64]:
            actors, model_ref = self.pool.devices, ray.put(model)
            host = balance(self._samples[devices], len(actors))
            refs = [
                actor.losses.remote([devices[host == h].tolist()], model_ref)
                for h, actor in enumerate(actors)
                if (host == h).any()
            ]
            rows = np.empty((len(devices), 2))
            for h, part in zip(np.unique(host), ray.get(refs), strict=True):
                rows[host == h] = part
            return rows

        return self._with_recovery("losses", attempt)

    def train_each(self, job: LocalJob, data: DeviceData, vector: FloatVector) -> NDArray[np.float32]:
        """See `Hierarchy.train_each`."""
        import ray

        samples = np.diff(data.offsets)
        data_ref, vector_ref = ray.put(data), ray.put(vector)

        def attempt() -> NDArray[np.float32]:
            actors = self.pool.devices
            models = np.empty((len(samples), len(vector)), dtype=np.float32)
            host = balance(samples, len(actors))
            groups = [np.flatnonzero(host == h) for h in range(len(actors))]
            refs = [
                actor.train_each.remote(job, data_ref, vector_ref, group.tolist())
                for actor, group in zip(actors, groups, strict=True)
            ]
            for group, rows in zip(groups, ray.get(refs), strict=True):
                models[group] = rows
            return models

        return self._with_recovery("clustering", attempt)

    def evaluate(self, model: FloatVector, keeps_outputs: bool = False, part: Part = "test") -> Evaluation:
        """See `Hierarchy.evaluate`."""
        import ray

        total = self._evaluated[part]
        shards = range(math.ceil(total / EVALUATION_BATCH))

        def attempt() -> Evaluation:
            model_ref, count = ray.put(model), len(self.pool.devices)
            actors = enumerate(self.pool.devices)
            refs = [actor.evaluate.remote(model_ref, shards[h::count], keeps_outputs, part) for h, actor in actors]
            results = ray.get(refs)
            sums = [results[shard % count].sums[shard // count] for shard in shards]
            outputs = [results[shard % count].outputs[shard // count] for shard in shards] if keeps_outputs else []
            return Evaluation(*summarise(sums, total, self._kind), outputs)

        return self._with_recovery("evaluation", attempt)

    def _with_recovery(self, activity: str, attempt: Callable[[], Result]) -> Result:
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
