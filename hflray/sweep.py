"""The sweep file: what to run, over which values, validated whole before anything starts.

::

    name: quickstart
    task: experiment          # experiment | clustering
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

from pydantic import Field, field_validator, model_validator

from hflray.config import (
    ExperimentConfig,
    Section,
    TrackingConfig,
    read_mapping,
    set_dotted,
    split_override,
    validate,
)
from hflray.errors import ConfigError

Task = Literal["experiment", "train_assigner", "assignment", "clustering"]
RUNNABLE = ("experiment", "assignment", "clustering")
SECTIONS = ("name", "description", "task", "sweep", "tune", "tracking")


class Axis(Section):
    """The values of one swept key: every combination with the other keys (grid), or in step with them (zip)."""

    grid: list[Any] | None = Field(None, min_length=1)
    zip: list[Any] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.grid is None) == (self.zip is None):
            raise ValueError("give exactly one of grid: [...] and zip: [...]")
        return self


class TuneConfig(Section):
    """How Ray Tune runs the trials."""

    cpus_per_trial: int = Field(1, ge=1, description="CPUs of a trial; one device actor on each unless training says")
    max_concurrent: int | None = Field(None, ge=1, description="trials at a time; null: as many as fit")
    max_failures: int = Field(0, ge=0, description="how often a failed trial is started again from its checkpoint")


class SweepFile(Section):
    """A sweep file."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="letters, digits, . _ -")
    description: str = ""
    task: Task = "experiment"
    experiment: dict[str, Any] = Field({})
    sweep: dict[str, Axis] = Field({})
    tune: TuneConfig = TuneConfig()
    tracking: TrackingConfig | None = None

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

    Raises:
        ConfigError: zipped lists of unequal length, or a value that a trial's configuration refuses (names the trial).
    """
    zipped = {key: axis.zip for key, axis in file.sweep.items() if axis.zip is not None}
    lengths = {key: len(values) for key, values in zipped.items()}
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ConfigError(f"sweep: zipped keys move together and need lists of one length; {listing}")
    steps = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    grids = {key: axis.grid for key, axis in file.sweep.items() if axis.grid is not None}
    trials: list[Trial] = []
    for step in steps:
        for row in itertools.product(*grids.values()):
            trials.append(_trial(file, step | dict(zip(grids, row, strict=True))))
    names = [trial.name for trial in trials]
    if len(set(names)) < len(names):  # two equal values in a list, or values that print alike
        width = len(str(len(trials)))
        trials = [Trial(f"{i:0{width}d}-{trial.name}", trial.values, trial.config) for i, trial in enumerate(trials)]
    return trials


def _trial(file: SweepFile, values: dict[str, Any]) -> Trial:
    tree = _deep_copy(file.experiment)
    for key, value in values.items():
        set_dotted(tree, key, value)
    if file.tracking is not None:
        tree["tracking"] = file.tracking.model_dump(mode="json")
    try:
        config = validate(ExperimentConfig, tree)
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
        said |= {"assignment.exchanges", "allocation.coupling"}
    parts += [f"{key.rpartition('.')[2]}={value}" for key, value in values.items() if key not in said]
    return re.sub(r"[^\w.=λ-]+", "_", "-".join(parts))


def assigner_label(config: ExperimentConfig) -> str:
    """An assigner as the paper calls it, such as ``hfel-300``; with `joint` where all edges share one deadline."""
    name = config.assignment.name
    name = f"{name}-{config.assignment.exchanges}" if name == "hfel" else name
    return f"{name} joint" if config.allocation.coupling == "joint" else name


def smoke(file: SweepFile) -> SweepFile:
    """The smallest version of a sweep that still runs all of its parts: one trial, synthetic data, two short rounds."""
    first = {key: (axis.grid or axis.zip or [None])[0] for key, axis in file.sweep.items()}
    config = _trial(file, first).config
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
    experiment = _deep_copy(file.experiment)
    for key, value in small.items():
        set_dotted(experiment, key, value)
    sweep = {key: Axis(grid=[small.get(key, value)], zip=None) for key, value in first.items()}
    return file.model_copy(update={"name": f"{file.name}-smoke", "experiment": experiment, "sweep": sweep})


def _deep_copy(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, dict) else value for key, value in tree.items()}
