"""When a run stops, and the metric of the user's own that may decide it (``target.metric``).

A metric of the user's own is a function of the network's outputs for the whole test set and of the targets, as NumPy
arrays. The process of the experiment calls it once in each evaluation, with the outputs in the order of the test set,
so that it has the same value for any number of actors. Where there is a validation part (``data.validation``), the
model is evaluated on it as well, and these values decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hflray import metrics, registry
from hflray.aggregation import FloatVector
from hflray.config import ExperimentConfig
from hflray.data import Dataset
from hflray.errors import ConfigError, DivergedError
from hflray.experiment.observers import Watcher
from hflray.experiment.record import RoundRecord
from hflray.losses import METRIC_OF
from hflray.support.arrays import IntArray
from hflray.support.contract import Contract
from hflray.support.references import reason, short
from hflray.training.hierarchy import Hierarchy
from hflray.training.job import Part

NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)
ACCEPTED = "a function of the outputs (n, …) and the targets (n,), as NumPy arrays, that returns a finite number"


class Scores(NamedTuple):
    """What an evaluation of the global model gives.

    Attributes:
        score: the main metric of the kind of data.
        loss: the mean loss.
        named: the metric of the user's own by its name, if there is one.
    """

    score: float
    loss: float
    named: Mapping[str, float] = MappingProxyType({})


class Evaluations(NamedTuple):
    """What is known of the global model after a round.

    Attributes:
        test: its scores on the test set, which are reported.
        judged: those that decide: on the validation part if there is one, else `test`.
        logged: what is logged beside score and loss on the test set, by name.
    """

    test: Scores
    judged: Scores
    logged: Mapping[str, float]


class UserMetric:
    """A metric of the user's own on a data set's test set and validation part.

    Args:
        name: the reference or the registered name of the function.
        dataset: the data set. The outputs and targets of a regression are given to the function in their own unit.
        validation: the training samples that are the validation part.

    Attributes:
        name: the name under which its values are logged.

    Raises:
        ConfigError: there is no such function.
    """

    def __init__(self, name: str, dataset: Dataset, validation: IntArray = NO_ROWS) -> None:
        self.name, self._dataset, self._contract = short(name), dataset, Contract.of("target.metric", name, ACCEPTED)
        self._targets: dict[Part, NDArray[Any]] = {"test": dataset.y_test, "validation": dataset.y_train[validation]}
        self._function: Callable[[NDArray[Any], NDArray[Any]], Any] = registry.resolve("metric", name)

    @classmethod
    def of(cls, config: ExperimentConfig, dataset: Dataset, validation: IntArray = NO_ROWS) -> Self | None:
        """Return the metric of a configuration after it has been tried; None: the configuration names none.

        It is tried with the targets of each part that is evaluated and with outputs that are drawn at random.

        Raises:
            ConfigError: there is no such function, it fails, or it does not return a finite number.
        """
        if config.target.own_metric is None:
            return None
        metric = cls(config.target.own_metric, dataset, validation)
        rng = np.random.default_rng(0)
        for part, targets in metric._targets.items():
            if len(targets):
                metric.value([rng.standard_normal((len(targets), dataset.num_classes), dtype=np.float32)], part)
        return metric

    def value(self, outputs: Sequence[NDArray[np.float32]], part: Part = "test") -> float:
        """Return the metric of the outputs for a part of the data, which are given in pieces of (…, num_outputs).

        Raises:
            ConfigError: the function fails or does not return a finite number; the message gives the user's line.
        """
        values: NDArray[Any] = np.concatenate(outputs)
        targets = self._targets[part]
        if self._dataset.kind == "regression":
            values, targets = (
                self._dataset.target_mean + self._dataset.target_std * scaled.astype(np.float64)
                for scaled in (values[:, 0], targets)
            )
        try:
            value = self._function(values, targets.copy())
        except Exception as error:  # a user's function may raise any type
            contract = self._contract
            raise ConfigError(
                f"{contract.setting}: {contract.part} fails ({reason(error)}); accepted: {ACCEPTED}; {contract.fix}"
            ) from error
        return self._contract.number(value)


@dataclass(eq=False)
class Target(Watcher):
    """When a run stops, and what it took until then.

    Attributes:
        metric: the name under which the metric is logged.
        value: the value of the metric at which the run stops; None: it does not stop before its last round.
        users: the metric if it is the user's own; else None.
        main: the main metric of the kind of data.
        validates: whether there is a validation part, which decides.
        reached: the totals of ``objective``, ``delay_s`` and ``energy_j`` up to the target, and ``rounds``; empty until
            then.
    """

    name = "target"
    state_names = ("reached",)

    metric: str
    value: float | None
    users: UserMetric | None = None
    main: str = metrics.ACCURACY
    validates: bool = False
    reached: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ExperimentConfig, dataset: Dataset, validation: IntArray = NO_ROWS) -> Self:
        """Return the target of a configuration for a data set and the rows of its validation part.

        Raises:
            ConfigError: data of its kind have no such metric, or the metric of the user's own is none.
        """
        kind, section = dataset.kind, config.target
        main = METRIC_OF[kind]
        if config.target_accuracy is not None and main != metrics.ACCURACY:
            raise ConfigError(
                f"target_accuracy: got {config.target_accuracy}, but data of the kind {kind} have no accuracy; "
                f"accepted: null; remove it, and set target: {{metric: {main}, value: …}}"
            )
        metric, users = section.name or main, UserMetric.of(config, dataset, validation)
        if users is None and metric not in (main, metrics.TEST_LOSS):
            raise ConfigError(
                f"target.metric: got '{metric}' for data of the kind {kind}; accepted: {main}, {metrics.TEST_LOSS}, or "
                "a function of your own; correct it"
            )
        if config.target_accuracy is not None:
            return cls(main, config.target_accuracy, users, main, bool(len(validation)))
        return cls(metric, section.value, users, main, bool(len(validation)))

    def evaluate(self, hierarchy: Hierarchy, index: int, model: FloatVector) -> Evaluations:
        """Evaluate the global model after a round, on the test set and on the validation part if there is one.

        Args:
            hierarchy: the training backend.
            index: the number of the round, for messages.
            model: the global model, (P,).

        Raises:
            ConfigError: the metric of the user's own fails; see `UserMetric.value`.
            DivergedError: a loss is not finite.
        """
        test = self._scores(hierarchy, index, model, "test")
        if not self.validates:
            return Evaluations(test, test, test.named)
        judged = self._scores(hierarchy, index, model, "validation")
        values = {self.main: judged.score, metrics.TEST_LOSS: judged.loss, **judged.named}
        on_validation = {metrics.on_validation(name): value for name, value in values.items()}
        return Evaluations(test, judged, {**test.named, **on_validation})

    def _scores(self, hierarchy: Hierarchy, index: int, model: FloatVector, part: Part) -> Scores:
        score, loss, outputs = hierarchy.evaluate(model, keeps_outputs=self.users is not None, part=part)
        if not math.isfinite(loss):
            raise DivergedError(f"round {index}: the {part} loss is {loss}; lower training.learning_rate")
        if self.users is None:
            return Scores(score, loss)
        try:
            return Scores(score, loss, {self.users.name: self.users.value(outputs, part)})
        except ConfigError as error:
            raise ConfigError(f"round {index}: {error}") from error

    def after(self, record: RoundRecord) -> None:
        """Note what the first round took whose metric is at least the target, or whose loss is at most."""
        value = metrics.deciding(self.metric, record.metrics())
        if self.reached or self.value is None or value is None:
            return
        if value <= self.value if self.metric == metrics.TEST_LOSS else value >= self.value:
            self.reached = {name: record.totals[name] for name in ("objective", "delay_s", "energy_j")}
            self.reached["rounds"] = float(record.round)

    def stops(self) -> bool:
        """Return whether the target was reached."""
        return bool(self.reached)

    def summary(self) -> dict[str, float]:
        """Return the glossary's metrics of a run's end; empty until the target is reached."""
        names = {
            "rounds": metrics.ROUNDS_TO_TARGET, "objective": metrics.OBJECTIVE_TO_TARGET,
            "delay_s": metrics.DELAY_TO_TARGET_S, "energy_j": metrics.ENERGY_TO_TARGET_J,
        }  # fmt: skip
        return {names[name]: value for name, value in self.reached.items()}
