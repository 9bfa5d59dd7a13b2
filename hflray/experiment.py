"""Algorithm 6 of the paper: schedule, assign, allocate, train, evaluate, until the target accuracy.

One object, one loop, one serialisable state. Simulated seconds and joules come from
`hflray.cost`; what this machine took is kept apart, under ``wall``.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hflray import metrics, registry
from hflray.allocation import Allocation, allocate_round
from hflray.assignment import configured_assigner
from hflray.config import MUTABLE, ExperimentConfig, flatten
from hflray.cost import RoundCost, Workload, round_cost
from hflray.data import preprocess
from hflray.data.partition import majority_classes
from hflray.errors import ConfigError, DivergedError
from hflray.models import build_model, init_vector, size_bits
from hflray.scenario import Scenario
from hflray.scheduling import Scheduler, build_scheduler, cluster_devices, clustering_cost
from hflray.seeding import stream
from hflray.training.autotune import resolve
from hflray.training.hierarchy import Hierarchy, RayHierarchy, SerialHierarchy, start_ray
from hflray.training.local import LocalJob
from hflray.training.plan import PoolSize, pool_size
from hflray.training.pool import processes_per_gpu
from hflray.training.processes import gpu_load, useful_cpus

log = logging.getLogger(__name__)

STATE_VERSION = 1
# Settings that may differ when a state is taken over: they say when to stop and where to run, not what is computed.
MAY_CHANGE = ("max_rounds", "target_accuracy", "tracking", "checkpoint", "data.root", "training.backend",
              "training.num_actors", "training.devices_per_actor", "training.autotune",
              "training.cuda_graph")  # fmt: skip


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What happened in one round.

    Attributes:
        round: i, from 1.
        accuracy, test_loss: of the global model after the round.
        devices, assignment: who was scheduled, sorted, and the edge of each, (H,).
        allocation: bandwidth and CPU frequency of each.
        cost: simulated delay and energy of this round.
        totals: ``delay_s``, ``energy_j``, ``objective``, ``message_bits`` summed from round 1.
        class_balance: see `hflray.metrics.class_balance`.
        samples_trained: samples passed through local training, over all edge and local iterations.
        model_hash: SHA-256 of the global model's float32 bytes.
        wall: seconds of this machine by phase: schedule_s, assign_s, allocate_s, train_s, evaluate_s. While actors
            evaluate, the next round may be scheduled, assigned and allocated here; that counts for the round it is
            for, and evaluate_s is what the evaluation took beyond it: all phases of all rounds add up to the time
            that passed.
        changed: settings that differ from the round before, ``{dotted key: [before, now]}``; see `load_state_dict`.
    """

    round: int
    accuracy: float
    test_loss: float
    devices: NDArray[np.intp]
    assignment: NDArray[np.intp]
    allocation: Allocation
    cost: RoundCost
    totals: dict[str, float]
    class_balance: float
    samples_trained: int
    model_hash: str
    wall: dict[str, float]
    changed: dict[str, list[Any]] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The round's entries of the glossary, by name."""
        cost = self.cost
        values = {
            metrics.ACCURACY: self.accuracy,
            metrics.TEST_LOSS: self.test_loss,
            metrics.CLASS_BALANCE: self.class_balance,
        }
        values |= {f"round/{name}": float(getattr(cost, name)) for name in self.totals}
        values |= {f"total/{name}": value for name, value in self.totals.items()}
        values |= {f"wall/{name}": value for name, value in self.wall.items()}
        for edge in range(len(cost.edge_devices)):
            values[metrics.edge_metric(edge, "delay_s")] = float(cost.edge_delay_s[edge])
            values[metrics.edge_metric(edge, "energy_j")] = float(cost.edge_energy_j[edge])
            values[metrics.edge_metric(edge, "devices")] = float(cost.edge_devices[edge])
        return values

    def schedule(self) -> dict[str, list[Any]]:
        """Who took part and what each was given, (H,) lists ready for JSON; all that the round's bill follows from."""
        return {
            "devices": self.devices.tolist(),
            "edges": self.assignment.tolist(),
            "bandwidth_hz": self.allocation.bandwidth_hz.tolist(),
            "cpu_hz": self.allocation.cpu_hz.tolist(),
        }


@dataclass(frozen=True, eq=False)
class _Planned:
    """A round up to its training, and what it was planned with.

    `scheduler` is as it will be once the round is run: a copy, so that the experiment's own stays as the round before
    left it, for `state_dict`.
    """

    round: int
    devices: NDArray[np.intp]
    assignment: NDArray[np.intp]
    allocation: Allocation
    cost: RoundCost
    wall: dict[str, float]
    scheduler: Scheduler
    inputs: tuple[object, ...]


class Experiment:
    """One experiment; iterate over it to run it.

    ::

        with Experiment(load_config("my.yaml")) as experiment:
            for record in experiment:
                print(record.round, record.accuracy, record.cost.objective)

    Args:
        config: the validated configuration.
        scenario: None builds it from the configuration; a caller that has it already saves the time.
        cpus: CPUs this experiment may use (a Tune trial's); None: all that Ray knows.
        gpus: GPUs its actors may use, or a part of one; None: all that Ray knows, or torch where there is no Ray.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        scenario: Scenario | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
    ) -> None:
        self.config, self._asked = config, config.training
        self.scenario = scenario or Scenario.build(config)
        dataset, seed = self.scenario.dataset, config.seed
        model = build_model("hfl", dataset.image_shape, dataset.num_classes)
        self.global_model = init_vector(model, stream(seed, "model"))
        self.work = Workload(
            model_bits=config.cost.model_bits or size_bits(model),
            local_iterations=config.training.local_iterations,
            edge_iterations=config.training.edge_iterations,
            delay_weight=config.cost.delay_weight,
        )
        self.allocate = partial(allocate_round, method=config.allocation.method, coupling=config.allocation.coupling)
        self.assigner = configured_assigner(config)
        self.round = 0
        self.totals = dict.fromkeys(("delay_s", "energy_j", "objective", "message_bits"), 0.0)
        self.clusters: NDArray[np.intp] | None = None
        self.clustering: dict[str, float] = {}
        self.reached: dict[str, float] = {}
        self.changes: list[dict[str, Any]] = []  # {"after_round": i, "changed": {dotted key: [before, now]}}
        self._scheduler: Scheduler | None = None
        self._scheduler_class: type[Scheduler] = registry.resolve("scheduler", config.scheduling.name)
        self._cpus, self._gpus = cpus, gpus
        self._hierarchy: Hierarchy | None = None
        self._next: _Planned | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors. The experiment can still be iterated: new ones start."""
        if self._hierarchy is not None:
            self._hierarchy.close()
            self._hierarchy = None

    @property
    def finished(self) -> bool:
        """True once the target accuracy or `max_rounds` is reached."""
        return bool(self.reached) or self.round >= self.config.max_rounds

    def __iter__(self) -> Iterator[RoundRecord]:
        while not self.finished:
            yield self.run_round()

    def run_round(self) -> RoundRecord:
        """Run one round.

        Raises:
            DivergedError: weights or loss are not finite.
            InfeasibleError: an edge's allocation failed.
            WorkerLostError: actors kept dying.
        """
        config, index = self.config, self.round + 1
        scheduler, hierarchy = self.scheduler, self.hierarchy  # clusters and starts actors, once, off the round's clock
        plan, self._next = self._next, None
        if plan is None or plan.round != index or not _same(plan.inputs, self._inputs):
            plan = self._plan(index, scheduler)
        self._scheduler = plan.scheduler
        devices, assignment, cost = plan.devices, plan.assignment, plan.cost
        clock = _Clock()
        model = hierarchy.train_round(index, self.global_model, devices, assignment)
        clock.lap("train_s")
        accuracy, loss = hierarchy.evaluate(model, self._look_ahead if self._may_look_ahead(index) else None)
        clock.lap("evaluate_s")
        if self._next is not None:
            clock.laps["evaluate_s"] -= sum(self._next.wall.values())
        if not math.isfinite(loss):
            raise DivergedError(f"round {index}: the test loss is {loss}; lower training.learning_rate")

        self.round, self.global_model = index, model
        self.totals = {name: total + float(getattr(cost, name)) for name, total in self.totals.items()}
        target = config.target_accuracy
        if target is not None and accuracy >= target and not self.reached:
            self.reached = {"rounds": float(index), "objective": self.totals["objective"]}
        return RoundRecord(
            round=index,
            accuracy=accuracy,
            test_loss=loss,
            devices=devices,
            assignment=assignment,
            allocation=plan.allocation,
            cost=cost,
            totals=self.totals,
            class_balance=metrics.class_balance(self.scenario.class_counts[devices].sum(axis=0)),
            samples_trained=self._passes_per_round(devices),
            model_hash=hashlib.sha256(model.tobytes()).hexdigest(),
            wall=plan.wall | clock.laps,
            changed=next((c["changed"] for c in self.changes if c["after_round"] == index - 1), {}),
        )

    @property
    def _inputs(self) -> tuple[object, ...]:
        """What a round's plan depends on besides its number: a plan made with others is made again."""
        return self._scheduler, self.assigner, self.allocate, self.scenario, self.work, self.config.seed

    def _plan(self, index: int, scheduler: Scheduler) -> _Planned:
        """Schedule, assign and allocate a round, moving `scheduler` on."""
        fleet, seed, inputs = self.scenario.fleet, self.config.seed, self._inputs
        clock = _Clock()
        devices = scheduler.schedule(stream(seed, "schedule", index))
        clock.lap("schedule_s")
        assignment = self.assigner.assign(fleet, self.work, devices, stream(seed, "assign", index))
        clock.lap("assign_s")
        allocation = self.allocate(fleet, self.work, devices, assignment)
        cost = round_cost(fleet, self.work, devices, assignment, allocation)
        clock.lap("allocate_s")
        return _Planned(index, devices, assignment, allocation, cost, clock.laps, scheduler, inputs)

    def _may_look_ahead(self, index: int) -> bool:
        """Whether a next round is sure enough, and the assigner may work while actors do.

        One that is given milliseconds answers worse when it shares the CPUs.
        """
        section = self.config.assignment
        timed = section.budget_ms is not None or isinstance(section.polish_ms, float | int) or section.options
        return index < self.config.max_rounds and not timed

    def _look_ahead(self) -> None:
        """Plan the round after the one that is being evaluated, on a copy of the scheduler."""
        try:
            self._next = self._plan(self.round + 2, copy.deepcopy(self.scheduler))
        except Exception as error:  # it belongs to that round, which will meet it again
            log.debug("round %d is not planned ahead: %s", self.round + 2, error)

    def devices(self) -> dict[str, list[Any]]:
        """What the data and Algorithm 2 made of the devices, lists of N ready for JSON; the rest of the fleet is drawn.

        ``samples``, ``class_counts`` (N of C each), and ``clusters`` if there are any.
        """
        scenario = self.scenario
        known = {"samples": scenario.class_counts.sum(axis=1).tolist(), "class_counts": scenario.class_counts.tolist()}
        return known if self.clusters is None else known | {"clusters": self.clusters.tolist()}

    def summary(self) -> dict[str, float]:
        """The entries of the glossary known at the end; the target's only if it was reached."""
        values = {f"clustering/{name}": value for name, value in self.clustering.items()}
        if self.reached:
            values[metrics.ROUNDS_TO_TARGET] = self.reached["rounds"]
            values[metrics.OBJECTIVE_TO_TARGET] = self.reached["objective"]
        return values

    def resolve(self) -> ExperimentConfig:
        """Settle what is measured on this machine (``training.kernel``, ``training.threads``); return `config` with it.

        Done before anything is trained or saved; calling it earlier lets the resolved configuration be logged.
        """
        training = resolve(self.config.training, *self._measured(), gpus=self._gpus_there())
        self.config = self.config.model_copy(update={"training": training})
        return self.config

    def _measured(self) -> tuple[tuple[int, int, int], int, int]:
        """What a measurement depends on: image shape, classes, sample passes in a round."""
        config, dataset = self.config, self.scenario.dataset
        load = math.ceil(self.scenario.fleet.samples.mean() * config.scheduling.num_scheduled)
        passes = load * config.training.local_iterations * config.training.edge_iterations
        return dataset.image_shape, dataset.num_classes, passes

    def _gpus_there(self) -> float | None:
        """GPUs for this experiment's actors; None: what torch finds in this process."""
        training = self.config.training
        if self._gpus is not None or training.device == "cpu" or training.backend == "serial":
            return self._gpus
        import ray

        if not (ray.is_initialized() or os.environ.get("RAY_ADDRESS")):
            return None
        start_ray()
        return float(ray.cluster_resources().get("GPU", 0.0))

    def _pool(self, cpus: int) -> PoolSize:
        """The size of the pool on these CPUs, or on the GPUs there are; measured, unless the configuration says it."""
        config, scheduled = self.config.training, self.config.scheduling.num_scheduled
        shape, classes, passes = self._measured()
        measured = config.autotune and config.num_actors is None and config.devices_per_actor is None
        if config.device == "cuda":
            gpus = self._gpus_there() or 0.0
            at_once = math.ceil(scheduled / max(1.0, gpus))
            per_gpu = processes_per_gpu(gpu_load(config, shape, classes, at_once), min(1.0, gpus)) if measured else 1
            return pool_size(config, scheduled, cpus, gpus, per_gpu)
        return pool_size(config, scheduled, useful_cpus(config, shape, classes, passes, cpus) if measured else cpus)

    @property
    def hierarchy(self) -> Hierarchy:
        """The backend that trains; started on first use."""
        if self._hierarchy is None:
            config, data = self.resolve().training, self.scenario.device_data()
            if config.backend == "serial":
                self._hierarchy = SerialHierarchy(self.job("hfl"), data, config.edge_iterations)
            else:
                pool = self._pool(self._cpus or start_ray())
                self._hierarchy = RayHierarchy(
                    self.job("hfl"), data, config.edge_iterations, self.config.fleet.num_edges, *pool
                )
        return self._hierarchy

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; made on first use, because the clustering (Algorithm 2) it may need trains models."""
        if self._scheduler is None:
            if self._scheduler_class.auxiliary is not None and self.clusters is None:
                self.cluster()
            self._scheduler = build_scheduler(
                self.config.scheduling.name,
                num_devices=self.config.fleet.num_devices,
                num_scheduled=self.config.scheduling.num_scheduled,
                clusters=self.clusters,
                **self.config.scheduling.options,
            )
        return self._scheduler

    def cluster(self) -> NDArray[np.intp]:
        """Run Algorithm 2: train the scheduler's auxiliary model on every device, K-means on the weights, and the bill.

        Returns:
            The cluster of each device, (N,). Its ARI (against the true majority classes), delay and energy go to
            `clustering`.
        """
        config, scenario = self.config, self.scenario
        dataset = scenario.dataset
        if self._scheduler_class.auxiliary == "mini":
            inputs = preprocess(dataset.x_train, config.data.preprocess, stream(config.seed, "mini-inputs"))
            job, data = self.job("mini", stream_name="clustering"), scenario.device_data(inputs)
            module = build_model("mini", (1, *inputs.shape[2:]), dataset.num_classes)
            vector, bits = init_vector(module, stream(config.seed, "mini-model")), float(size_bits(module))
        else:  # the global model's architecture and initial weights (Algorithm 3, line 2)
            job, data = self.job("hfl", stream_name="clustering"), scenario.device_data()
            vector = init_vector(
                build_model("hfl", dataset.image_shape, dataset.num_classes), stream(config.seed, "model")
            )
            bits = self.work.model_bits
        trained = self.hierarchy.train_each(job, data, vector)
        count = config.scheduling.num_clusters or dataset.num_classes
        self.clusters = cluster_devices(trained, count, config.seed)
        truth = majority_classes(scenario.parts, dataset.y_train, dataset.num_classes)
        bill = config.scheduling.clustering_bill
        cost = clustering_cost(
            scenario.fleet,
            bits,
            self.work.local_iterations,
            self.work.delay_weight,
            partial(allocate_round, method=config.allocation.method),
            edge_iterations=self.work.edge_iterations if bill.edge_iterations == "Q" else 1,
            max_cpu=bill.cpu == "max",
        )
        self.clustering = {
            "ari": metrics.adjusted_rand_index(self.clusters, truth),
            "delay_s": cost.delay_s,
            "energy_j": cost.energy_j,
        }
        return self.clusters

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on: one NumPy array (``global_model``), the rest ready for JSON.

        There is no generator state in it: every random stream is a function of the seed and the round.
        """
        return {
            "version": STATE_VERSION,
            "config": self.resolve().model_dump(mode="json"),
            "round": self.round,
            "global_model": self.global_model.copy(),
            "totals": dict(self.totals),
            "clusters": None if self.clusters is None else self.clusters.tolist(),
            "clustering": dict(self.clustering),
            "reached": dict(self.reached),
            "changes": [dict(change) for change in self.changes],
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], may_change: Collection[str] = ()) -> None:
        """Take over a state made by `state_dict`: the run goes on bit for bit as the other would have.

        Args:
            state: the state.
            may_change: settings, among `hflray.config.MUTABLE`, that may differ: the run goes on from that state with
                its own. What differed is kept in `changes`, in later states, and in the next round's record.

        Raises:
            ConfigError: another version, or a configuration that would have computed something else.
        """
        if refused := [key for key in may_change if key not in MUTABLE]:
            raise ConfigError(f"{refused[0]}: cannot change between rounds; accepted: {', '.join(MUTABLE)}")
        if state.get("version") != STATE_VERSION:
            raise ConfigError(f"state: version {state.get('version')}; this hflray reads version {STATE_VERSION}")
        theirs = ExperimentConfig.model_validate(state["config"])
        self._take_over_kernel(theirs)
        changed = _check_same_run(self.config, theirs, may_change)
        model = np.array(state["global_model"], dtype=np.float32)
        if model.shape != self.global_model.shape:
            raise ConfigError(f"state: a model of {model.size} weights; this one has {self.global_model.size}")
        self.round, self.global_model = int(state["round"]), model
        self.totals, self.reached = dict(state["totals"]), dict(state["reached"])
        self.clustering = dict(state["clustering"])
        self.changes = [dict(change) for change in state.get("changes", ())]
        if changed:
            self.changes.append({"after_round": self.round, "changed": changed})
        self.clusters = None if state["clusters"] is None else np.array(state["clusters"], dtype=np.intp)
        self._scheduler = self._next = None
        if state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def _take_over_kernel(self, theirs: ExperimentConfig) -> None:
        """What was left to measurement is what the saved run used."""
        asked = self._asked
        update = {
            name: getattr(theirs.training, name)
            for name, open_value in (("kernel", "auto"), ("threads", None), ("device", "auto"))
            if getattr(asked, name) == open_value
        }
        self.close()  # its actors may run another kernel
        self.config = self.config.model_copy(update={"training": self.config.training.model_copy(update=update)})

    def job(self, model: Any, stream_name: str = "batches") -> LocalJob:
        """How devices train `model` ("hfl" or "mini"), with kernel and threads settled (see `resolve`)."""
        config, dataset = self.resolve().training, self.scenario.dataset
        assert config.kernel != "auto"
        assert config.threads is not None
        assert config.device != "auto"
        return LocalJob(
            model=model,
            image_shape=dataset.image_shape,
            num_classes=dataset.num_classes,
            seed=self.config.seed,
            stream=stream_name,
            local_iterations=config.local_iterations,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            local_iteration=config.local_iteration,
            kernel=config.kernel,
            precision=config.precision,
            threads=config.threads,
            device=config.device,
            cuda_graph=config.cuda_graph,
        )

    def _passes_per_round(self, devices: NDArray[np.intp]) -> int:
        config = self.config.training
        samples = self.scenario.fleet.samples[devices]
        if config.local_iteration == "step":
            samples = np.minimum(samples, config.batch_size)
        return int(samples.sum()) * config.local_iterations * config.edge_iterations


def _same(some: tuple[object, ...], others: tuple[object, ...]) -> bool:
    """Whether they are the same objects."""
    return all(a is b for a, b in zip(some, others, strict=True))


class _Clock:
    """Wall-clock seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


def _check_same_run(
    mine: ExperimentConfig, other: ExperimentConfig, may_change: Collection[str]
) -> dict[str, list[Any]]:
    """Settings among `may_change` that differ, {key: [theirs, ours]}; ConfigError if any other differs."""
    ours, theirs = flatten(mine.model_dump(mode="json")), flatten(other.model_dump(mode="json"))
    changed = {}
    for key in ours:
        if ours[key] == theirs.get(key) or any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE):
            continue
        if key not in may_change:
            raise ConfigError(
                f"{key}: the saved state was made with {theirs.get(key)!r}, this configuration has {ours[key]!r}; "
                "resume with the same configuration, or start anew"
            )
        changed[key] = [theirs.get(key), ours[key]]
    return changed
