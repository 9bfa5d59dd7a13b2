"""Population-based training (``tune.population``): Ray Tune's scheduler, held to whole rounds.

Every few rounds all trials wait for each other; then those that are behind go on from the checkpoint of one that is
ahead, with its settings changed a little (`hflray.config.MUTABLE`). Jaderberg et al., Population Based Training of
Neural Networks, 2017; factors 0.8 and 1.2, a quarter replaced and a quarter redrawn, as there.

A trial says how it stands only at the rounds of an exchange (`score`), so after its last round, or in between, none
is ever replaced. An exchange happens between equal rounds only: after a resume some may have missed the last one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from hflray.sweep import Axis, PopulationConfig, SweepFile
from hflray.tasks import Result

SCORE = "population"  # the key of a result under which a trial says how it stands


def score(result: Result, settings: PopulationConfig) -> dict[str, float]:
    """What a round's result says to the population: nothing between exchanges, and nothing after the last round."""
    if result.step % settings.every or result.last:
        return {}
    return {SCORE: result.metrics[settings.metric]}


class Population(PopulationBasedTraining):  # type: ignore[misc]  # Ray ships no types for it
    """Tune's scheduler in synchronous mode, for trials ``{"values": {dotted key: value, NAME: name}}``.

    Args:
        file: a sweep file with ``tune.population``.
        name_key: the key of a trial's name among its values; it stays with the trial.
    """

    _next_perturbation_sync: float

    def __init__(self, file: SweepFile, name_key: str) -> None:
        settings = file.tune.population
        assert settings is not None
        self._name_key, self._axes = name_key, dict(file.sweep)
        # The scheduler draws from Python's and NumPy's global generators.
        random.seed(file.tune.seed)
        np.random.seed(file.tune.seed % 2**32)  # noqa: NPY002
        super().__init__(
            time_attr="round",
            metric=SCORE,
            mode=settings.mode,
            perturbation_interval=settings.every,
            hyperparam_mutations={"values": {key: _domain(axis) for key, axis in file.sweep.items()}},
            quantile_fraction=settings.replaced,
            resample_probability=settings.redraw,
            custom_explore_fn=lambda config: {**config, "values": within(self._axes, config["values"])},
            require_attrs=False,
            log_config=False,
            synch=True,
        )

    def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
        mine, theirs = self._trial_state[trial], self._trial_state[trial_to_clone]
        if mine.last_train_time != theirs.last_train_time:
            return
        name = trial.config["values"][self._name_key]
        super()._exploit(tune_controller, trial, trial_to_clone)
        values = {**trial.config["values"], self._name_key: name}
        trial.set_config({**trial.config, "values": values})

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """A trial that ends is waited for no longer."""
        super().on_trial_complete(tune_controller, trial, result)
        self._go_on_without(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """As `on_trial_complete`."""
        super().on_trial_error(tune_controller, trial)
        self._go_on_without(tune_controller, trial)

    def _go_on_without(self, tune_controller: Any, trial: Any) -> None:
        """If all others wait, they waited for this one: they go on, without an exchange this time."""
        others = [t for t in tune_controller.get_live_trials() if t is not trial and t in self._trial_state]
        times = [self._trial_state[t].last_train_time for t in others]
        if times and min(times) >= self._next_perturbation_sync:
            self._next_perturbation_sync = max(times) + self._perturbation_interval


def _domain(axis: Axis) -> Any:
    """An axis as the scheduler draws from it; a list is one whose neighbours it moves to."""
    if axis.choice is not None:
        return list(axis.choice)
    if axis.randint is not None:
        return tune.randint(axis.randint[0], axis.randint[1] + 1)  # Tune leaves the upper end out
    if axis.loguniform is not None:
        return tune.loguniform(*axis.loguniform)
    assert axis.uniform is not None
    return tune.uniform(*axis.uniform)


def within(axes: Mapping[str, Axis], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values multiplied past the end of their range, back at that end."""
    kept = dict(values)
    for key, axis in axes.items():
        ends = axis.uniform or axis.loguniform or axis.randint
        if ends is not None:
            kept[key] = min(max(values[key], ends[0]), ends[1])
    return kept
