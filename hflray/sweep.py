"""The sweep file: what to run, over which values, validated whole before anything starts.

::

    name: quickstart
    task: experiment          # experiment | assignment | clustering | train_assigner
    experiment: {...}         # the configuration, see hflray.config
    sweep:                    # dotted keys of the configuration
      scheduling.name: {grid: [ikc, fedavg]}
      data.name: {zip: [fashion_mnist, cifar10]}       # zip keys move together
      target_accuracy: {zip: [0.875, 0.56]}
    tune: {cpus_per_trial: 1}
    tracking: {experiment: hflray}
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from hflray import metrics
from hflray.config import (
    MUTABLE,
    ExperimentConfig,
    Section,
    TrackingConfig,
    read_mapping,
    set_dotted,
    split_override,
    validate,
)
from hflray.errors import ConfigError, nearest
from hflray.seeding import stream
from hflray.study import sized_by_data

Task = Literal["experiment", "train_assigner", "assignment", "clustering"]
NO_DATA = ("assignment", "train_assigner")  # tasks that load no data set; its name says z and D_n
RUNNABLE = ("experiment", "assignment", "clustering", "train_assigner")
SMOKE_LEARNING = {
    "fleets": 10, "evaluation_fleets": 2, "hidden": 16, "minutes": None, "env_steps": 2000, "evaluate_every": 1000,
    "num_scheduled": None, "learning_starts": 500,
}  # fmt: skip
SECTIONS = ("name", "description", "task", "sweep", "tune", "tracking")


class Axis(Section):
    """The values of one swept key.

    ``grid`` takes every combination with the other keys, ``zip`` moves in step with the other zips; the others are
    drawn, ``tune.samples`` times for each combination.
    """

    grid: list[Any] | None = Field(None, description="every value")
    zip: list[Any] | None = Field(None, description="values in step with the other zips")
    choice: list[Any] | None = Field(None, description="one of the values, drawn")
    uniform: tuple[float, float] | None = Field(None, description="[low, high], drawn")
    loguniform: tuple[float, float] | None = Field(None, description="[low, high] above 0, drawn in logarithms")
    randint: tuple[int, int] | None = Field(None, description="[low, high], a whole number, both ends included")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(self.model_fields_set) != 1 or getattr(self, self.kind) is None:
            raise ValueError(f"give exactly one of {', '.join(Axis.model_fields)}, such as grid: [1, 2]")
        if getattr(self, self.kind) == []:
            raise ValueError(f"{self.kind}: got []; no value, no trial: give at least one, or remove the key")
        if self.loguniform is not None and self.loguniform[0] <= 0:
            raise ValueError(f"loguniform: got {list(self.loguniform)}; both ends must be above 0")
        return self

    @property
    def kind(self) -> str:
        """Which of the fields is given."""
        return next(iter(self.model_fields_set))

    @property
    def drawn(self) -> bool:
        """True if values are drawn."""
        return self.kind not in ("grid", "zip")

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value."""
        if self.choice is not None:
            return self.choice[int(rng.integers(len(self.choice)))]
        if self.randint is not None:
            return int(rng.integers(self.randint[0], self.randint[1], endpoint=True))
        if self.loguniform is not None:
            return float(np.exp(rng.uniform(*np.log(self.loguniform))))
        assert self.uniform is not None
        return float(rng.uniform(*self.uniform))


class SearchConfig(Section):
    """Search instead of a fixed list: each trial's values follow from the trials before it."""

    name: Literal["optuna"] = "optuna"
    metric: str = Field("objective_to_target", description="a metric of the glossary, as it is when a trial ends")
    mode: Literal["min", "max"] = "min"


class EarlyStoppingConfig(Section):
    """Asynchronous successive halving: trials that are behind at their rungs are stopped."""

    name: Literal["asha"] = "asha"
    metric: str = Field("accuracy", description="a metric of the glossary, compared at equal rounds")
    mode: Literal["min", "max"] = "max"
    grace_rounds: int = Field(3, ge=1, description="rounds that every trial is given")
    reduction: int = Field(3, ge=2, description="one in so many goes on from a rung to the next")


class PopulationConfig(Section):
    """Population-based training: every few rounds the trials that are behind go on from those ahead, changed a little.

    The population is `tune.samples` trials; what changes are the swept keys, all of them drawn. A number is multiplied
    by 0.8 or 1.2, a choice moves to its neighbour in the list; `redraw` of the time it is drawn anew.
    """

    name: Literal["pbt"] = "pbt"
    metric: str = Field("accuracy", description="a metric of the glossary, compared at equal rounds")
    mode: Literal["min", "max"] = "max"
    every: int = Field(5, ge=1, description="rounds between exchanges; all trials wait for each other there")
    replaced: float = Field(0.25, gt=0, le=0.5, description="share of the trials that take over another's state")
    redraw: float = Field(0.25, ge=0, le=1, description="how often a value is drawn anew")


class TuneConfig(Section):
    """How Ray Tune runs the trials."""

    cpus_per_trial: int = Field(1, ge=1, description="CPUs of a trial; one device actor on each unless training says")
    gpus_per_trial: float | None = Field(
        None,
        gt=0,
        description="GPUs of a trial that trains on them, for its device actors; below 1, a part of one, so that "
        "trials share a card; null: 1",
    )
    max_concurrent: int | None = Field(None, ge=1, description="trials at a time; null: as many as fit")
    max_failures: int = Field(2, ge=0, description="how often a trial whose process was lost is started again")
    reuse: bool = Field(True, description="a trial's process serves the next trial; false: one process each")
    samples: int = Field(1, ge=1, description="draws for each point of the grid; trials in all with a search")
    seed: int = Field(0, ge=0, description="of the draws and of the search")
    stop: dict[str, float] = Field({}, description="end a trial once a metric is at least this, by its name")
    search: SearchConfig | None = None
    early_stopping: EarlyStoppingConfig | None = None
    population: PopulationConfig | None = None

    @field_validator("gpus_per_trial")
    @classmethod
    def _whole_or_a_part(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and value != int(value):
            raise ValueError("accepted: a part of one GPU, such as 0.5, or a whole number; round it")
        return value

    @field_validator("stop")
    @classmethod
    def _known_metric(cls, stop: dict[str, float]) -> dict[str, float]:
        for name in stop:
            if name not in metrics.PER_ROUND:
                raise ValueError(f"unknown metric '{name}'{nearest(name, metrics.PER_ROUND)}")
        return stop

    @model_validator(mode="after")
    def _metrics_exist(self) -> Self:
        ends = metrics.PER_ROUND + metrics.AT_THE_END
        for where, section, known in (
            ("search", self.search, ends),
            ("early_stopping", self.early_stopping, metrics.PER_ROUND),
            ("population", self.population, metrics.PER_ROUND),
        ):
            if section is not None and section.metric not in known:
                hint = nearest(section.metric, known)
                raise ValueError(f"tune.{where}.metric: unknown metric '{section.metric}'{hint}")
        return self

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        given = [name for name in ("search", "early_stopping", "population") if getattr(self, name) is not None]
        if self.population is not None and len(given) > 1:
            raise ValueError(f"tune.population cannot go with tune.{given[0]}; keep one of them")
        if self.population is not None and self.samples < 2:
            raise ValueError(f"tune.samples: got {self.samples}; a population needs at least 2 trials; 4 or more help")
        return self


class SweepFile(Section):
    """A sweep file."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="letters, digits, . _ -")
    description: str = ""
    task: Task = "experiment"
    experiment: dict[str, Any] = Field({})
    sweep: dict[str, Axis] = Field({})
    tune: TuneConfig = TuneConfig()
    tracking: TrackingConfig | None = None

    @field_validator("sweep", mode="before")
    @classmethod
    def _axes(cls, sweep: Any) -> Any:
        if sweep is None:  # an empty section
            return {}
        if isinstance(sweep, dict):
            for key, axis in sweep.items():
                if not isinstance(axis, dict | Axis):
                    values = axis if isinstance(axis, list) else [axis]
                    raise ValueError(f"{key}: got {axis!r}; which values to take needs a word: {{grid: {values!r}}}")
        return sweep

    @model_validator(mode="after")
    def _a_search_draws(self) -> Self:
        fixed = [key for key, axis in self.sweep.items() if not axis.drawn]
        if self.tune.search is not None and (fixed or not self.sweep):
            what = f"sweep.{fixed[0]} is a {self.sweep[fixed[0]].kind}" if fixed else "sweep is empty"
            raise ValueError(f"tune.search: a search chooses among choice, uniform, loguniform, randint; {what}")
        return self

    @model_validator(mode="after")
    def _a_population_mutates(self) -> Self:
        if self.tune.population is None:
            return self
        for key, axis in self.sweep.items():
            if not axis.drawn:
                raise ValueError(
                    f"tune.population: sweep.{key} is a {axis.kind}; the trials of a population differ in what they "
                    "mutate only; accepted: choice, uniform, loguniform, randint"
                )
            if key not in MUTABLE:
                raise ValueError(
                    f"tune.population: sweep.{key} cannot change between rounds; accepted: {', '.join(MUTABLE)}"
                )
        if not self.sweep:
            raise ValueError("tune.population: sweep is empty; draw at least one of " + ", ".join(MUTABLE))
        return self

    @model_validator(mode="after")
    def _rounds_are_there(self) -> Self:
        tune = self.tune
        for name, given in (("stop", tune.stop), ("early_stopping", tune.early_stopping), ("search", tune.search),
                            ("population", tune.population)):  # fmt: skip
            if given and self.task != "experiment":
                raise ValueError(f"tune.{name}: got task '{self.task}'; accepted: task 'experiment'; leave it out")
        return self

    @field_validator("task")
    @classmethod
    def _runnable(cls, task: str) -> str:
        if task not in RUNNABLE:
            raise ValueError(f"this version of hflray runs the tasks {', '.join(RUNNABLE)}")
        return task


@dataclass(frozen=True)
class Trial:
    """One point of a sweep: its readable name, the values that were swept, and its configuration."""

    name: str
    values: dict[str, Any]
    config: ExperimentConfig


def load_sweep(path: str | Path | None, overrides: Iterable[str] = ()) -> SweepFile:
    """Load a sweep file, or (without a path) an empty one; apply ``--set`` overrides.

    An override goes to the configuration, unless it begins with the name of another section (``tune.``,
    ``tracking.``, ``sweep.``). Setting a key that is swept replaces its axis by that one value.

    Raises:
        ConfigError: one line per mistake.
    """
    tree = read_mapping(path) if path is not None else {}
    if path is not None:
        tree.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "_", Path(path).stem))
    for key in tree:
        if key in ExperimentConfig.model_fields and key not in SweepFile.model_fields:
            raise ConfigError(f"{path}: '{key}' belongs under 'experiment:'; indent the configuration below that line")
    for text in overrides:
        key, value = split_override(text)
        if key.split(".")[0] == "sweep":
            _, _, swept = key.partition(".")
            tree.setdefault("sweep", {})[swept] = value
        elif key.split(".")[0] in SECTIONS:
            set_dotted(tree, key, value)
        else:
            if tree.get("experiment") is None:
                tree["experiment"] = {}
            axes = tree.get("sweep")
            if isinstance(axes, dict):
                axes.pop(key, None)
            if not isinstance(tree["experiment"], dict):
                raise ConfigError(f"experiment: got {tree['experiment']!r}; a mapping of settings is needed")
            set_dotted(tree["experiment"], key, value)
    return validate(SweepFile, tree)


def expand(file: SweepFile) -> list[Trial]:
    """Return every trial of a sweep, each validated; grids vary slowest first, zipped keys vary together.

    Drawn values depend on ``tune.seed`` and the number of the draw only, so the same file gives the same trials. With
    a search the trials are made as it goes; then one at the first of all values stands for them, to be validated.

    Raises:
        ConfigError: zipped lists of unequal length, or a value that a trial's configuration refuses (names the trial).
    """
    if file.tune.search is not None:
        return [make_trial(file, first_values(file))]
    zipped = {key: axis.zip for key, axis in file.sweep.items() if axis.zip is not None}
    lengths = {key: len(values) for key, values in zipped.items()}
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ConfigError(f"sweep: zipped keys move together and need lists of one length; {listing}")
    steps = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    grids = {key: axis.grid for key, axis in file.sweep.items() if axis.grid is not None}
    trials: list[Trial] = []
    drawn = {key: axis for key, axis in file.sweep.items() if axis.drawn}
    for step in steps:
        for row in itertools.product(*grids.values()):
            for number in range(file.tune.samples if drawn else 1):
                point = step | dict(zip(grids, row, strict=True))
                draws = {k: axis.draw(stream(file.tune.seed, f"sweep/{k}", number)) for k, axis in drawn.items()}
                trials.append(make_trial(file, {key: (point | draws)[key] for key in file.sweep}))
    if file.tune.population is not None:  # its values change as it goes
        for trial in trials:
            _check_population(file.tune.population, trial.config)
        base = run_name(trials[0].config, {}, file.task)
        return [Trial(f"{base}-p{number}", trial.values, trial.config) for number, trial in enumerate(trials)]
    names = [trial.name for trial in trials]
    if len(set(names)) < len(names):  # two equal values in a list, or values that print alike
        width = len(str(len(trials)))
        trials = [Trial(f"{i:0{width}d}-{trial.name}", trial.values, trial.config) for i, trial in enumerate(trials)]
    return trials


def _check_population(population: PopulationConfig, config: ExperimentConfig) -> None:
    """The trials exchange checkpoints, so there must be one at every exchange."""
    saved = config.checkpoint.every
    if not saved or population.every % saved:
        raise ConfigError(
            f"checkpoint.every: got {saved}; a population exchanges checkpoints every {population.every} rounds; "
            "accepted: 1, or a divisor of tune.population.every"
        )


def make_trial(file: SweepFile, values: dict[str, Any]) -> Trial:
    """Make the trial of these values. Raises ConfigError naming the trial."""
    tree = _deep_copy(file.experiment)
    for key, value in values.items():
        set_dotted(tree, key, value)
    if file.tracking is not None:
        tree["tracking"] = file.tracking.model_dump(mode="json")
    try:
        config = validate(ExperimentConfig, tree)
        if file.task in NO_DATA:
            config = sized_by_data(config)
    except ConfigError as error:
        if not values:
            raise
        point = ", ".join(f"{key}={value}" for key, value in values.items())
        raise ConfigError(f"trial ({point}): {error}") from error
    return Trial(run_name(config, values, file.task), values, config)


def run_name(config: ExperimentConfig, values: dict[str, Any], task: Task = "experiment") -> str:
    """A readable name such as ``digits-H10-λ1-ikc-hfel-s0``, followed by whatever else is swept."""
    data = Path(config.data.name).stem.removesuffix("_mnist")
    parts = [
        data,
        f"H{config.scheduling.num_scheduled}",
        f"λ{config.cost.delay_weight:g}",
        config.scheduling.name,
        config.assignment.name,
        f"s{config.seed}",
    ]
    said = {
        "data.name", "scheduling.num_scheduled", "cost.delay_weight", "scheduling.name", "assignment.name", "seed",
    }  # fmt: skip
    if task == "assignment":  # no data, no scheduler, but every assigner by its full name
        parts = [*parts[1:3], assigner_label(config), parts[5]]
        said |= {"assignment.exchanges", "assignment.polish_ms", "allocation.coupling"}
    if task == "train_assigner":
        teacher = config.learning.teacher
        name = f"{teacher.name}-{teacher.exchanges}" if teacher.name == "hfel" else teacher.name
        parts = [*parts[1:3], config.learning.features, name, parts[5]]
        said |= {"learning.features", "learning.teacher.name", "learning.teacher.exchanges"}
    if task in NO_DATA:
        said.discard("data.name")
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    parts += [f"{key.rpartition('.')[2]}={value}" for key, value in shown.items() if key not in said]
    return re.sub(r"[^\w.=λ-]+", "_", "-".join(parts))


def assigner_label(config: ExperimentConfig) -> str:
    """An assigner as the paper calls it, such as ``hfel-300``; with `joint` where all edges share one deadline."""
    name = config.assignment.name
    name = f"{name}-{config.assignment.exchanges}" if name == "hfel" else name
    name = f"{name} redraw" if config.assignment.options.get("redraw") else name
    polish = config.assignment.polish_ms if name == "d3qn" else None
    if polish:
        name = f"{name} optimum" if polish == "optimum" else f"{name} {polish:g} ms"
    return f"{name} joint" if config.allocation.coupling == "joint" else name


def first_values(file: SweepFile) -> dict[str, Any]:
    """The first value of every axis; of a range its lower end."""
    return {key: getattr(axis, axis.kind)[0] for key, axis in file.sweep.items()}


def smoke(file: SweepFile) -> SweepFile:
    """The smallest version of a sweep that still runs all of its parts: one trial, synthetic data, two short rounds."""
    first = first_values(file)
    config = make_trial(file, first).config
    devices = min(config.fleet.num_devices, 20)
    small = {
        "max_rounds": 2,
        "data.name": "synthetic",
        "data.root": None,
        "data.samples_per_device": [20, 40],
        "fleet.num_devices": devices,
        "scheduling.num_scheduled": min(config.scheduling.num_scheduled, devices // 2 or 1),
        "training.local_iterations": 1,
        "training.edge_iterations": 2,
    }
    if file.task in NO_DATA:
        small = {key: value for key, value in small.items() if not key.startswith("data.")}
    if file.task == "train_assigner":
        small |= {f"learning.{key}": value for key, value in SMOKE_LEARNING.items()}
    experiment = _deep_copy(file.experiment)
    for key, value in small.items():
        set_dotted(experiment, key, value)
    sweep = {key: Axis(grid=[small.get(key, value)]) for key, value in first.items()}
    tune = file.tune.model_copy(update={"samples": 1, "search": None, "early_stopping": None, "population": None})
    changes = {"name": f"{file.name}-smoke", "experiment": experiment, "sweep": sweep, "tune": tune}
    return file.model_copy(update=changes)


def _deep_copy(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, dict) else value for key, value in tree.items()}
