"""What a task is: the kind of work that each trial of a sweep does, and all that the rest of hflray asks about it.

A new task is one file with a subclass of `Task`, its test, and one line in `hflray.tasks`. The class says what its
sweep files may hold, how a trial is checked and run, what it reserves and saves, and how its results are named, counted
and shown. `hflray.tune`, `hflray.sweep`, `hflray.preflight`, `hflray.tracking` and `hflray.report` know tasks only
through this class; no name of a task is compared anywhere else.

A task imports neither Ray nor Ray Tune: `Task.run` yields results, and `hflray.tune.trial` hands them to Tune. So a
task runs in a notebook as well::

    for result in find_task("assignment").run(Job(load_config())):
        print(result.step, result.metrics)

Libraries that take seconds to import, such as RLlib, are imported inside of methods: `python -m hflray.tune --help` and
every process that only asks for names loads this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hflray import metrics
from hflray.config import ExperimentConfig

if TYPE_CHECKING:
    from hflray.experiment import Experiment
    from hflray.record import RoundRecord
    from hflray.scenario import Scenario

ONE_BY_ONE = ("stop", "early_stopping", "search", "population")  # keys of `tune` that compare trials round by round


class Saved(NamedTuple):
    """A checkpoint that a trial may go on from.

    Attributes:
        trial: the folder's name of the trial that made it; in a population it may be another one's.
        open: a context manager with the folder into which `Result.save` wrote. OSError: it cannot be read.
    """

    trial: str
    open: Callable[[], AbstractContextManager[str | Path]]


def _experiment(config: ExperimentConfig) -> Experiment:
    from hflray.experiment import Experiment

    return Experiment(config)


def _unwatched(experiment: Experiment) -> Callable[[RoundRecord], None]:
    return lambda record: None


@dataclass(frozen=True)
class Job:
    """What a task's run is given. Only the configuration is needed; the defaults run it alone, without Ray Tune.

    Attributes:
        config: of the trial.
        cpus: how many the trial may use.
        saved: its checkpoints, newest first; none of a trial that begins.
        mutable: dotted keys that may differ from those of the checkpoint.
        make: makes the trial's experiment; in a sweep with data that the driver has loaded.
        watch: makes what is called with each finished round of an experiment, to show it live.
    """

    config: ExperimentConfig
    cpus: int = 1
    saved: Iterable[Saved] = ()
    mutable: tuple[str, ...] = ()
    make: Callable[[ExperimentConfig], Experiment] = _experiment
    watch: Callable[[Experiment], Callable[[RoundRecord], None]] = _unwatched


@dataclass(frozen=True)
class Result:
    """One step of a trial: a round, a fleet, a point of a learning curve.

    Attributes:
        step: its number; it grows, and the metrics are logged under it.
        metrics: entries of the glossary (`hflray.metrics`), by name.
        last: whether the trial ends here.
        note: a line for whoever watches, such as that it goes on from a checkpoint.
        model_hash: of the global model after a round.
        schedule: who took part in a round and what each was given, see `RoundRecord.schedule`.
        devices: what is true of all rounds, see `Experiment.devices`; once, with the first result.
        changes: settings that a population changed between rounds.
        save: writes the state of the trial after this step into a folder; None: a task that saves nothing. It may be
            called only until the next result is asked for.
        due: whether the configuration (``checkpoint.every``) or the task wants the state saved here.
    """

    step: int
    metrics: dict[str, float]
    last: bool = False
    note: str | None = None
    model_hash: str | None = None
    schedule: Mapping[str, Any] | None = None
    devices: Mapping[str, Any] | None = None
    changes: Sequence[dict[str, Any]] = ()
    save: Callable[[Path], None] | None = None
    due: bool = False


Results = Generator[Result, None, None]  # an iterator that can be closed


class Progress(NamedTuple):
    """How far a trial is: `done` of `total` of some `unit` (0: nobody knows the total), and a line of `text`."""

    done: int
    total: int
    unit: str
    text: str


class Product(NamedTuple):
    """A file of a trial's last checkpoint that the sweep's folder keeps and the trackers get.

    Attributes:
        file: its name in the checkpoint.
        folder: the folder of the sweep's folder where it is kept, under the trial's name.
        what: what it is called.
    """

    file: str
    folder: str
    what: str


@dataclass(frozen=True)
class Shown:
    """What a report wants to know of a task's results.

    Attributes:
        step_label: label of an axis of steps.
        counted: what steps are, in the plural; None: they are not counted.
        repetitions: what runs differ in that are otherwise alike, in the plural.
        per: to what a cost belongs: "in total" (of all rounds up to the step) or "a round".
        averaged: whether a run's figure is the mean over its steps (fleets) instead of its last value.
        curves: whether metrics are drawn over steps.
        front: whether energy is drawn against delay.
        until: a sentence that says up to which step costs are counted; may be empty.
        explorable: whether each round can be looked into: who took part and what it cost them.
        table: its summary and closing tables and its bars: the rows of `hflray.metrics` that name it.
        figures: names of its figures in `hflray.report.figures`, in order.
    """

    step_label: str = "Round"
    counted: str | None = "rounds"
    repetitions: str = "seeds"
    per: str = "in total"
    averaged: bool = False
    curves: bool = True
    front: bool = False
    until: str = ""
    explorable: bool = False
    table: metrics.Table = "training"
    figures: tuple[str, ...] = ()


class Task(ABC):
    """A kind of work. The class attributes are facts, the methods answer for one trial's configuration.

    Attributes:
        name: ``task:`` of a sweep file, and the tag ``hflray.task`` of its runs.
        needs_data: whether a trial loads its data set. If not, ``data.name`` only says z and D_n (Table I).
        refuses: keys of ``tune`` that its sweep files may not set.
        trains_devices: whether a trial has device actors, which reserve CPUs and GPUs.
        trains_model: whether a trial trains the global model to its last round: that takes long enough for an estimate,
            the trackers get the final model, and the queue's ``experiments`` apply.
        saves: whether a trial saves states to go on from.
        product: what else is kept of the last state; None: nothing.
        keeps_history: whether the closing table needs the metrics of every step. The driver then keeps them in memory.
        learns: whether the settings ``learning`` belong to every run of it, so that they are logged.
        shown: what a report wants to know.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool] = True
    refuses: ClassVar[tuple[str, ...]] = ONE_BY_ONE
    trains_devices: ClassVar[bool] = True
    trains_model: ClassVar[bool] = False
    saves: ClassVar[bool] = False
    product: ClassVar[Product | None] = None
    keeps_history: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    shown: ClassVar[Shown] = Shown()

    def complete(self, config: ExperimentConfig) -> ExperimentConfig:
        """Add what follows from the task to a trial's configuration. Raises ConfigError: it does not fit the task."""
        if self.needs_data:
            return config
        from hflray.study import sized_by_data

        return sized_by_data(config)

    def check(
        self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False
    ) -> ExperimentConfig | None:
        """Make what a trial will use, before anything starts.

        Args:
            config: of the trial.
            scenario: its data, partition and fleet; None for a task that needs no data.
            measure: also measure on this machine what the configuration leaves open, such as the kernel.

        Returns:
            The configuration with what was measured; None if nothing was.

        Raises:
            ConfigError: what only the data or the assigner can tell, such as images too small for the model.
        """
        from hflray.experiment import Experiment

        experiment = Experiment(config, scenario=scenario)
        return experiment.resolve() if measure else None

    @abstractmethod
    def run(self, job: Job) -> Results:
        """Do the work of one trial and yield a result for each step.

        Whoever stops asking closes the iterator, which ends actors and processes.

        Raises:
            HflrayError: a mistake, or a model that diverged: trying again would end the same way.
            WorkerLostError: a process was lost; another try may go on from the last saved state.
        """

    def steps(self, config: ExperimentConfig) -> int:
        """The last step that a trial can reach, 0 if nobody knows."""
        return config.max_rounds

    def total(self, config: ExperimentConfig) -> int:
        """What `progress` counts up to, 0 if nobody knows."""
        return self.steps(config)

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> Progress:
        """How far a trial is after a result with these metrics."""
        accuracy = f"accuracy {values[metrics.ACCURACY]:.1%}, " if metrics.ACCURACY in values else ""
        text = f"{accuracy}objective {values[metrics.ROUND_OBJECTIVE]:,.1f}"
        return Progress(step, self.total(config), "round", text)

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """The parts of a trial's name, in order, by the dotted key of the setting that each part tells.

        The name joins them and adds whatever else is swept. A key whose part is empty is told by another part.
        """
        return {
            "data.name": Path(config.data.name).stem.removesuffix("_mnist"),
            "scheduling.num_scheduled": f"H{config.scheduling.num_scheduled}",
            "cost.delay_weight": f"λ{config.cost.delay_weight:g}",
            "scheduling.name": config.scheduling.name,
            "assignment.name": config.assignment.name,
            "seed": f"s{config.seed}",
        }

    def shrink(self, config: ExperimentConfig) -> dict[str, Any]:
        """Settings, by dotted key, that make a trial as small as possible with all of its parts (``--smoke``)."""
        devices = min(config.fleet.num_devices, 20)
        data = {"data.name": "synthetic", "data.root": None, "data.samples_per_device": [20, 40]}
        return {
            "max_rounds": 2,
            **(data if self.needs_data else {}),
            "fleet.num_devices": devices,
            "scheduling.num_scheduled": min(config.scheduling.num_scheduled, devices // 2 or 1),
            "training.local_iterations": 1,
            "training.edge_iterations": 2,
        }
