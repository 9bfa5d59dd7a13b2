"""Algorithm 6 of the paper: schedule, assign, allocate, train, evaluate, until the target accuracy.

One object, one loop, one serialisable state. Simulated seconds and joules come from
`hflray.cost`; what this machine took is kept apart, under ``wall``.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hflray import metrics, registry
from hflray.allocation import Allocation, allocate_round
from hflray.assignment import configured_assigner
from hflray.config import MUTABLE, ExperimentConfig, flatten
from hflray.cost import RoundCost, Workload, round_cost
from hflray.errors import ConfigError, DivergedError
from hflray.grouping import group_devices
from hflray.models import ModelKind, build_model, init_vector, size_bits
from hflray.record import RoundRecord
from hflray.scenario import Scenario
from hflray.scheduling import Scheduler, build_scheduler
from hflray.seeding import stream
from hflray.training.backend import Backend
from hflray.training.hierarchy import Hierarchy
from hflray.training.local import LocalJob

log = logging.getLogger(__name__)

STATE_VERSION = 1
# Settings that may differ when a state is taken over: they say when to stop and where to run, not what is computed.
MAY_CHANGE = ("max_rounds", "target_accuracy", "tracking", "checkpoint", "data.root", "training.backend",
              "training.num_actors", "training.devices_per_actor", "training.autotune",
              "training.cuda_graph")  # fmt: skip


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
        settled: settings of ``training`` that have been measured elsewhere, such as in a sweep's driver.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        scenario: Scenario | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
        settled: Mapping[str, Any] | None = None,
    ) -> None:
        self.scenario = scenario or Scenario.build(config)
        dataset = self.scenario.dataset
        samples = self.scenario.fleet.samples
        self.backend = Backend(config, dataset.image_shape, dataset.num_classes, samples, cpus, gpus, settled)
        self._config = config.model_copy(update={"training": self.backend.training})
        model = build_model("hfl", dataset.image_shape, dataset.num_classes)
        self.global_model = init_vector(model, stream(config.seed, "model"))
        self.work = Workload.of(config, size_bits(model))
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
        self._next: _Planned | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors. The experiment can still be iterated: new ones start."""
        self.backend.close()

    @property
    def config(self) -> ExperimentConfig:
        """The configuration, with what has been settled on this machine so far (`resolve` settles the rest)."""
        return self._config

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
            samples_trained=self.backend.passes(self.scenario.fleet.samples[devices]),
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
        values = {}
        if self.clustering:
            values[metrics.CLUSTERING_ARI] = self.clustering["ari"]
            values[metrics.CLUSTERING_DELAY_S] = self.clustering["delay_s"]
            values[metrics.CLUSTERING_ENERGY_J] = self.clustering["energy_j"]
        if self.reached:
            values[metrics.ROUNDS_TO_TARGET] = self.reached["rounds"]
            values[metrics.OBJECTIVE_TO_TARGET] = self.reached["objective"]
        return values

    def resolve(self) -> ExperimentConfig:
        """Settle what is measured on this machine (``training.kernel``, ``training.threads``); return `config` with it.

        Done before anything is trained or saved; calling it earlier lets the resolved configuration be logged.
        """
        self._config = self._config.model_copy(update={"training": self.backend.settle()})
        return self._config

    @property
    def hierarchy(self) -> Hierarchy:
        """The backend that trains; started on first use."""
        if not self.backend.started:
            self.resolve()
        return self.backend.hierarchy(self.scenario.device_data)

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
        found = group_devices(
            self.config,
            self.scenario,
            self.work,
            self._scheduler_class.auxiliary,
            lambda model, data, vector: self.hierarchy.train_each(self.job(model, "clustering"), data, vector),
        )
        self.clusters, self.clustering = found.clusters, found.bill
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
        self._config = self._config.model_copy(update={"training": self.backend.take_over(theirs.training)})
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

    def job(self, model: ModelKind, stream_name: str = "batches") -> LocalJob:
        """How devices train `model`, with kernel and threads settled (see `resolve`)."""
        self.resolve()
        return self.backend.job(model, stream_name)


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
