"""Population-based training (``tune.population``): Ray Tune's scheduler with exchanges between whole rounds only.

Every few rounds all trials wait for each other. The worst trials then continue from the checkpoint of one of the best,
with slightly changed settings (`hflray.config.MUTABLE`). The source is Jaderberg et al., Population Based Training of
Neural Networks, 2017; as there, the factors are 0.8 and 1.2, a quarter is replaced and a quarter is redrawn.

A trial reports its score only at the rounds of an exchange (`score`), so no trial is replaced between exchanges or
after its last round. States are exchanged only between trials at the same round, because after a resume some trials may
have missed the last exchange.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from hflray.sweep import Axis, PopulationConfig, SweepFile
from hflray.sweep.tasks import Result

SCORE = "population"  # the key of a trial's score in its result


def score(result: Result, settings: PopulationConfig) -> dict[str, float]:
    """Return the entry with a round's score, or no entry between exchanges and after the last round."""
    if result.step % settings.every or result.last:
        return {}
    return {SCORE: result.metrics[settings.metric]}


class Population(PopulationBasedTraining):  # type: ignore[misc]  # Ray ships no types for it
    """Tune's scheduler in synchronous mode. A trial's parameters are ``{"values": {dotted key: value, NAME: name}}``.

    Args:
        file: a sweep file with ``tune.population``.
        name_key: the key of a trial's name among its values. The name is not exchanged.
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
        state, donor_state = self._trial_state[trial], self._trial_state[trial_to_clone]
        if state.last_train_time != donor_state.last_train_time:
            return
        name = trial.config["values"][self._name_key]
        super()._exploit(tune_controller, trial, trial_to_clone)
        values = {**trial.config["values"], self._name_key: name}
        trial.set_config({**trial.config, "values": values})

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Let the other trials continue if they wait for this one."""
        super().on_trial_complete(tune_controller, trial, result)
        self._release_waiting(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Let the other trials continue if they wait for this one."""
        super().on_trial_error(tune_controller, trial)
        self._release_waiting(tune_controller, trial)

    def _release_waiting(self, tune_controller: Any, trial: Any) -> None:
        """Let the other trials continue without an exchange if all of them wait for this one."""
        live = [t for t in tune_controller.get_live_trials() if t is not trial and t in self._trial_state]
        times = [self._trial_state[t].last_train_time for t in live]
        if times and min(times) >= self._next_perturbation_sync:
            self._next_perturbation_sync = max(times) + self._perturbation_interval


def _domain(axis: Axis) -> Any:
    """Return an axis in the form from which the scheduler draws. In a list it moves to a neighbouring value."""
    if axis.choice is not None:
        return list(axis.choice)
    if axis.randint is not None:
        return tune.randint(axis.randint[0], axis.randint[1] + 1)  # Tune excludes the upper end
    if axis.loguniform is not None:
        return tune.loguniform(*axis.loguniform)
    assert axis.uniform is not None
    return tune.uniform(*axis.uniform)


def within(axes: Mapping[str, Axis], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` clipped to the ranges of their axes, because a multiplication may leave the range."""
    clipped = dict(values)
    for key, axis in axes.items():
        ends = axis.uniform or axis.loguniform or axis.randint
        if ends is not None:
            clipped[key] = min(max(values[key], ends[0]), ends[1])
    return clipped
