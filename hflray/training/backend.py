"""The training backend of an experiment: its kernel, threads, device and pool, chosen where they are left open."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.config import ExperimentConfig, TrainingConfig
from hflray.fleet.tree import CLOUD_ALONE, Tree
from hflray.models.problem import Problem
from hflray.training.hierarchy import Hierarchy, RayHierarchy, SerialHierarchy
from hflray.training.job import DeviceData, LocalJob, sample_passes
from hflray.training.kernels import IN_C, fixed_kernel, settled
from hflray.training.method import Method
from hflray.training.plan import PoolSize, pool_size
from hflray.training.rules.own import OwnTraining
from hflray.training.start import start_ray

LEFT_OPEN = {"kernel": "auto", "threads": None, "device": "auto"}  # values that ask for a choice


class Backend:
    """Settle the settings of an experiment that are left open, and start the processes that train.

    Args:
        config: the experiment's configuration.
        problem: what it learns.
        samples: D_n of its devices, (N,).
        cpus: the number of CPUs that it may use; None: all CPUs that Ray knows.
        gpus: the number of GPUs that its actors may use, which may be a part of one; None: all GPUs that Ray knows, or
            that torch finds where Ray does not run.
        settled: settings of ``training`` that have been settled elsewhere.
        keep_actors: `close` leaves the actors to this process's next experiment.
        tree: what lies above the edges.

    Attributes:
        training: the configuration's section ``training``, with the settings that are settled so far.
        method: what happens inside a round.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        problem: Problem,
        samples: NDArray[np.float64],
        cpus: int | None = None,
        gpus: float | None = None,
        settled: Mapping[str, Any] | None = None,
        keep_actors: bool = False,
        tree: Tree = CLOUD_ALONE,
    ) -> None:
        self._keep, self._tree = keep_actors, tree
        self.training = config.training.model_copy(update=dict(settled or {}))
        self._config, self._samples, self._cpus, self._gpus = config, samples, cpus, gpus
        self._problem, self.method = problem, Method.of(config)
        self._hierarchy: Hierarchy | None = None

    def settle(self) -> TrainingConfig:
        """Settle ``training.kernel``, ``training.threads`` and ``training.device``; return `training` with them.

        Raises:
            HflrayError: see `hflray.training.kernels.settled`.
        """
        gpus = self.available_gpus()
        own_training = isinstance(self.method.parts().rule, OwnTraining)
        passes = self._passes_per_round()
        self.training = settled(self.training, self._problem, passes, gpus, own_training)
        return self.training

    def take_over(self, saved: TrainingConfig) -> TrainingConfig:
        """Reuse a saved run's kernel, threads and device where ours are left open; return `training`."""
        ours = self._config.training
        update = {name: getattr(saved, name) for name, value in LEFT_OPEN.items() if getattr(ours, name) == value}
        self.close()  # its actors may run another kernel
        self.training = self.training.model_copy(update=update)
        return self.training

    def hierarchy(self, data: Callable[[], DeviceData]) -> Hierarchy:
        """Return the hierarchy that trains. The first call starts it with the samples that `data` returns.

        Everything must be settled.
        """
        if self._hierarchy is None:
            job, edges = self.job(), self._config.fleet.num_edges
            if self.training.backend == "serial":
                self._hierarchy = SerialHierarchy(job, data(), edges, self._tree)
            else:
                pool = self.pool(self._cpus or start_ray())
                self._hierarchy = RayHierarchy(job, data(), edges, pool, self._keep, self._tree)
        return self._hierarchy

    @property
    def started(self) -> bool:
        """Whether the processes that train have been started."""
        return self._hierarchy is not None

    def close(self) -> None:
        """End the processes that train; `hierarchy` starts them again."""
        if self._hierarchy is not None:
            self._hierarchy.close()
            self._hierarchy = None

    def job(self, problem: Problem | None = None, stream_name: str = "batches") -> LocalJob:
        """Return how devices train for a problem; None: the experiment's. Everything must be settled."""
        training = self.training
        assert training.kernel != "auto"
        assert training.threads is not None
        assert training.device != "auto"
        problem, kernel = problem or self._problem, training.kernel
        # The C code of the experiment's kernel does not know every auxiliary network.
        if problem != self._problem and kernel in IN_C:
            kernel = fixed_kernel(problem, training.precision)
        values: dict[str, Any] = {
            "problem": problem, "seed": self._config.seed, "stream": stream_name, "kernel": kernel,
            "method": self.method if stream_name == "batches" else Method(),
            "edge_iterations": self._config.round_iterations,
        }  # fmt: skip
        names = (part.name for part in fields(LocalJob))
        return LocalJob(**values, **{name: getattr(training, name) for name in names if name not in values})

    def passes(self, samples: NDArray[np.float64], participates: NDArray[np.bool_]) -> int:
        """Return the sample passes of a round.

        Args:
            samples: D_n of the scheduled devices, (H,).
            participates: whether a device takes part in an edge iteration, (Q, H).
        """
        return sample_passes(self.training, samples * participates)

    def available_gpus(self) -> float | None:
        """Return the number of GPUs for this experiment's actors; None: those that torch finds in this process."""
        training = self.training
        if self._gpus is not None or training.device == "cpu" or training.backend == "serial":
            return self._gpus
        import ray

        if not (ray.is_initialized() or os.environ.get("RAY_ADDRESS")):
            return None
        start_ray()
        return float(ray.cluster_resources().get("GPU", 0.0))

    def pool(self, cpus: int) -> PoolSize:
        """Return the size of the pool on these CPUs, or on the available GPUs."""
        gpus = self.available_gpus() or 0.0 if self.training.device == "cuda" else 0.0
        return pool_size(self.training, self._config.scheduling.num_scheduled, cpus, gpus)

    def _passes_per_round(self) -> int:
        """Return the sample passes of a round whose devices have the mean number of samples."""
        load: int = math.ceil(self._samples.mean() * self._config.scheduling.num_scheduled)
        return load * self.training.local_iterations * self._config.round_iterations
