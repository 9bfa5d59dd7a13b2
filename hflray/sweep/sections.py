"""The sections of a sweep file and their accepted values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from hflray import metrics
from hflray.config import MUTABLE, Section, TrackingConfig
from hflray.errors import nearest
from hflray.support.references import short
from hflray.support.text import breaks_lines, one_line, shorten
from hflray.sweep.tasks import DEFAULT, TASKS, tasks_where

if TYPE_CHECKING:
    TaskName = str
else:  # the error for an unknown name then lists the accepted ones, as for any other setting
    TaskName = Literal[tuple(TASKS)]


ACCEPTED_METRICS = "accepted: the names of the glossary (docs/reference/metrics.md), and your own in target.metric"
# The metrics that a trial of any data may log with each round; those of other data than its own never arrive.
EACH_ROUND = tuple(dict.fromkeys((*metrics.PER_ROUND, *metrics.MAIN)))
LONGEST_NAME = 100  # characters of a sweep's name, to which a folder's name appends the time


class Axis(Section):
    """The values of one swept key.

    ``grid`` takes every combination with the other keys, and ``zip`` moves in step with the other zips. The other kinds
    are drawn ``tune.samples`` times for each combination.
    """

    grid: list[Any] | None = Field(None, description="every value")
    zip: list[Any] | None = Field(None, description="values that move in step with the other zips")
    choice: list[Any] | None = Field(None, description="the values from which one is drawn")
    uniform: tuple[float, float] | None = Field(None, description="[low, high], drawn uniformly")
    loguniform: tuple[float, float] | None = None
    """[low, high] above 0; the logarithm is drawn uniformly"""
    randint: tuple[int, int] | None = None
    """[low, high]; a whole number is drawn, both ends included"""

    def contradictions(self) -> Iterator[str]:
        if len(self.model_fields_set) != 1 or self.values is None:
            yield f"give exactly one of {', '.join(Axis.model_fields)}, such as grid: [1, 2]"
        if self.values == []:
            yield f"{self.kind}: got []; an empty list makes no trial; give at least one value, or remove the key"
        if self.kind in ("uniform", "loguniform", "randint") and self.values[0] > self.values[1]:
            yield f"{self.kind}: got {list(self.values)}; accepted: [low, high]; swap them"
        if self.uniform is not None and not np.isfinite(self.uniform[1] - self.uniform[0]):
            yield f"uniform: got {list(self.uniform)}; accepted: ends closer than 1.8e308; correct them"
        if self.randint is not None and not all(abs(end) < 2**62 for end in self.randint):
            yield f"randint: got {list(self.randint)}; accepted: ends within ±2⁶²; correct them"
        if self.loguniform is not None and self.loguniform[0] <= 0:
            yield f"loguniform: got {list(self.loguniform)}; both ends must be above 0"

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return next(iter(self.model_fields_set))

    @property
    def values(self) -> Any:
        """The values of the field that is set, or the ends of a range."""
        return getattr(self, self.kind)

    @property
    def drawn(self) -> bool:
        """Whether values are drawn."""
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


Mode = Annotated[
    Literal["min", "max"],
    Field(description="whether a small or a large value is better; without it, what suits the metric"),
]
Compared = Annotated[str, Field(description="a metric of the glossary or target.metric, compared at equal rounds")]


class _Comparing(Section):
    """A section that compares trials by a metric, which says which values are better unless `mode` does."""

    @model_validator(mode="before")
    @classmethod
    def _by_the_metric(cls, tree: Any) -> Any:
        metric = tree.get("metric") if isinstance(tree, dict) and "mode" not in tree else None
        if not isinstance(metric, str):
            return tree
        better = "max" if metrics.may_be_own(metric) else ""
        better = metrics.METRICS[metric].better if metric in metrics.METRICS else better
        return tree | {"mode": better} if better else tree


class SearchConfig(_Comparing):
    """A search that replaces a fixed list: each trial's values depend on the results of earlier trials."""

    name: Literal["optuna"] = Field("optuna", description="the search; Optuna's default sampler is TPE")
    metric: str = metrics.OBJECTIVE_TO_TARGET
    """a metric of the glossary or target.metric; its value at the end of a trial counts"""
    mode: Mode = "min"
    seeds: int = Field(1, ge=1, le=1000)
    """n; above 1, tune.samples counts settings: the first values of all axes, then others, none twice; each runs with
    the experiment's seed and, if that has the metric, with the n − 1 next ones; their mean counts"""
    delay_weight: float | None = Field(None, gt=0)
    """J/s: the λ of objective_to_target in place of each trial's own; null: each trial's own"""

    def cost(self, values: Mapping[str, float]) -> float | None:
        """Return what a trial has spent after a round of what the metric counts at the target; None: it counts no cost.

        Args:
            values: the metrics of the round.
        """
        if self.metric == metrics.OBJECTIVE_TO_TARGET and self.delay_weight is not None:
            return values[metrics.TOTAL_ENERGY_J] + self.delay_weight * values[metrics.TOTAL_DELAY_S]
        name = metrics.TOTAL_OF.get(self.metric)
        return None if name is None else values[name]


class EarlyStoppingConfig(_Comparing):
    """Asynchronous successive halving, which stops trials that are behind at their rungs."""

    name: Literal["asha"] = Field("asha", description="the rule that stops trials")
    metric: Compared = metrics.ACCURACY
    mode: Mode = "max"
    per: Literal["round", "cost"] = "round"
    """what is equal where trials are compared: rounds, or the cost that tune.search minimises"""
    grace_rounds: int = Field(3, ge=1, description="rounds that every trial runs at least")
    reduction: int = Field(3, ge=2, description="n: one in n trials continues from a rung to the next")


class PopulationConfig(_Comparing):
    """Population-based training: every few rounds the worst trials adopt the state of the best with changed settings.

    The population has `tune.samples` trials. The swept keys, which must all be drawn, are the settings that change. A
    number is multiplied by 0.8 or 1.2, and a choice moves to its neighbour in the list; with probability `redraw` the
    value is drawn anew instead.
    """

    name: Literal["pbt"] = Field("pbt", description="the method")
    metric: Compared = metrics.ACCURACY
    mode: Mode = "max"
    every: int = Field(5, ge=1, description="rounds between exchanges; at an exchange all trials wait for each other")
    replaced: float = Field(0.25, gt=0, le=0.5, description="share of the trials that adopt another trial's state")
    redraw: float = Field(0.25, ge=0, le=1, description="probability that a value is drawn anew")


class TuneConfig(Section):
    """The settings of Ray Tune."""

    cpus_per_trial: int = Field(1, ge=1)
    """CPUs of a trial; each has one device actor unless training says otherwise"""
    gpus_per_trial: float | None = Field(None, gt=0)
    """GPUs for the device actors of a trial that trains on GPUs; a value below 1 is a share of one GPU, so that trials
    share a card; null: 1"""
    max_concurrent: int | None = Field(None, ge=1, description="trials that run at a time; null: as many as fit")
    max_failures: int = Field(2, ge=0, description="how often a trial is restarted after its process was lost")
    reuse: bool = True
    """whether the next trial reuses a trial's process; false: each trial has its own process"""
    samples: int = Field(1, ge=1, le=1_000_000)
    """draws for each point of the grid; with a search, the number of trials"""
    seed: int = Field(0, ge=0, description="seed of the draws and of the search")
    stop: dict[str, float] = Field({})
    """a trial ends once a metric (of the glossary or target.metric) reaches its bound here, test_loss from above, by
    its name on the test set; as in all of tune, its value is that on the validation part where there is one"""
    search: SearchConfig | None = Field(None, description="a search that chooses values; null: none")
    early_stopping: EarlyStoppingConfig | None = None
    """stopping of trials that are behind; null: none"""
    population: PopulationConfig | None = Field(None, description="population-based training; null: none")

    def bound(self, values: Mapping[str, float]) -> str | None:
        """Return the first metric of `stop` whose bound a round with these values has reached; None: none has.

        A metric's value is that on the validation part where there is one.
        """
        for name, bound in self.stop.items():
            value = metrics.deciding(name, values)
            if value is not None and (value <= bound if name == metrics.TEST_LOSS else value >= bound):
                return name
        return None

    @field_validator("gpus_per_trial")
    @classmethod
    def _whole_or_a_part(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and value != int(value):
            raise ValueError("accepted: a part of one GPU, such as 0.5, or a whole number; round it")
        return value

    @property
    def named_metrics(self) -> list[tuple[str, str]]:
        """The dotted keys of the settings that name metrics, each with its metric."""
        compared = [(f"tune.{name}.metric", getattr(self, name).metric) for name in self.compares]
        return [*((f"tune.stop.{name}", name) for name in self.stop), *compared]

    @property
    def compares(self) -> list[str]:
        """The names of the sections that compare trials."""
        return [name for name in ("search", "early_stopping", "population") if getattr(self, name) is not None]

    def contradictions(self) -> Iterator[str]:
        search, halving = self.search, self.early_stopping
        if search is not None and self.seed >= 2**32:
            yield f"tune.seed: got {self.seed}; accepted for a search: 0 to {2**32 - 1:,}; lower it"
        if search is not None and search.delay_weight is not None and search.metric != metrics.OBJECTIVE_TO_TARGET:
            yield (
                f"tune.search.delay_weight: got {search.delay_weight:g} with the metric {search.metric}; accepted with "
                f"it: {metrics.OBJECTIVE_TO_TARGET}; remove one of them"
            )
        if halving is not None and halving.per == "cost" and (search is None or search.metric not in metrics.TOTAL_OF):
            accepted = ", ".join(metrics.TOTAL_OF)
            yield f"tune.early_stopping.per: got cost; it needs a tune.search of {accepted}; name one there"
        if self.population is not None and len(self.compares) > 1:
            yield f"tune.population cannot be combined with tune.{self.compares[0]}; keep one of them"
        if self.population is not None and self.samples < 2:
            yield f"tune.samples: got {self.samples}; a population needs at least 2 trials; raise it (4 or more help)"


class SweepFile(Section):
    """The contents of a sweep file."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_NAME)
    """letters, digits, . _ -; at most 100, the first a letter or a digit"""
    description: str = Field("", description="a line about the sweep, which lists and reports show")
    labels: dict[str, Annotated[str, Field(max_length=LONGEST_NAME)]] = Field({})
    """texts that reports show in place of values of settings, by the value: a registered name, a reference such as
    own.py:Mine, or the file of a policy"""
    task: TaskName = Field(DEFAULT, description="what each trial does")
    experiment: dict[str, Any] = Field({}, description="the configuration that all trials share")
    sweep: dict[str, Axis] = Field({}, description="the values of each swept key")
    tune: TuneConfig = TuneConfig()
    tracking: TrackingConfig | None = Field(None, description="where runs are logged, in place of experiment.tracking")

    @field_validator("sweep", mode="before")
    @classmethod
    def _axes(cls, sweep: Any) -> Any:
        if sweep is None:  # an empty section
            return {}
        if isinstance(sweep, dict):
            for key, axis in sweep.items():
                if not isinstance(axis, dict | Axis):
                    values = axis if isinstance(axis, list) else [axis]
                    raise ValueError(
                        f"{one_line(key)}: got {shorten(axis)}; accepted: a kind of axis with its values; write it as "
                        f"in {{grid: {shorten(values)}}}"
                    )
        return sweep

    @field_validator("labels", mode="before")
    @classmethod
    def _labels_differ(cls, labels: Any) -> Any:
        for key, label in labels.items() if isinstance(labels, dict) else ():
            if not isinstance(label, str) or not label.strip() or breaks_lines(label):
                raise ValueError(
                    f"{one_line(key)}: got {shorten(label)}; accepted: a text of one line that is not empty; write one"
                )
            if twin := next((name for name in labels if name != key and labels[name] == label), None):
                raise ValueError(
                    f"{one_line(key)}: got {shorten(label)}, which is the label of {one_line(twin)} too; accepted: "
                    "different texts; change one of them"
                )
        return {} if labels is None else labels  # an empty section

    def contradictions(self) -> Iterator[str]:
        each_round = (*self._own_metrics(), *EACH_ROUND)
        final = (*each_round, *metrics.AT_THE_END)
        for key, name in self.tune.named_metrics:
            accepted = final if key == "tune.search.metric" else each_round
            if name not in accepted:
                yield f"{key}: unknown metric '{one_line(name)}'{nearest(name, accepted)}; {ACCEPTED_METRICS}"
        yield from self._undrawn()
        refused = [name for name in TASKS[self.task].refuses if getattr(self.tune, name)]
        if refused:
            accepted_tasks = tasks_where(lambda task: refused[0] not in task.refuses)
            yield f"tune.{refused[0]}: got task '{self.task}'; accepted: task {accepted_tasks}; leave it out"

    def _own_metrics(self) -> list[str]:
        """Return the names under which the trials log metrics of the user's own (`target.metric`)."""
        section, axis = self.experiment.get("target"), self.sweep.get("target.metric")
        values = [section.get("metric")] if isinstance(section, dict) else []
        values += axis.values if axis is not None else []
        names = [short(value) for value in values if isinstance(value, str)]
        return [name for name in dict.fromkeys(names) if metrics.may_be_own(name)]

    def _undrawn(self) -> Iterator[str]:
        """Yield what a search or a population, whose values are drawn, cannot have below ``sweep``."""
        drawn = "accepted: choice, uniform, loguniform, randint"
        fixed = [f"sweep.{key} is a {axis.kind}" for key, axis in self.sweep.items() if not axis.drawn]
        if self.tune.search is not None and (fixed or not self.sweep):
            yield f"tune.search: {[*fixed, 'sweep is empty'][0]}; {drawn}; change the sweep"
        if self.tune.search is not None and self.tune.search.seeds > 1 and "seed" in self.sweep:
            yield f"sweep.seed: got it with tune.search.seeds = {self.tune.search.seeds}; remove one of them"
        if self.tune.population is None:
            return
        if fixed:
            why = "the trials of a population differ only in the settings that they mutate"
            yield f"tune.population: {fixed[0]}; {why}; {drawn}"
        for key in self.sweep:
            if key not in MUTABLE:
                yield f"tune.population: sweep.{key} cannot change between rounds; accepted: {', '.join(MUTABLE)}"
        if not self.sweep:
            yield "tune.population: sweep is empty; draw at least one of " + ", ".join(MUTABLE)
