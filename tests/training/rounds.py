"""Rounds of Algorithm 1 for tests: plain models in, plain models out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from hflray.aggregation import Frame
from hflray.cost import Schedule
from hflray.training.exchange import EdgeTask, Share, Version
from hflray.training.hierarchy import RayHierarchy, SerialHierarchy
from hflray.training.job import DeviceData, LocalJob
from hflray.training.local import DeviceHost
from hflray.training.plan import PoolSize
from hflray.training.state import RoundResult, RoundTask, TrainingState

NUM_EDGES = 3


class Rounds:
    """A hierarchy whose rounds have Q edge iterations; all else is the hierarchy's."""

    def __init__(self, hierarchy: Any, edge_iterations: int) -> None:
        self.hierarchy, self._edge_iterations = hierarchy, edge_iterations

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hierarchy, name)

    def start(self, model: np.ndarray) -> TrainingState:
        """Return the state before round 1."""
        setting = self.hierarchy.setting
        return TrainingState.first(setting.method, model, sum(setting.sizes), setting.num_edges)

    def result(self, index, before, devices, edges, participates=None, wants_losses=False) -> RoundResult:
        """Train a round from a state; without `participates`, (Q, H), all devices take part."""
        if participates is None:
            participates = np.ones((self._edge_iterations, len(devices)), dtype=bool)
        task = RoundTask(index, Schedule(devices, edges), participates, wants_losses)
        return self.hierarchy.train_round(task, before)

    def train_round(self, index, model, devices, edges, participates=None) -> np.ndarray:
        """Return the global model after a round that begins with `model`."""
        return self.result(index, self.start(model), devices, edges, participates).state.model


def serial_rounds(job: LocalJob, data: DeviceData, edge_iterations: int, num_edges: int = NUM_EDGES) -> Rounds:
    """Return the hierarchy of this process."""
    return Rounds(SerialHierarchy(job, data, num_edges), edge_iterations)


def actor_rounds(
    job: LocalJob, data: DeviceData, edge_iterations: int, num_edges: int = NUM_EDGES, num_actors: int = 2,
    cpus_per_actor: float = 1.0, **options,
) -> Rounds:  # fmt: skip
    """Return a hierarchy of actors."""
    size = PoolSize(num_actors, cpus_per_actor)
    return Rounds(RayHierarchy(job, data, num_edges, size, **options), edge_iterations)


@contextmanager
def actors(job: LocalJob, data: DeviceData, edge_iterations: int, num_actors: int = 2, **options) -> Iterator[Rounds]:
    """Give a hierarchy of actors, which end with the block."""
    rounds = actor_rounds(
        job, data, edge_iterations, num_actors=num_actors, **{"cpus_per_actor": 2 / max(4, num_actors), **options}
    )
    try:
        yield rounds
    finally:
        rounds.close()


def task_of(round_index: int, edge_iteration: int, bits: int, groups: tuple[tuple[int, ...], ...]) -> EdgeTask:
    """Return the task to train ``groups[k]`` for edge k."""
    frames = [Frame("edge", k, round_index, edge_iteration, len(each), 1, 0, bits) for k, each in enumerate(groups)]
    return EdgeTask(
        round_index, edge_iteration, tuple(Share(frame, each) for frame, each in zip(frames, groups, strict=True))
    )


def exact_sums(host: DeviceHost, task: EdgeTask, *models: np.ndarray) -> list[np.ndarray]:
    """Train a task on a host, each share from its model; return the exact sum of each share's models."""
    statistics = len(models[0]) - sum(host._sizes)
    shares = (share._replace(frame=replace(share.frame, statistics=statistics)) for share in task.shares)
    *parts, _ = host.train(task._replace(shares=tuple(shares)), {}, *map(Version, models))
    return [part.part for part in parts]


def sums(host: DeviceHost, round_index: int, edge_iteration: int, bits: int, groups, *models) -> list[np.ndarray]:
    """Train ``groups[k]`` from ``models[k]`` on a host; return the exact sum of each group's models."""
    return exact_sums(host, task_of(round_index, edge_iteration, bits, groups), *models)
