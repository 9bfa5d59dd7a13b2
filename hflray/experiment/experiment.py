"""Algorithm 6 of the paper: schedule, assign, allocate, train, evaluate, until the target accuracy.

An experiment is one object with one loop and one serialisable state. Simulated seconds and joules come from
`hflray.cost`. Measured seconds of this machine are separate, under ``wall``.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Annotated, Any, Concatenate, ParamSpec, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from hflray import metrics
from hflray.aggregation import FloatVector
from hflray.allocation import allocate_round, compile_kernels
from hflray.assignment import check_any_edges, check_once, configured_assigner
from hflray.config import COUNTED, MUTABLE, ExperimentConfig, changed_settings, validate_stored
from hflray.cost import RoundCost, Schedule, Workload
from hflray.errors import ConfigError, DamagedError
from hflray.experiment.grouping import group_devices
from hflray.experiment.observers import Accountant, Conditions, UsersObserver, Watcher
from hflray.experiment.planning import Planner
from hflray.experiment.record import PhaseClock, PlannedRound, RoundRecord, restored, state_of
from hflray.experiment.scenario import Scenario
from hflray.experiment.target import Scores, Target
from hflray.losses import METRIC_OF, check_loss
from hflray.models import build, initial_vector, is_papers
from hflray.models.problem import Problem
from hflray.models.vector import BITS_PER_PARAMETER
from hflray.models.vector import trained as trained_tensors
from hflray.scheduling import DeviceHistory, Scheduler, configured_scheduler, keeps_past, scheduler_class
from hflray.support import references
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.reader import fit
from hflray.timeline import Durations, Hops, Timeline, timeline
from hflray.training.backend import Backend
from hflray.training.hierarchy import Hierarchy
from hflray.training.job import LocalJob
from hflray.training.machine import memory_bytes
from hflray.training.method import Sender, check_revision, check_surroundings
from hflray.training.network_check import check_network
from hflray.training.state import RoundResult, RoundTask, TrainingState
from hflray.world import World
from hflray.world.turns import PlannedTurns, UnderWay

log = logging.getLogger(__name__)

STATE_VERSION = 1
WRONG = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)  # what a state of a wrong type raises
Count = Annotated[int, Field(ge=0, lt=2**53)]
P = ParamSpec("P")


class StateContent(BaseModel):
    """The values of a state that every round uses, see `Experiment.state_dict`."""

    config: dict[str, Any]
    rule_revision: int = 1
    round: Count
    totals: dict[str, float]
    clusters: list[Count] | None
    clustering: dict[str, float]
    reached: dict[str, float]
    changes: list[dict[str, Any]] = []
    scheduler: dict[str, Any] | None


def _refuses_others(load: Callable[Concatenate[Any, Mapping[str, Any], P], None]) -> Callable[..., None]:
    """Let a method that loads a state refuse one with a value of a wrong type, such as a stranger's.

    The method raises DamagedError then. An error in a file of the user's own stays as it is.
    """

    @wraps(load)
    def loading(self: Any, state: Mapping[str, Any], *rest: P.args, **named: P.kwargs) -> None:
        try:
            if "round" in state or "config" in state:  # otherwise the method names the version
                fit(StateContent, {name: part for name, part in state.items() if not isinstance(part, np.ndarray)})
            load(self, state, *rest, **named)
        except WRONG as error:
            if references.blame(error) is not None:
                raise
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise DamagedError(f"state: not a whole one ({reason}); remove it, or give another") from error

    return loading


class Experiment:
    """One experiment. Iterating over it runs it.

    Args:
        config: the validated configuration.
        scenario: the scenario of the configuration, if the caller has it already; None builds it.
        cpus: the number of CPUs that the experiment may use, such as a Tune trial's; None stands for all of Ray's.
        gpus: the number of GPUs that the actors may use, or a part of one; None stands for all of Ray's, or for
            torch's if there is no Ray.
        settled: settings of ``training`` that were measured elsewhere, such as in a sweep's driver.
        keep_actors: `close` leaves the actors to the next experiment of the same shape in this process.

    Examples:
        >>> from hflray import Experiment, load_config
        >>> tiny = ["fleet.num_devices=4", "fleet.num_edges=2", "scheduling.name=fedavg", "scheduling.num_scheduled=2"]
        >>> tiny += ["assignment.name=geographic", "training.backend=serial", "model.name=logistic", "max_rounds=2"]
        >>> with Experiment(load_config(None, tiny)) as experiment:
        ...     for record in experiment:
        ...         print(record.round, record.devices.tolist(), record.accuracy > 0.1)
        1 [2, 3] True
        2 [2, 3] True
    """

    def __init__(
        self,
        config: ExperimentConfig,
        scenario: Scenario | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
        settled: Mapping[str, Any] | None = None,
        keep_actors: bool = False,
    ) -> None:
        self.is_given_a_scenario = scenario is not None
        self.scenario = scenario or Scenario.build(config)
        config = self.scenario.fitting(config)
        self.problem = Problem.of(self.scenario.dataset, config)
        check_loss(self.problem.loss, self.problem.kind, self.problem.num_outputs)
        self.target = Target.of(config, self.scenario.dataset, self.scenario.validation)
        fleet = self.scenario.fleet
        self.backend = Backend(config, self.problem, fleet.samples, cpus, gpus, settled, keep_actors, fleet.tree)
        self._config = config.model_copy(update={"training": self.backend.training})
        if not is_papers(self.problem):
            check_network(self.problem, config.training, config.seed, self.scenario.device_data())
        network = build(self.problem, config.seed)
        sizes = tuple(tensor.numel() for tensor in trained_tensors(network))
        model = initial_vector(self.problem, config.seed, network=network)
        self.training = TrainingState.first(self.backend.method, model, sum(sizes), config.fleet.num_edges)
        self.work = self._workload(sizes)
        self.allocate = partial(allocate_round, method=config.allocation.method, coupling=config.allocation.coupling)
        self.assigner = configured_assigner(config)
        self.world = World(config, fleet)
        if self.world.edges is not None:
            check_any_edges(self.assigner)
        self.turns = PlannedTurns.of(config, self.work)
        self.under_way = UnderWay.first(config.fleet.num_edges)
        check_surroundings(self.backend.method, config)
        self.round = 0
        self.totals = dict.fromkeys(("delay_s", "energy_j", "objective", "message_bits"), 0.0)
        self.record: RoundRecord | None = None  # of the round before, if the scheduler looks back
        self.clusters: NDArray[np.intp] | None = None
        self.clustering: dict[str, float] = {}
        self.changes: list[dict[str, Any]] = []  # {"after_round": i, "changed": {dotted key: [before, now]}}
        self._scheduler: Scheduler | None = None
        self._scheduler_class = scheduler_class(config.scheduling.name)
        check_once(config, self._scheduler_class)
        self.history = DeviceHistory(config.fleet.num_devices, keeps_past(config))
        least = self.backend.method.parts().edge.least
        conditions = Conditions(config, self.scenario.class_counts, least, lambda: self.history)
        account = [] if config.privacy.clip is None else [Accountant(config)]
        self.observers: list[Watcher] = [*account, conditions, self.target, *UsersObserver.all_of(config)]
        if self._scheduler_class.auxiliary is None:
            configured_scheduler(config, None)  # a wrong option is an error before anything starts
        elif config.scheduling.options:
            configured_scheduler(config, np.zeros(config.fleet.num_devices, dtype=np.intp))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the actors. Iterating again starts new actors."""
        self.backend.close()

    @property
    def config(self) -> ExperimentConfig:
        """The configuration with the settings that are settled on this machine so far; `resolve` settles all."""
        return self._config

    @property
    def global_model(self) -> FloatVector:
        """The global model after the last round, (P,) float32."""
        return self.training.model

    @global_model.setter
    def global_model(self, model: FloatVector) -> None:
        self.training = replace(self.training, model=model)

    def _workload(self, sizes: tuple[int, ...]) -> Workload:
        """Return the work of a round; what is sent follows from the `sizes` of the network's trained tensors."""
        whole_bits = float(BITS_PER_PARAMETER * len(self.global_model))
        method, statistics = self.backend.method, len(self.global_model) - sum(sizes)
        places: tuple[Sender, ...] = "device", "edge", "region"
        device_bits, edge_bits, region_bits = (
            method.sent_bits(place, sizes, statistics, self._config.round_iterations) for place in places
        )
        self._check_memory(sum(sizes))
        down_bits = method.download_bits(sizes, statistics, self.training.rule)
        whole = Workload.of(self._config, whole_bits, download_bits=down_bits)
        work = Workload.of(self._config, whole_bits, device_bits, edge_bits, region_bits, down_bits)
        work = work.with_masks(self._config)
        bits = work.device_bits, work.edge_bits, *([work.region_bits] if self._config.tree.region else [])
        self._sent_bits = None if work == whole else bits
        return work

    def _check_memory(self, size: int) -> None:
        """Raise ConfigError if this machine cannot hold what devices and edges keep of `size` numbers."""
        config, method = self._config, self.backend.method
        needed = method.kept_bytes(size, config.fleet.num_devices, config.fleet.num_edges)
        if needed and needed > (total := memory_bytes()[0]):
            raise ConfigError(
                f"training.rule.name, compression: devices and edges would keep {needed / 2**30:,.1f} GiB beside their "
                f"models, {size:,} numbers of 4 bytes each a vector, for fleet.num_devices = "
                f"{config.fleet.num_devices:,}; accepted: what this machine's {total / 2**30:,.1f} GiB hold; lower "
                "fleet.num_devices, or take a smaller network, another rule or another compressor"
            )

    @property
    def finished(self) -> bool:
        """Whether the run has ended; see `ended_by`."""
        return bool(self.ended_by)

    @property
    def ended_by(self) -> str:
        """What ends the run here, ``max_rounds`` or the name of an observer; empty: it goes on.

        For observers that look at plans, the next round is planned here, with copies of them and of the scheduler.

        Raises:
            ConfigError: an observer ends the run before its first round.
        """
        if self.round >= self.config.max_rounds:
            return "max_rounds"
        ending = [observer for observer in self.observers if observer.stops()]
        foreseeing = [] if ending else [copy.deepcopy(observer) for observer in self.observers if observer.foresees]
        if foreseeing:
            plan, _ = self._plan(copy.deepcopy(self.scheduler))
            for observer in foreseeing:
                observer.before(plan)
            ending = [observer for observer in foreseeing if observer.stops()]
        if ending and not self.round:
            raise ending[0].too_early()
        return ending[0].name if ending else ""

    def __iter__(self) -> Iterator[RoundRecord]:
        while not self.finished:
            yield self.run_round()

    def run_round(self) -> RoundRecord:
        """Run one round.

        Raises:
            DivergedError: weights or a loss are not finite.
            InfeasibleError: an edge's allocation failed.
            WorkerLostError: actors kept dying.
        """
        index = self.round + 1
        scheduler, hierarchy = self.scheduler, self.hierarchy  # the first use clusters and starts actors, off the clock
        plan, world = self._plan(scheduler)
        self._check_edges(index, plan.schedule.edges)
        for observer in self.observers:
            observer.before(plan)
        clock = PhaseClock()
        task = self._task(plan, "loss" in scheduler.needs)
        trained = RoundResult(self.training, {}) if task is None else hierarchy.train_round(task, self.training)
        clock.lap("train_s")
        test, judged, logged = self.target.evaluate(hierarchy, index, trained.state.model)
        for edge, edge_model in trained.state.edges.items():
            name = metrics.edge_metric(edge, METRIC_OF[self.problem.kind])
            logged = {**logged, name: hierarchy.evaluate(edge_model).score}
        clock.lap("evaluate_s")

        self.history = self.history.after(index, *_counted(plan.timeline), trained.losses)
        measured, model = {**trained.measures, **logged}, trained.state.model
        record = self.record_of(plan, model, test, plan.conditions | measured, plan.wall | clock.laps)
        for observer in self.observers:
            record = observer.logged(record)
        self.round, self.training, self.totals, self.world = index, trained.state, record.totals, world
        if plan.played is not None:
            self.under_way = plan.played.after
        if metrics.ACCURACY in scheduler.needs:
            observed = replace(record, score=judged.score, test_loss=judged.loss).observed()
        else:
            rest = {name: value for name, value in record.conditions.items() if name not in measured}
            observed = replace(record, score=math.nan, test_loss=math.nan, conditions=rest, wall={}).observed()
        scheduler.observe(observed)
        self.record = observed if self.history.remembers else None
        return record

    def _task(self, plan: PlannedRound, wants_losses: bool) -> RoundTask | None:
        """Return what a round trains; None: nothing, because nobody is available."""
        if plan.played is None and not len(plan.schedule):
            return None
        happens = plan.timeline
        reached = happens.reached if self.config.tree.gossip is not None else None
        ends = None if self.config.clock.cloud.semi_synchronous is None else happens.last_iterations()
        return RoundTask(plan.round, plan.schedule, happens.participates, wants_losses, reached, plan.played, ends)

    def _check_edges(self, index: int, edges: NDArray[np.intp]) -> None:
        """Raise ConfigError if a plan gives an edge fewer devices than its aggregator needs."""
        least, counts = self.backend.method.parts().edge.least, np.bincount(edges, minlength=1)
        short = np.flatnonzero((counts > 0) & (counts < least))
        if len(short):
            name = references.spoken(self.config.aggregation.edge.name)
            raise ConfigError(
                f"aggregation.edge.name: {name} needs {least} devices at each edge that has any, and the plan of round "
                f"{index} gives edge {short[0]} only {counts[short[0]]}; accepted: {least} or more; raise "
                "scheduling.num_scheduled, lower fleet.num_edges or f, or take assignment.name: even_gain"
            )

    def record_of(
        self,
        plan: PlannedRound,
        model: FloatVector,
        test: Scores,
        conditions: dict[str, float],
        wall: dict[str, float],
    ) -> RoundRecord:
        """Return the record of the next round, before the observers have logged anything.

        Args:
            plan: the round's plan.
            model: the global model after it, (P,).
            test: the model's scores on the test set.
            conditions, wall: what else is logged.
        """
        samples = self.scenario.fleet.samples
        passed = [(plan.timeline.devices, plan.timeline.participates)]
        if plan.played is not None:
            passed = [update.turn.trained for update in plan.played.updates]
        return RoundRecord(
            plan=plan,
            score=test.score,
            test_loss=test.loss,
            totals={name: total + float(getattr(plan.cost, name)) for name, total in self.totals.items()},
            samples_trained=sum(self.backend.passes(samples[devices], counted) for devices, counted in passed),
            model_hash=hashlib.sha256(model.tobytes()).hexdigest(),
            wall=wall,
            edge_iterations=self.work.edge_iterations,
            deviates=self.world.is_on or self.config.clock.is_on,
            conditions=conditions,
            metric=METRIC_OF[self.problem.kind],
            sent_bits=self._sent_bits,
            download_bits=None if metrics.ROUND_DOWNLOAD_J not in plan.conditions else self.work.download_bits,
            changed=next((c["changed"] for c in self.changes if c["after_round"] == self.round), {}),
        )

    def _losses(self, devices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the mean loss of the global model on the samples of some devices, (n,)."""
        return self.hierarchy.losses(self.global_model, devices)[:, 0]

    def _plan(self, scheduler: Scheduler) -> tuple[PlannedRound, World]:
        """Return the plan of the next round, and the world after it. This advances `scheduler`."""
        parts = (self.scenario, self.work, self.assigner, self.allocate)
        planner = Planner(self.config, *parts, self._losses, self.turns)
        return planner.plan(self.round + 1, scheduler, self.world, self.history, self.record, self.under_way)

    def devices(self) -> dict[str, list[Any]]:
        """Return the devices' properties that follow from the data and Algorithm 2, as lists ready for JSON.

        They are ``samples`` (N,), ``class_counts`` (N, C), ``class_names`` (C,) if the data name their classes, and
        after clustering ``clusters`` (N,). The seed, or the stored fleet, has all others.
        """
        columns = self.scenario.columns()
        return columns if self.clusters is None else columns | {"clusters": self.clusters.tolist()}

    def summary(self) -> dict[str, float]:
        """Return the glossary's metrics of a run's end. Those of the target are present only if it was reached."""
        bill = {"ari": metrics.CLUSTERING_ARI, "delay_s": metrics.CLUSTERING_DELAY_S}
        bill["energy_j"] = metrics.CLUSTERING_ENERGY_J
        values = {metric: self.clustering[name] for name, metric in bill.items() if name in self.clustering}
        return values | self.target.summary()

    def resolve(self) -> ExperimentConfig:
        """Settle the measured settings (``training.kernel``, ``training.threads``); return `config` with them.

        This happens before anything is trained or saved. Call it earlier to log the resolved configuration.
        """
        self._config = self._config.model_copy(update={"training": self.backend.settle()})
        return self._config

    @property
    def hierarchy(self) -> Hierarchy:
        """The training backend, which starts on first use."""
        if not self.backend.started:
            self.resolve()
            self.backend.hierarchy(self.scenario.device_data)
            compile_kernels(self.scenario.fleet, self.work, self.config.allocation)  # while the actors start
        return self.backend.hierarchy(self.scenario.device_data)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler. It is made on first use, because it may need the clustering (Algorithm 2), which trains."""
        if self._scheduler is None:
            if self._scheduler_class.auxiliary is not None and self.clusters is None:
                self.cluster()
            self._scheduler = configured_scheduler(self.config, self.clusters)
        return self._scheduler

    def cluster(self) -> NDArray[np.intp]:
        """Run Algorithm 2: train the scheduler's auxiliary model on every device, and run K-means on the weights.

        Returns:
            The cluster of each device, (N,). `clustering` receives the ARI (compared with the true majority classes),
            the delay and the energy.
        """
        grouping = group_devices(
            self.config,
            self.scenario,
            self.work,
            self.config.scheduling.auxiliary or self._scheduler_class.auxiliary,
            lambda problem, data, vector: self.hierarchy.train_each(self.job(problem, "clustering"), data, vector),
        )
        self.clusters, self.clustering = grouping.clusters, grouping.bill
        return self.clusters

    def state_dict(self) -> dict[str, Any]:
        """Return the state on which all further rounds depend.

        ``global_model`` is a NumPy array, and all other values are ready for JSON. Random generators have no state
        here, because every random stream is a function of the seed and the round.
        """
        past: dict[str, Any] = {}
        if self.history.remembers:
            record = None if self.record is None else self.record.state_dict()
            past = {"history": self.history.state_dict(), "record": record}
        return past | {
            "version": STATE_VERSION,
            "config": self.resolve().model_dump(mode="json"),
            "rule_revision": self.backend.method.parts().rule.revision,
            "round": self.round,
            "global_model": self.global_model.copy(),
            **self.training.arrays(),
            "totals": dict(self.totals),
            "clusters": None if self.clusters is None else self.clusters.tolist(),
            "clustering": dict(self.clustering),
            "changes": [dict(change) for change in self.changes],
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            **self.world.state_dict(),
            **{name: value for observer in self.observers for name, value in observer.state_dict().items()},
            **({} if self.turns is None else {"under_way": state_of(self.under_way)}),
        }

    @_refuses_others
    def load_state_dict(self, state: Mapping[str, Any], may_change: Collection[str] = ()) -> None:
        """Load a state of `state_dict`. The run then continues with the same bits as the saved run would have.

        Args:
            state: the state.
            may_change: settings, among `hflray.config.MUTABLE`, that may differ from the saved run's. The run then
                continues with its own values. `changes`, later states and the next round's record hold the differences.

        Raises:
            ConfigError: the state has another version, or another setting that affects results differs.
        """
        if refused := [key for key in may_change if key not in MUTABLE]:
            raise ConfigError(f"{refused[0]}: cannot change between rounds; accepted: {', '.join(MUTABLE)}")
        if state.get("version") != STATE_VERSION:
            raise ConfigError(f"state: version {state.get('version')}; this hflray reads version {STATE_VERSION}")
        saved = validate_stored(ExperimentConfig, state["config"], "state", goes_on=True)
        check_revision(self.backend.method, state.get("rule_revision", 1), saved.round_iterations)
        self._config = self._config.model_copy(update={"training": self.backend.take_over(saved.training)})
        changed, decay = changed_settings(self.config, saved, may_change), self.config.training.learning_rate_decay
        if decay.factor < 1 and (counted := [key for key in COUNTED[decay.every] if key in changed]):
            raise ConfigError(
                f"{counted[0]}: got {changed[counted[0]][1]}, and {changed[counted[0]][0]} in the state, by which "
                f"training.learning_rate_decay.every = {decay.every} has counted; accepted: that of the state; set it"
            )
        model = np.array(state["global_model"], dtype=np.float32)
        if model.shape != self.global_model.shape:
            raise ConfigError(f"state: a model of {model.size} weights; this one has {self.global_model.size}")
        self.round, self.training = int(state["round"]), TrainingState.of_arrays(model, state)
        self.totals, self.clustering = dict(state["totals"]), dict(state["clustering"])
        self.changes = [dict(change) for change in state.get("changes", ())]
        if changed:
            self.changes.append({"after_round": self.round, "changed": changed})
        self.clusters = None if state["clusters"] is None else np.array(state["clusters"], dtype=np.intp)
        self.world, self._scheduler = World(self.config, self.scenario.fleet), None
        self.world.load_state_dict(state, self.totals["delay_s"])
        self.history, self.record = DeviceHistory(self.config.fleet.num_devices, self.history.remembers), None
        if self.history.remembers and state.get("record") is not None:
            self.history.load_state_dict(state["history"])
            self.record = RoundRecord.of_state(state["record"], self._as_planned)
        for observer in self.observers:
            observer.load_state_dict(state)
        if (saved.target, saved.target_accuracy) != (self.config.target, self.config.target_accuracy):
            self.target.reached = {}  # it was another target that was reached
        if self.turns is not None:
            self.under_way = UnderWay.of_state(restored(state["under_way"]))
        if state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def _as_planned(self, devices: NDArray[np.intp], edges: NDArray[np.intp], cost: RoundCost) -> Timeline:
        """Return the timeline of a round that went as planned."""
        fleet, work = self.scenario.fleet, self.work
        return timeline(
            Schedule(devices, edges), fleet.samples[devices], work, Durations.of(cost), Hops.of(fleet, work)
        )

    def job(self, problem: Problem | None = None, stream_name: str = "batches") -> LocalJob:
        """Return the job that trains for `problem`, by default the experiment's; see `resolve`."""
        self.resolve()
        return self.backend.job(problem, stream_name)


def _counted(happens: Timeline) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the devices that counted in a round, the edge of each, and its seconds, (n,).

    A device of two turns is there once, with its later turn.
    """
    counted = np.flatnonzero(happens.participates.any(axis=0))
    devices, edges, delay_s = happens.devices[counted], happens.edges[counted], happens.device_delay_s[counted]
    if happens.updates is None:
        return devices, edges, delay_s
    last = {device: row for row, device in enumerate(devices.tolist())}
    rows = np.array(sorted(last.values()), dtype=np.intp)
    return devices[rows], edges[rows], delay_s[rows]
