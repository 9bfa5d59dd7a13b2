"""Contestants (c) and (d): hflray. The arguments are data, serial or ray, number of actors, kernel and precision.

The kernel `peers` puts the very gradient step of the other contestants (`common.step`) into hflray's hosts: what is
left between that row and theirs is the platform's, and what is between it and hflray's own row is the kernel's.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import LEARNING_RATE, Work, flat, load, serve, step
from networks import NETWORKS

from hflray.cost import Schedule
from hflray.models.problem import ModelSpec, Problem
from hflray.training.hierarchy import RayHierarchy, SerialHierarchy, start_ray
from hflray.training.job import DeviceData, LocalJob
from hflray.training.plan import PoolSize
from hflray.training.state import RoundTask, TrainingState

NUM_OUTPUTS = {"paper_cnn": 10, "resnet8": 10, "gru": 96}
Setting = tuple[int, int]  # L and the batch size


class PeersKernel:
    """The peers' model and step behind the interface of hflray's kernels (`hflray.training.kernels.Kernel`)."""

    def __init__(self, model: str) -> None:
        self._net = NETWORKS[model]()

    def load(self, vector: np.ndarray) -> None:
        load(self._net, vector)
        self._optimiser = torch.optim.SGD(self._net.parameters(), lr=LEARNING_RATE)  # one for each device, as theirs

    def vector(self) -> np.ndarray:
        return flat(self._net)

    def hold(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._x, self._y = x, y

    def step(self, batch: np.ndarray) -> None:
        chosen = torch.from_numpy(batch)
        step(self._net, self._optimiser, self._x[chosen], self._y[chosen])


def take_peers_kernel(worker) -> None:
    """Make a host of devices, or an actor that has one, train with the peers' step."""
    host = getattr(worker, "_host", worker)
    host._kernel = PeersKernel(host._job.problem.model.name)


def about(worker) -> tuple[str, int]:
    """Return the kernel and the number of torch threads of a host of devices, or of an actor that has one."""
    host = getattr(worker, "_host", worker)
    name = "peers" if type(host._kernel).__name__ == "PeersKernel" else host._job.kernel
    return name, host._job.threads


def main() -> None:
    """Serve the driver."""
    work, backend, actors, kernel, precision = Work(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:6]
    data = DeviceData(
        x=work.x,
        y=work.y,
        index=np.arange(len(work.y)),
        offsets=work.offsets,
        x_test=work.x[:0],
        y_test=work.y[:0],
        channel_mean=work.mean,
        channel_std=work.std,
    )
    problem = Problem(work.x.shape[1:], NUM_OUTPUTS[work.model], model=ModelSpec(work.model))
    weights, index, said = work.start, 0, {}
    running: dict[Setting, RayHierarchy | SerialHierarchy] = {}

    def ask(hierarchy: RayHierarchy, question) -> list:
        import ray

        return ray.get([actor.__ray_call__.remote(question) for actor in hierarchy.pool.devices])

    def hierarchy(setting: Setting) -> RayHierarchy | SerialHierarchy:
        """One backend for each setting; an experiment has only one."""
        if setting in running:
            return running[setting]
        local_iterations, batch_size = setting
        job = LocalJob(
            problem, seed=0, local_iterations=local_iterations, batch_size=batch_size,
            learning_rate=LEARNING_RATE, kernel="eager" if kernel == "peers" else kernel, precision=precision,
        )  # fmt: skip
        if backend == "serial":
            made = SerialHierarchy(job, data, 1)
            if kernel == "peers":
                take_peers_kernel(made.pool.devices[0])
        else:
            for other in running.values():
                other.close()
            running.clear()
            made = RayHierarchy(job, data, 1, PoolSize(actors, 1.0))
            made.pool.refresh()
            if kernel == "peers":
                ask(made, take_peers_kernel)
            made.train_each(job, data, work.start)
        running[setting] = made
        return made

    def train_round(local_iterations: int, batch_size: int) -> np.ndarray:
        nonlocal weights, index
        index += 1
        everyone = np.arange(work.devices)
        chosen = hierarchy((local_iterations, batch_size))
        participates = np.ones((1, len(everyone)), dtype=bool)
        setting = chosen.setting
        before = TrainingState.first(setting.method, weights, sum(setting.sizes), setting.num_edges)
        result = chosen.train_round(RoundTask(index, Schedule(everyone, np.zeros_like(everyone)), participates), before)
        weights = result.state.model
        serial = isinstance(chosen, SerialHierarchy)
        kernels = {about(chosen.pool.devices[0])} if serial else set(ask(chosen, about))
        ((said["kernel"], said["threads"]),) = kernels
        return weights

    if backend == "ray":
        start_ray(actors)
    serve(train_round, note=lambda: said)


if __name__ == "__main__":
    main()
