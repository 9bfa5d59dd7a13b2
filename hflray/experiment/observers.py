"""What watches the rounds of an experiment: the base class of a user's own observers, and hflray's own.

An experiment tells each observer what is planned before a round trains, and what has happened after it. Numbers that an
observer returns are logged with the round, and an observer may end the run. hflray's own count what privacy costs
(`Accountant`), look at the target (`hflray.experiment.target`), and say how a round went (`Conditions`). The
setting ``observers`` names the user's, which come last.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from hflray import metrics, registry
from hflray.config import ExperimentConfig
from hflray.config.clock import CloudClockConfig
from hflray.config.experiment import ObserverConfig
from hflray.data.resampled import LabelCounts
from hflray.errors import ConfigError
from hflray.experiment.record import PlannedRound, RoundRecord
from hflray.scheduling import DeviceHistory
from hflray.support import references
from hflray.support.arrays import IntArray, Stateful, freeze
from hflray.support.contract import Contract, described
from hflray.timeline import Timeline
from hflray.training.privacy import epsilon_of

ACCEPTED = "a dict of finite numbers, by Python names that no other logged value has, or None"


class Observer(Stateful):
    """Watches the rounds of an experiment. A subclass defines what it needs; every method has a default.

    It is made without arguments besides its options, and lives where the experiment does, so that any number of actors
    gives it the same. What it depends on after a resume are the attributes that it names in `state_names`.

    Examples:
        >>> from hflray import Observer
        >>> class Spent(Observer):
        ...     state_names = ("energy_j",)
        ...     energy_j = 0.0
        ...     def after(self, record):
        ...         self.energy_j += float(record.cost.energy_j)
        ...         return {"spent_j": self.energy_j}
        ...     def stops(self):
        ...         return self.energy_j > 1000
        >>> Spent().state_dict()
        {'energy_j': 0.0}
    """

    def before(self, plan: PlannedRound) -> None:
        """Take note of the plan of the next round, before it trains."""

    def after(self, record: RoundRecord) -> Mapping[str, float] | None:
        """Take note of a round that has ended; return numbers to log with it by their names, or None."""
        return None

    def stops(self) -> bool:
        """Return whether the run ends: after the last round, or before the one of whose plan `before` has told.

        For a class that defines both `before` and this, each next round is planned once more, for a copy of it.
        """
        return False


class Watcher(Observer):
    """An observer as an experiment keeps it. Its state is a part of the experiment's, by names of its own.

    Attributes:
        name: how messages call what ends a run.
        foresees: whether it may end the run before a round because of its plan.
    """

    name: str = ""
    foresees: bool = False

    def logged(self, record: RoundRecord) -> RoundRecord:
        """Return the record of a round that has ended, with what this observer logs."""
        return replace(record, conditions=record.conditions | dict(self.after(record) or {}))

    def too_early(self) -> ConfigError:
        """Return the error of an end before round 1."""
        return ConfigError(
            f"{self.name} ends the run before round 1, which would leave no result; accepted: an end after round 1 or "
            "later; correct it"
        )


class UsersObserver(Watcher):
    """An observer of the user's own, whose results are checked.

    Args:
        section: its name and its options.
        place: its place among the observers, from 0.

    Raises:
        ConfigError: there is no such class, or an option is wrong.
    """

    def __init__(self, section: ObserverConfig, place: int) -> None:
        self._observer: Observer = registry.build("observer", section.name, **section.options)
        self.name, self._key = f"observers: {references.spoken(section.name)}", f"observers.{place}"
        made = type(self._observer)
        self.foresees = made.before is not Observer.before and made.stops is not Observer.stops
        self._contract = Contract.of("observers", section.name, ACCEPTED, "mend its method after")

    @classmethod
    def all_of(cls, config: ExperimentConfig) -> list[Self]:
        """Return all observers that a configuration names."""
        return [cls(section, place) for place, section in enumerate(config.observers)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = copy.copy(self)
        try:
            copied._observer = copy.deepcopy(self._observer, memo)
        except Exception as error:  # an open file, or what the user's own copying raises
            contract = self._contract._replace(accepted="attributes that can be copied", fix="open files in after")
            raise contract.error(f"from its constructor what cannot be copied ({references.reason(error)})") from error
        return copied

    def before(self, plan: PlannedRound) -> None:
        """See `Observer.before`. The user's code cannot change the plan's arrays."""
        freeze(plan, plan.schedule, plan.allocation, plan.cost, plan.timeline)
        self._observer.before(plan)

    def after(self, record: RoundRecord) -> dict[str, float]:
        """Return what the observer logs. Raises ConfigError: it is no dict of numbers, or a name is taken."""
        freeze(record.plan, record.plan.schedule, record.allocation, record.cost, record.timeline)
        values, taken = self._observer.after(record), record.metrics()
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            raise self._contract.error(described(values))
        for name in values:
            if not (isinstance(name, str) and metrics.may_be_own(name)) or name in taken:
                raise self._contract.error(f"the name {name!r}")
        numbers = {name: self._contract.array(value, (), where=f" as {name!r}") for name, value in values.items()}
        return {name: float(number) for name, number in numbers.items()}

    def stops(self) -> bool:
        """Return whether the run ends. Raises ConfigError: the observer says neither True nor False."""
        contract = self._contract._replace(accepted="True or False", fix="mend its method stops")
        return bool(contract.array(self._observer.stops(), (), "b"))

    def state_dict(self) -> dict[str, Any]:
        """Return the observer's state. Raises ConfigError: JSON cannot hold it."""
        return {self._key: self._contract.state(self._observer.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`, which may hold more than this."""
        self._observer.load_state_dict(state[self._key])


class Accountant(Watcher):
    """The uploads of each device so far, and their ε (`hflray.training.privacy`).

    Args:
        config: the configuration, with the section ``privacy``.

    Attributes:
        releases: the number of uploads of each device that arrived at an edge, (N,), also where the edge failed later.

    Raises:
        ConfigError: `target.epsilon` does not even allow one round.
    """

    name = "target.epsilon"

    def __init__(self, config: ExperimentConfig) -> None:
        section, limit, iterations = config.privacy, config.target.epsilon, config.training.edge_iterations
        self._section, self._limit, self.foresees = section, limit, limit is not None
        self.releases = self._next = np.zeros(config.fleet.num_devices, np.int64)
        first = self._epsilon(iterations)
        if limit is not None and first > limit:
            raise ConfigError(
                f"target.epsilon: got {limit:g}, but one round of {iterations} edge iterations costs ε = {first:.4g} "
                f"with privacy.noise_multiplier = {section.noise_multiplier:g}; accepted: at least as much; raise it "
                "or privacy.noise_multiplier, or lower training.edge_iterations"
            )

    def _epsilon(self, releases: int) -> float:
        """Return the ε of so many uploads of one device."""
        return epsilon_of(math.sqrt(releases) / self._section.noise_multiplier, self._section.delta)

    def before(self, plan: PlannedRound) -> None:
        """Count the uploads of a planned round. A device may be there twice."""
        self._next = self.releases.copy()
        np.add.at(self._next, plan.timeline.devices, plan.timeline.arrived.sum(axis=0))

    def after(self, record: RoundRecord) -> dict[str, float]:
        """Return the largest ε of a device."""
        self.releases = self._next
        return {metrics.PRIVACY_EPSILON: self._epsilon(int(self.releases.max(initial=0)))}

    def stops(self) -> bool:
        """Return whether a device has a larger ε than the limit, after the round that was planned last."""
        return self._limit is not None and self._epsilon(int(self._next.max(initial=0))) > self._limit

    def state_dict(self) -> dict[str, Any]:
        """Return the counts under the name that checkpoints have for them."""
        return {"privacy.releases": self.releases.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self.releases = self._next = np.array(state["privacy.releases"], dtype=np.int64)


class Conditions(Watcher):
    """How a round went: its classes, and what clock, world and aggregators did to it. It has no state.

    Args:
        config: the configuration.
        class_counts: samples of each class at each device, (N, C).
        least: the number of models that the edges' aggregator needs.
        history: returns what is remembered of each device after the round.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        class_counts: IntArray | LabelCounts,
        least: int,
        history: Callable[[], DeviceHistory],
    ) -> None:
        self._clock, self._class_counts, self._least, self._history = config.clock, class_counts, least, history

    def after(self, record: RoundRecord) -> dict[str, float]:
        """Return the round's metrics."""
        balance = metrics.class_balance(self._class_counts[record.devices].sum(axis=0))
        values = {metrics.CLASS_BALANCE: balance}
        if record.deviates:
            values[metrics.FAIRNESS] = metrics.jain_index(self._history().participation)
        if self._least > 1:
            values[metrics.ROUND_TOO_FEW] = float(_too_few(record.timeline, self._least))
        if self._clock.cloud != CloudClockConfig():
            values[metrics.CLOCK_S] = record.totals["delay_s"]
        updates = () if record.plan.played is None else record.plan.played.updates
        if self._clock.cloud.asynchronous is not None:
            values[metrics.ROUND_UPDATES] = float(len(updates))
            if updates:
                values[metrics.ROUND_STALENESS] = float(np.mean([update.staleness for update in updates]))
        if self._clock.edge.asynchronous is not None:
            mixes = [mix for update in updates for mix in update.turn.mixes]
            values[metrics.ROUND_ARRIVALS] = float(len(mixes))
            if mixes:
                values[metrics.ROUND_DEVICE_STALENESS] = float(np.mean([mix.staleness for mix in mixes]))
        return values


def _too_few(happens: Timeline, least: int) -> int:
    """Return in how many edge iterations an edge with devices got fewer models than its aggregator needs."""
    groups = happens.edges
    if happens.turn is not None:
        _, groups = np.unique(np.stack([happens.edges, happens.turn]), axis=1, return_inverse=True)
    arrived = [np.bincount(groups[row]) for row in happens.participates]
    return int(sum(((counts > 0) & (counts < least)).sum() for counts in arrived))
