"""Task ``experiment``: its results, what they save, and what it goes on from."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hflray.experiment import Experiment
from hflray.record import RoundRecord
from hflray.tasks import Job, Result, Saved
from hflray.tasks import experiment as module
from hflray.tasks.experiment import ExperimentTask
from tests.conftest import small_config

TASK = ExperimentTask()


def at(folder: Path, trial: str = "mine") -> Saved:
    return Saved(trial, lambda: contextlib.nullcontext(folder))


def saving(job: Job, folder: Path) -> list[Result]:
    """All results; the state after each round that is due is in `folder`."""
    results = []
    for result in TASK.run(job):
        if result.due:
            assert result.save is not None
            place = folder / str(result.step)
            place.mkdir(parents=True)
            result.save(place)
        results.append(result)
    return results


def test_a_result_for_each_round_with_what_the_experiment_records(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=3", "checkpoint.every=2")
    seen: list[RoundRecord] = []
    results = saving(Job(config, watch=lambda experiment: seen.append), tmp_path)
    assert [record.round for record in seen] == [result.step for result in results] == [1, 2, 3]
    assert [result.model_hash for result in results] == [record.model_hash for record in Experiment(config)]
    assert [result.last for result in results] == [False, False, True]
    assert [result.due for result in results] == [False, True, True]  # every second one, and the last
    assert [result.devices is None for result in results] == [False, True, True]
    assert all(result.schedule for result in results)


def test_without_checkpoints_nothing_is_due(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=2", "checkpoint.every=0")
    assert not any(result.due for result in saving(Job(config), tmp_path))


def test_it_goes_on_bit_for_bit_and_passes_over_what_is_damaged(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=4")
    whole = saving(Job(config), tmp_path)
    (after,) = list(TASK.run(Job(config, saved=[at(tmp_path / "3")])))
    assert (after.step, after.note, after.model_hash) == (4, None, whole[3].model_hash)
    (tmp_path / "3" / "state" / "state.json").write_text("{")
    results = list(TASK.run(Job(config, saved=[at(tmp_path / "3"), at(tmp_path / "2")])))
    assert [result.model_hash for result in results] == [result.model_hash for result in whole[2:]]
    assert str(results[0].note).endswith("; going on after round 2")
    assert results[1].note is None
    results = list(TASK.run(Job(config, saved=[at(tmp_path / "3"), at(tmp_path / "none")])))
    assert [result.step for result in results] == [1, 2, 3, 4]
    assert str(results[0].note).endswith("; starting from round 1")


def test_in_a_population_it_says_whose_state_it_took_over(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=3", "training.learning_rate=0.01")
    saving(Job(config), tmp_path)
    faster = small_config("scheduling.name=fedavg", "max_rounds=3", "training.learning_rate=0.02")
    job = Job(faster, saved=[at(tmp_path / "2", "other")], mutable=("training.learning_rate",))
    (result,) = TASK.run(job)
    assert result.note == "takes over other after round 2, with training.learning_rate 0.01 → 0.02"
    assert result.changes[-1]["from"] == "other"


def test_whoever_stops_asking_closes_the_experiment() -> None:
    closed: list[bool] = []

    def make(config: object) -> Experiment:
        experiment = Experiment(small_config("scheduling.name=fedavg", "max_rounds=3"))
        close = experiment.close
        experiment.close = lambda: (closed.append(True), close())[1]  # type: ignore[method-assign]
        return experiment

    run = TASK.run(Job(small_config(), make=make))
    next(run)
    assert not closed
    run.close()
    assert closed == [True]


def test_the_schedules_of_a_huge_fleet_are_left_out(monkeypatch) -> None:
    monkeypatch.setattr(module, "DETAILED_DEVICES", 3)
    (result,) = TASK.run(Job(small_config("scheduling.name=fedavg", "max_rounds=1")))
    assert result.schedule is None
    assert result.devices is None


@pytest.mark.parametrize("settings, name", [([], "digits"), (["data.name=fashion_mnist"], "fashion")])
def test_its_trials_are_named_by_data_scheduler_and_assigner(settings: list[str], name: str) -> None:
    config = small_config("scheduling.name=vkc", "seed=4", *settings)
    assert list(TASK.label(config).values()) == [name, "H6", "λ1", "vkc", "geographic", "s4"]
