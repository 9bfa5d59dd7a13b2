"""Algorithm 1 of the paper in this process, without Ray, and the steps that it shares with the actors' form of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hflray.errors import DivergedError
from hflray.losses import summarise
from hflray.models import build, is_papers, num_statistics
from hflray.training.aggregate import FloatVector, SumVector, mean
from hflray.training.local import EVALUATION_BATCH, DeviceData, DeviceHost, EdgeTask, LocalJob, Outputs
from hflray.training.plan import RoundPlan, plan_round

Losses = dict[int, tuple[float, float]]  # mean loss and utility, by device


def everyone(
    edge_iterations: int, devices: NDArray[np.intp], counts: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Return `counts`, or, if it is None, that all devices take part in all edge iterations, (Q, H)."""
    return np.ones((edge_iterations, len(devices)), dtype=bool) if counts is None else counts


def record_losses(losses: Losses, devices: Iterable[Sequence[int]], rows: NDArray[np.float64]) -> None:
    """Store the rows of `DeviceHost.losses` by device."""
    flat = [device for group in devices for device in group]
    losses.update({device: (float(mean), float(utility)) for device, (mean, utility) in zip(flat, rows, strict=True)})


def cloud_aggregate(
    edge_sums: list[SumVector], plan: RoundPlan, round_index: int, previous: FloatVector, statistics: int = 0
) -> FloatVector:
    """Combine the edges' sums into the global model (equations 3 and 16): Σ D_n δ_n / D, in one exact sum.

    If no edge has a sum, the `previous` global model stays.
    """
    if not edge_sums:
        return previous
    model = mean(np.sum(edge_sums, axis=0, dtype=np.int64), plan.total_samples(), plan.fraction_bits, statistics)
    if not np.isfinite(model).all():
        raise DivergedError(f"round {round_index}: the global model is not finite; lower training.learning_rate")
    return model


def statistics_of(job: LocalJob) -> int:
    """Return how many numbers at the end of a job's vectors are statistics; see `hflray.training.aggregate`."""
    return 0 if is_papers(job.problem) else num_statistics(build(job.problem, job.seed))


class SerialHierarchy:
    """Algorithm 1 in this process, without Ray."""

    def __init__(self, job: LocalJob, data: DeviceData, edge_iterations: int) -> None:
        self._data, self._edge_iterations, self._kind = data, edge_iterations, job.problem.kind
        self._samples = np.diff(data.offsets)
        self._host, self._statistics = DeviceHost(job, data), statistics_of(job)

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
        plan = plan_round(self._samples, devices, assignment, 1, everyone(self._edge_iterations, devices, counts))
        models: dict[int, FloatVector] = {}
        sums: dict[int, SumVector] = {}
        for q, iteration in enumerate(plan.iterations):
            share = iteration.shares[0]
            if not share:
                continue
            task = EdgeTask(round_index, q, plan.fraction_bits, tuple(share.values()))
            received = [models.get(m, model) for m in share]
            if losses is not None:
                ending = [plan.leaving(q, m, devices) for m, devices in share.items()]
                record_losses(losses, ending, self._host.losses(ending, *received))
            trained = self._host.train(task, *received)
            for m, total in zip(share, trained, strict=True):
                sums[m] = total
                models[m] = mean(total, iteration.edge_samples[m], plan.fraction_bits, self._statistics)
        return cloud_aggregate([sums[m] for m in sorted(sums)], plan, round_index, model, self._statistics)

    def losses(self, model: FloatVector, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """See `Hierarchy.losses`."""
        return self._host.losses([devices.tolist()], model)

    def train_each(self, job: LocalJob, data: DeviceData, vector: FloatVector) -> NDArray[np.float32]:
        """See `Hierarchy.train_each`."""
        return DeviceHost(job, data).train_each(vector, range(len(data.offsets) - 1))

    def evaluate(
        self, model: FloatVector, meanwhile: Callable[[], None] | None = None, outputs: Outputs | None = None
    ) -> tuple[float, float]:
        """See `Hierarchy.evaluate`. This process evaluates itself, so `meanwhile` is not called."""
        count = len(self._data.y_test)
        shards = range(math.ceil(count / EVALUATION_BATCH))
        return summarise(self._host.evaluate(model, shards, outputs), count, self._kind)

    def close(self) -> None:
        """Do nothing, because there is nothing to release."""
