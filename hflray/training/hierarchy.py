"""Algorithm 1 of the paper over Ray actors. `hflray.training.serial` uses the same plan and code without Ray, and
gives the same bits.

A round is a graph of calls that is submitted at once. Device actors train and pass partial sums to the edges, edges
pass their models to the next edge iteration, and only the edges' final sums return to the driver, which does the cloud
aggregation (equation 3). Traffic grows with actors × edges, not with devices. The round is the unit of recovery.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hflray.errors import WorkerLostError
from hflray.losses import Sums, summarise
from hflray.training.aggregate import FloatVector, SumVector
from hflray.training.local import EVALUATION_BATCH, DeviceData, EdgeTask, LocalJob, Outputs
from hflray.training.plan import RoundPlan, balance, plan_round
from hflray.training.pool import ActorPool, pool_of
from hflray.training.serial import Losses, SerialHierarchy, cloud_aggregate, everyone, record_losses, statistics_of
from hflray.training.start import last_line, start_ray

__all__ = ["Hierarchy", "RayHierarchy", "SerialHierarchy", "cloud_aggregate", "start_ray"]

log = logging.getLogger(__name__)
Result = TypeVar("Result")

MAX_EDGE_ACTORS = 8  # an edge only adds a few arrays, so more processes would cost more than they save
ATTEMPTS = 3  # attempts at a round before lost actors end the trial


class Hierarchy(Protocol):
    """The operations that an experiment needs of its training backend."""

    def train_round(
        self,
        round_index: int,
        model: FloatVector,
        devices: NDArray[np.intp],
        assignment: NDArray[np.intp],
        counts: NDArray[np.bool_] | None = None,
        losses: Losses | None = None,
    ) -> FloatVector:
        """Return the global model after the round, (P,) float32.

        Args:
            round_index: i, from 1.
            model: the global model before the round, (P,).
            devices: the scheduled devices, (H,).
            assignment: the edge of each, (H,).
            counts: whether a device takes part in an edge iteration, (Q, H); None: all do. An edge keeps its model in
                an iteration without devices. Its weight at the cloud is the samples of its last iteration with some;
                without any it has none, and if no edge has any, the global model stays.
            losses: receives the losses of each device that takes part (see `DeviceHost.losses`), of the model that it
                receives in its last edge iteration; None: they are not computed.
        """

    def losses(self, model: FloatVector, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the losses of a model on the samples of some devices, (n, 2); see `DeviceHost.losses`."""

    def train_each(self, job: LocalJob, data: DeviceData, vector: FloatVector) -> NDArray[np.float32]:
        """Train `vector` on every device separately (Algorithm 2); return the models, (N, P)."""

    def evaluate(
        self, model: FloatVector, meanwhile: Callable[[], None] | None = None, outputs: Outputs | None = None
    ) -> tuple[float, float]:
        """Return the main metric and the mean loss on the test set (see `hflray.losses.summarise`).

        Args:
            model: the model, (P,).
            meanwhile: is called once while other processes evaluate.
            outputs: an empty list, which receives the network's outputs for the test set in its order, in parts; None:
                the outputs stay where they are computed.
        """

    def close(self) -> None:
        """Release the backend's resources."""


class RayHierarchy:
    """Algorithm 1 over device and edge actors.

    Args:
        job: how devices train.
        data: the samples of all devices; they are put into the object store once.
        edge_iterations: Q.
        num_edges: M; edges beyond `edge_actors` share actors.
        num_actors: the number of device actors.
        cpus_per_actor: CPUs that each device actor reserves.
        gpus_per_actor: the part of a GPU that each device actor reserves.
        keep: `close` leaves the actors to the next experiment of the same shape, see `hflray.training.pool`.
    """

    def __init__(
        self,
        job: LocalJob,
        data: DeviceData,
        edge_iterations: int,
        num_edges: int,
        num_actors: int,
        cpus_per_actor: float = 1.0,
        gpus_per_actor: float = 0.0,
        keep: bool = False,
    ) -> None:
        import ray

        self._edge_iterations, self._keep = edge_iterations, keep
        self._idle = True  # no call is under way, and the last one did not fail
        self._samples, self._test_count, self._kind = np.diff(data.offsets), len(data.y_test), job.problem.kind
        self._statistics = statistics_of(job)
        make = pool_of if keep else ActorPool
        edges = edge_actors(num_edges, num_actors)
        self.pool = make(job, ray.put(data), num_actors, cpus_per_actor, edges, gpus_per_actor)

    def train_round(
        self,
        round_index: int,
        model: FloatVector,
        devices: NDArray[np.intp],
        assignment: NDArray[np.intp],
        counts: NDArray[np.bool_] | None = None,
        losses: Losses | None = None,
    ) -> FloatVector:
        """See `Hierarchy.train_round`."""

        present = everyone(self._edge_iterations, devices, counts)

        def attempt() -> tuple[list[SumVector], RoundPlan]:
            plan = plan_round(self._samples, devices, assignment, len(self.pool.devices), present)
            return self._edge_sums(round_index, model, plan, losses), plan

        sums, plan = self._with_recovery(f"round {round_index}", attempt)
        return cloud_aggregate(sums, plan, round_index, model, self._statistics)

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

    def _edge_sums(
        self, round_index: int, model: FloatVector, plan: RoundPlan, losses: Losses | None
    ) -> list[SumVector]:
        import ray

        pool, last = self.pool, plan.last()
        models: dict[int, Any] = dict.fromkeys(last, ray.put(model))
        measured: list[tuple[dict[int, tuple[int, ...]], Any]] = []
        for q, iteration in enumerate(plan.iterations):
            partial: dict[int, list[tuple[int, Any]]] = {m: [] for m in iteration.edge_samples}
            for host, (actor, share) in enumerate(zip(pool.devices, iteration.shares, strict=True)):
                if not share:
                    continue
                task = EdgeTask(round_index, q, plan.fraction_bits, tuple(share.values()))
                ending = {m: plan.leaving(q, m, devices) for m, devices in share.items()} if losses is not None else {}
                if any(ending.values()):
                    received = [models[m] for m in ending]
                    measured.append((ending, actor.losses.remote(list(ending.values()), *received)))
                call = actor.train.options(num_returns=len(share))
                refs = call.remote(task, *(models[m] for m in share))
                for m, ref in zip(share, [refs] if len(share) == 1 else refs, strict=True):
                    partial[m].append((host, ref))
            for m, parts in partial.items():
                number = m % len(pool.edges)
                edge, sums = pool.edges[number], pool.gather(number, parts)
                if q == last[m]:
                    models[m] = edge.total.remote(*sums)
                else:
                    models[m] = edge.aggregate.remote(
                        iteration.edge_samples[m], plan.fraction_bits, self._statistics, *sums
                    )
        sums = list(ray.get(list(models.values())))
        for (ending, _), rows in zip(measured, ray.get([ref for _, ref in measured]), strict=True):
            assert losses is not None
            record_losses(losses, ending.values(), rows)
        return sums

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

    def evaluate(
        self, model: FloatVector, meanwhile: Callable[[], None] | None = None, outputs: Outputs | None = None
    ) -> tuple[float, float]:
        """See `Hierarchy.evaluate`."""
        import ray

        once = [meanwhile] if meanwhile else []
        shards = range(math.ceil(self._test_count / EVALUATION_BATCH))

        def attempt() -> tuple[list[Sums], Outputs]:
            model_ref, count, keeps = ray.put(model), len(self.pool.devices), outputs is not None
            actors = enumerate(self.pool.devices)
            refs = [actor.evaluate.remote(model_ref, shards[h::count], keeps) for h, actor in actors]
            if once:
                once.pop()()
            results = ray.get(refs)
            sums = [results[shard % count][0][shard // count] for shard in shards]
            return sums, [results[shard % count][1][shard // count] for shard in shards] if keeps else []

        sums, parts = self._with_recovery("evaluation", attempt)
        if outputs is not None:
            outputs += parts
        return summarise(sums, self._test_count, self._kind)

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
