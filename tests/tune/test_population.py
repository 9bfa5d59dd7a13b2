"""`hflray.tune.population`: which trials exchange which settings, and when there is no exchange."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import CheckpointConfig
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from hflray.sweep import PopulationConfig, load_sweep
from hflray.sweep.tasks.base import Job
from hflray.sweep.tasks.experiment import ExperimentTask
from hflray.tune.population import SCORE, Population, score, within
from tests.conftest import small_config

OVERRIDES = [
    "sweep.training.learning_rate={loguniform: [0.001, 0.1]}",
    "sweep.training.batch_size={choice: [8, 16, 32]}",
    "sweep.training.local_iterations={randint: [1, 3]}",
    "tune.samples=4",
    "tune.population={every: 2, replaced: 0.5}",
]


class FakeTrial:
    """The part of a Tune trial that the scheduler reads."""

    def __init__(self, name: str, rate: float) -> None:
        self.trial_id, self.status = name, Trial.RUNNING
        values = {"training.learning_rate": rate, "training.batch_size": 16, "training.local_iterations": 2}
        self.config: dict[str, Any] = {"values": {**values, "name": name}}
        self.experiment_tag = name
        self.checkpoint = f"checkpoint of {name}"
        self.temporary_state = SimpleNamespace(saving_to=None)
        manager = SimpleNamespace(_latest_checkpoint_result=None, checkpoint_config=CheckpointConfig(num_to_keep=4))
        self.run_metadata = SimpleNamespace(checkpoint_manager=manager)

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        self.experiment_tag = tag

    def is_finished(self) -> bool:
        return self.status == Trial.TERMINATED

    @property
    def adopted(self) -> str | None:
        """The checkpoint that the trial adopted, or None."""
        result = self.run_metadata.checkpoint_manager._latest_checkpoint_result
        return None if result is None else str(result.checkpoint)


class Controller:
    """The part of Tune's controller that the scheduler calls."""

    search_alg = None

    def __init__(self, trials: list[FakeTrial]) -> None:
        self.trials = trials

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    def get_live_trials(self) -> list[FakeTrial]:
        return [trial for trial in self.trials if not trial.is_finished()]

    def pause_trial(self, trial: FakeTrial, should_checkpoint: bool = True) -> None:
        trial.status = Trial.PAUSED

    def _schedule_trial_save(self, trial: FakeTrial, result: Any) -> str:
        return trial.checkpoint


@pytest.fixture
def population() -> tuple[Population, Controller, list[FakeTrial]]:
    scheduler = Population(load_sweep(None, OVERRIDES), "name")
    trials = [FakeTrial(name, rate) for name, rate in (("a", 0.001), ("b", 0.01), ("c", 0.02), ("d", 0.05))]
    controller = Controller(trials)
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
    return scheduler, controller, trials


def report(scheduler: Population, controller: Controller, trial: FakeTrial, index: int, value: float | None) -> str:
    result: dict[str, Any] = {"round": index, "training_iteration": index}
    decision = str(scheduler.on_trial_result(controller, trial, result | ({} if value is None else {SCORE: value})))
    if decision == TrialScheduler.PAUSE:
        trial.status = Trial.PAUSED
    return decision


def test_all_trials_wait_and_the_worst_adopt_the_state_of_the_best(population) -> None:
    scheduler, controller, trials = population
    for trial, value in zip(trials, (0.1, 0.2, 0.8, 0.9), strict=True):
        assert report(scheduler, controller, trial, 1, None) == TrialScheduler.CONTINUE
        assert report(scheduler, controller, trial, 2, value) in (TrialScheduler.PAUSE, TrialScheduler.NOOP)
    assert [trial.adopted is not None for trial in trials] == [True, True, False, False]
    for trial in trials[:2]:
        donor = next(candidate for candidate in trials if trial.adopted == candidate.checkpoint)
        assert donor.trial_id in "cd"
        values = trial.config["values"]
        assert values["name"] == trial.trial_id  # the trial adopts settings but keeps its name
        assert values["training.learning_rate"] != donor.config["values"]["training.learning_rate"]
        assert 0.001 <= values["training.learning_rate"] <= 0.1
        assert values["training.batch_size"] in (8, 16, 32)
        assert values["training.local_iterations"] in (1, 2, 3)


def test_trials_at_unequal_rounds_never_exchange(population) -> None:
    """After a resume a trial may have missed an exchange in which the other trials took part."""
    scheduler, controller, trials = population
    for trial, index, value in zip(trials, (2, 4, 4, 4), (0.1, 0.2, 0.8, 0.9), strict=True):
        report(scheduler, controller, trial, index, value)
    assert trials[0].adopted is None
    assert trials[1].adopted is not None


def test_trials_do_not_wait_for_one_that_has_ended(population) -> None:
    scheduler, controller, trials = population
    for trial in trials[:3]:
        report(scheduler, controller, trial, 2, 0.5)
    assert scheduler.choose_trial_to_run(controller) is None
    trials[3].status = Trial.TERMINATED
    scheduler.on_trial_complete(controller, trials[3], {"round": -1})
    assert scheduler.choose_trial_to_run(controller) in trials[:3]


def test_a_trial_reports_its_score_at_exchanges_only() -> None:
    settings = PopulationConfig(every=2)
    job = Job(small_config("scheduling.name=fedavg", "max_rounds=4"))
    scores = [score(result, settings) for result in ExperimentTask().run(job)]
    assert [list(entry) for entry in scores] == [[], [SCORE], [], []]
    assert 0 < scores[1][SCORE] < 1


def test_within_clips_values_to_their_range() -> None:
    axes = load_sweep(None, OVERRIDES).sweep
    values = {"training.learning_rate": 0.12, "training.batch_size": 32, "training.local_iterations": 0, "name": "x"}
    assert within(axes, values) == {
        "training.learning_rate": 0.1, "training.batch_size": 32, "training.local_iterations": 1, "name": "x",
    }  # fmt: skip
