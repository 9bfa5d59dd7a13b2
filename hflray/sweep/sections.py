"""The sections of a sweep file, and what they accept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from hflray import metrics
from hflray.config import MUTABLE, Section, TrackingConfig
from hflray.errors import nearest
from hflray.tasks import DEFAULT, TASKS, that

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASKS)]  # a mistake is told what is accepted, as of any other setting


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
    metric: str = Field(metrics.OBJECTIVE_TO_TARGET, description="a metric of the glossary, as it is when a trial ends")
    mode: Literal["min", "max"] = "min"


class EarlyStoppingConfig(Section):
    """Asynchronous successive halving: trials that are behind at their rungs are stopped."""

    name: Literal["asha"] = "asha"
    metric: str = Field(metrics.ACCURACY, description="a metric of the glossary, compared at equal rounds")
    mode: Literal["min", "max"] = "max"
    grace_rounds: int = Field(3, ge=1, description="rounds that every trial is given")
    reduction: int = Field(3, ge=2, description="one in so many goes on from a rung to the next")


class PopulationConfig(Section):
    """Population-based training: every few rounds the trials that are behind go on from those ahead, changed a little.

    The population is `tune.samples` trials; what changes are the swept keys, all of them drawn. A number is multiplied
    by 0.8 or 1.2, a choice moves to its neighbour in the list; `redraw` of the time it is drawn anew.
    """

    name: Literal["pbt"] = "pbt"
    metric: str = Field(metrics.ACCURACY, description="a metric of the glossary, compared at equal rounds")
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
    task: TaskName = DEFAULT
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
    def _the_task_agrees(self) -> Self:
        given = [name for name in TASKS[self.task].refuses if getattr(self.tune, name)]
        if given:
            others = that(lambda task: given[0] not in task.refuses)
            raise ValueError(f"tune.{given[0]}: got task '{self.task}'; accepted: task {others}; leave it out")
        return self
