"""(c) and (d): hflray. Arguments: data, serial or ray, number of actors, kernel, precision."""

from __future__ import annotations

import sys
import time

import numpy as np
from common import LEARNING_RATE, MEAN, STD, Work, serve

from hflray.training.hierarchy import RayHierarchy, SerialHierarchy, start_ray
from hflray.training.local import DeviceData, LocalJob

work, backend, actors, kernel, precision = Work(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
data = DeviceData(
    x=work.x,
    y=work.y,
    index=np.arange(len(work.y)),
    offsets=work.offsets,
    x_test=work.x[:0],
    y_test=work.y[:0],
    channel_mean=np.float32([MEAN]),
    channel_std=np.float32([STD]),
)
weights, index, ray_share = work.start, 0, 0.0
running: dict[tuple[int, int], object] = {}


def hierarchy(local_iterations: int, batch_size: int):
    """One backend for each setting; an experiment has only one."""
    if (local_iterations, batch_size) not in running:
        job = LocalJob(
            "hfl", (1, 28, 28), 10, seed=0, local_iterations=local_iterations, batch_size=batch_size,
            learning_rate=LEARNING_RATE, kernel=kernel, precision=precision,
        )  # fmt: skip
        if backend == "serial":
            made = SerialHierarchy(job, data, edge_iterations=1)
        else:
            for other in running.values():
                other.close()
            running.clear()
            made = RayHierarchy(job, data, 1, num_edges=1, num_actors=actors)
            made.train_each(job, data, work.start)
        running[local_iterations, batch_size] = made
    return running[local_iterations, batch_size]


def busy() -> list[float]:
    """Seconds that each actor has spent in training so far."""
    import ray

    workers = [actor for hierarchy in running.values() for actor in hierarchy.pool.devices]
    return [seconds for _, seconds in ray.get([actor.about.remote() for actor in workers])]


def train_round(local_iterations: int, batch_size: int) -> np.ndarray:
    global weights, index, ray_share
    index += 1
    everyone, backend_now = np.arange(work.devices), hierarchy(local_iterations, batch_size)
    before = busy() if backend == "ray" else []
    begin = time.perf_counter()
    weights = backend_now.train_round(index, weights, everyone, np.zeros_like(everyone))
    seconds = time.perf_counter() - begin
    if before:  # what the round took beyond the actor that was busy longest
        ray_share = 1 - max(b - a for a, b in zip(before, busy(), strict=True)) / seconds
    return weights


if backend == "ray":
    start_ray(actors)
serve(train_round, note=lambda: f"{ray_share:.4f}" if backend == "ray" else "")
