"""The interface of tasks. A task is the kind of work that each trial of a sweep does.

A new task is one file with a subclass of `Task`, its test, and one line in `hflray.sweep.tasks`. The class says what
its sweep files may hold, how a trial is checked and run, what a trial reserves and saves, and how its results are
named, counted and shown. `hflray.tune`, `hflray.sweep`, `hflray.sweep.preflight`, `hflray.tracking` and `hflray.report`
know tasks only through this class. No other code compares the names of tasks.

A task imports neither Ray nor Ray Tune: `Task.run` yields results, and `hflray.tune.trial` hands them to Tune. A task
therefore runs in a notebook as well::

    for result in find_task("assignment").run(Job(load_config())):
        print(result.step, result.metrics)

Libraries that take seconds to import, such as RLlib, are imported inside methods, because `python -m hflray.tune
--help` and every process that only needs the names of tasks import this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError, DamagedError, RefusedError
from hflray.support.references import short

if TYPE_CHECKING:
    from hflray.experiment import Experiment
    from hflray.experiment.record import RoundRecord
    from hflray.experiment.scenario import Scenario

MOST_VALIDATION = 100  # samples of the validation part of a trial of ``--smoke``
OF_IMAGES = ("digits", "fashion_mnist", "cifar10", "synthetic")  # data sets that ``--smoke`` replaces by a small one
ONE_BY_ONE = ("stop", "early_stopping", "search", "population")  # keys of `tune` that compare trials at each round


class Saved(NamedTuple):
    """A checkpoint that a trial may continue from.

    Attributes:
        trial: name of the folder of the trial that made the checkpoint. In a population this may be another trial.
        open: returns a context manager that gives the folder into which `Result.save` wrote. It raises OSError if the
            checkpoint cannot be read.
    """

    trial: str
    open: Callable[[], AbstractContextManager[str | Path]]


def _make_experiment(config: ExperimentConfig) -> Experiment:
    from hflray.experiment import Experiment

    return Experiment(config)


def _watch_nothing(experiment: Experiment) -> Callable[[RoundRecord], None]:
    return lambda record: None


@dataclass(frozen=True)
class Job:
    """The input of `Task.run`. Only the configuration is required; the defaults run the task without Ray Tune.

    Attributes:
        config: the trial's configuration.
        cpus: the number of CPUs that the trial may use.
        saved: the trial's checkpoints, newest first. It is empty for a trial that begins.
        mutable: dotted keys whose values may differ from those in the checkpoint.
        make: returns the trial's experiment. In a sweep it uses the data that the driver has loaded.
        watch: takes the experiment and returns a function that is called with each finished round to show it live.
    """

    config: ExperimentConfig
    cpus: int = 1
    saved: Iterable[Saved] = ()
    mutable: tuple[str, ...] = ()
    make: Callable[[ExperimentConfig], Experiment] = _make_experiment
    watch: Callable[[Experiment], Callable[[RoundRecord], None]] = _watch_nothing


@dataclass(frozen=True)
class Result:
    """The result of one step of a trial: a round, a fleet, or a point of a learning curve.

    Attributes:
        step: the number of the step. It increases, and the metrics are logged under it.
        metrics: values by name; the names are those of the glossary (`hflray.metrics`).
        last: whether the trial ends with this step.
        note: a line for the user, for example that the trial continues from a checkpoint.
        model_hash: the hash of the global model after a round.
        schedule: the devices of a round and what was allocated to each, see `RoundRecord.schedule`.
        timeline: what happened to each device in a round, as `hflray.support.arrays.deflated` text of `Timeline.table`;
            None if all went as planned.
        devices: facts about the devices that hold for all rounds, see `Experiment.devices`. Only the first result has
            them.
        changes: settings that a population changed between rounds.
        save: writes the state of the trial after this step into a folder; None if the task saves nothing. It may be
            called only before the next result is requested.
        due: whether the configuration (``checkpoint.every``) or the task requires that the state is saved after this
            step.
    """

    step: int
    metrics: dict[str, float]
    last: bool = False
    note: str | None = None
    model_hash: str | None = None
    schedule: Mapping[str, Any] | None = None
    timeline: str | None = None
    devices: Mapping[str, Any] | None = None
    changes: Sequence[dict[str, Any]] = ()
    save: Callable[[Path], None] | None = None
    due: bool = False


def restore(job: Job, load: Callable[[Path], None]) -> tuple[Saved | None, list[str]]:
    """Load the newest checkpoint that can be loaded.

    Args:
        job: the trial's job.
        load: loads the content of a checkpoint's folder.

    Returns:
        The checkpoint, None if there is none that is whole, and what is wrong with each newer one.

    Raises:
        RefusedError: none can be loaded, and one of them is whole but of another version or configuration.
    """
    problems, refused = list[str](), ""
    for saved in job.saved:
        try:
            with saved.open() as folder:
                load(Path(folder))
            return saved, problems
        except (DamagedError, OSError) as error:
            problems.append(str(error))
        except ConfigError as error:
            problems.append(str(error))
            refused = refused or str(error)
    if refused:
        raise RefusedError(f"{refused}; nothing has been changed: go on with that hflray, or begin anew with --fresh")
    return None, problems


Results = Generator[Result, None, None]  # an iterator that can be closed


class TrialProgress(NamedTuple):
    """The progress of a trial: `done` of `total`, both in `unit`, and a line of `text`. A total of 0 is unknown."""

    done: int
    total: int
    unit: str
    text: str


class Product(NamedTuple):
    """A file of a trial's last checkpoint that is copied into the sweep's folder and sent to the trackers.

    Attributes:
        file: the name of the file in the checkpoint.
        folder: the subfolder of the sweep's folder that holds the copy, which is named after the trial.
        label: a noun for the file in messages.
    """

    file: str
    folder: str
    label: str


@dataclass(frozen=True)
class Shown:
    """How a report shows the results of a task.

    Attributes:
        step_label: the label of an axis of steps.
        counted: a plural noun for the steps; None if they are not counted.
        repetitions: a plural noun for what distinguishes runs that are otherwise alike.
        per: what a cost refers to: "in total" (all rounds up to the step) or "a round".
        averaged: whether a run's figure is the mean over its steps (fleets) instead of its last value.
        curves: whether metrics are drawn over steps.
        front: whether energy is drawn against delay.
        until: a sentence that says up to which step costs are counted. It may be empty.
        explorable: whether the report offers a view of each round with its devices and their costs.
        table: the table of `hflray.metrics` whose rows make the summary, the closing table and the bars.
        figures: the task's figures, registered names or references by the stem of their file.
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
    figures: Mapping[str, str] = field(default_factory=dict)


class Task(ABC):
    """A kind of work. The class attributes hold for the task; the methods depend on one trial's configuration.

    Attributes:
        name: the value of ``task:`` in a sweep file and of the tag ``hflray.task`` of the task's runs.
        needs_data: whether a trial loads its data set. If not, ``data.name`` only determines z and D_n (Table I).
        refuses: keys of ``tune`` that the task's sweep files must not set.
        trains_devices: whether a trial has device actors, which reserve CPUs and GPUs.
        trains_model: whether a trial trains the global model to its last round. If so, the driver estimates its time,
            and the trackers get the final model.
        saves: whether a trial saves states to continue from.
        consecutive: whether the steps of a trial are 1, 2, 3 and so on, so that a missing one is noticed.
        product: a file of the last state that is kept in the sweep's folder; None if there is no such file.
        learns: the section of the settings of what it learns, ``learning`` or ``agent``, which is logged with every
            run; empty if the task learns nothing.
        shown: how a report shows the results.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool] = True
    refuses: ClassVar[tuple[str, ...]] = ONE_BY_ONE
    trains_devices: ClassVar[bool] = True
    trains_model: ClassVar[bool] = False
    saves: ClassVar[bool] = False
    consecutive: ClassVar[bool] = True
    product: ClassVar[Product | None] = None
    learns: ClassVar[str] = ""
    shown: ClassVar[Shown] = Shown()

    def complete(self, config: ExperimentConfig) -> ExperimentConfig:
        """Return a trial's configuration with the settings that the task implies. Raises ConfigError: they clash."""
        if self.needs_data:
            return config
        from hflray.experiment.study import sized_by_data

        return sized_by_data(config)

    def check(
        self, config: ExperimentConfig, scenario: Scenario | None = None, measure: bool = False
    ) -> ExperimentConfig | None:
        """Build what a trial will use before the sweep starts, so that mistakes show at once.

        Args:
            config: the trial's configuration.
            scenario: the trial's data, partition and fleet; None for a task that needs no data.
            measure: whether to measure on this machine the settings that the configuration leaves open, such as the
                kernel.

        Returns:
            The configuration with the measured settings; None if nothing was measured.

        Raises:
            ConfigError: a mistake that only the data or the assigner reveal, such as images too small for the model.
        """
        from hflray.experiment import Experiment
        from hflray.experiment.parts_check import check_parts

        experiment = Experiment(config, scenario=scenario)
        check_parts(experiment)
        return experiment.resolve() if measure else None

    @abstractmethod
    def run(self, job: Job) -> Results:
        """Do the work of one trial and yield a result for each step.

        A caller that stops early must close the iterator, which ends actors and processes.

        Raises:
            HflrayError: a mistake was made or the model diverged. Another attempt would fail in the same way.
            WorkerLostError: a process was lost. Another attempt may continue from the last saved state.
        """

    def steps(self, config: ExperimentConfig) -> int:
        """Return the last step that a trial can reach, or 0 if it is unknown."""
        return config.max_rounds

    def total(self, config: ExperimentConfig) -> int:
        """Return the final count of `progress`, or 0 if it is unknown."""
        return self.steps(config)

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> TrialProgress:
        """Return the progress of a trial after a result with the metrics `values`."""
        main = [f"{row.short} {row.text(values[row.name])}, " for row in metrics.main_of(values)]
        objective = metrics.describe(metrics.TOTAL_OBJECTIVE).text(values[metrics.ROUND_OBJECTIVE])
        return TrialProgress(step, self.total(config), "round", f"{''.join(main)}objective {objective}")

    def label(self, config: ExperimentConfig) -> dict[str, str]:
        """Return the parts of a trial's name, in order, by the dotted key of the setting that each part shows.

        The name joins the parts and appends the other swept settings. If a part is empty, another part shows its key.
        """
        return {
            "data.name": Path(short(config.data.name)).stem.removesuffix("_mnist"),
            "scheduling.num_scheduled": f"H{config.scheduling.num_scheduled}",
            "cost.delay_weight": f"λ{config.cost.delay_weight:g}",
            "scheduling.name": short(config.scheduling.name),
            "assignment.name": short(config.assignment.name),
            "seed": f"s{config.seed}",
        }

    def shrink(self, config: ExperimentConfig) -> dict[str, Any]:
        """Return settings by dotted key that make a trial as small as possible with all of its parts (``--smoke``)."""
        is_drawn = config.fleet.name == "random"
        devices = min(config.fleet.num_devices, 20) if is_drawn else config.fleet.num_devices
        data: dict[str, Any] = {} if config.data.partition == "owners" else {"data.samples_per_device": [20, 40]}
        if config.data.name in OF_IMAGES or config.data.name.endswith(".npz"):  # others need no large files
            data |= {"data.name": "synthetic", "data.root": None}
            if config.data.split == "official":  # which synthetic data do not have
                data["data.split"] = "stratified"
            if config.data.validation > MOST_VALIDATION:
                data["data.validation"] = MOST_VALIDATION
        return {
            "max_rounds": 2,
            **(data if self.needs_data else {}),
            **({"fleet.num_devices": devices} if is_drawn else {}),
            "scheduling.num_scheduled": min(config.scheduling.num_scheduled, devices // 2 or 1),
            "training.local_iterations": 1,
            "training.edge_iterations": 2,
        }
