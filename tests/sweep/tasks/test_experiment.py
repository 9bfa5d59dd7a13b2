"""Task ``experiment``: its results, the states it saves, and how it continues from them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.support.arrays import inflated
from hflray.sweep.tasks import Job, Result, Saved
from hflray.sweep.tasks import experiment as module
from hflray.sweep.tasks.experiment import ExperimentTask
from tests.conftest import small_config

TASK = ExperimentTask()


def checkpoint_at(folder: Path, trial: str = "own") -> Saved:
    return Saved(trial, lambda: contextlib.nullcontext(folder))


def run_and_save(job: Job, folder: Path) -> list[Result]:
    """Return all results, and save each state that is due below `folder`, under the number of its round."""
    results = []
    for result in TASK.run(job):
        if result.due:
            assert result.save is not None
            target = folder / str(result.step)
            target.mkdir(parents=True)
            result.save(target)
        results.append(result)
    return results


def test_a_result_for_each_round_with_what_the_experiment_records(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=3", "checkpoint.every=2")
    records: list[RoundRecord] = []
    results = run_and_save(Job(config, watch=lambda experiment: records.append), tmp_path)
    assert [record.round for record in records] == [result.step for result in results] == [1, 2, 3]
    assert [result.model_hash for result in results] == [record.model_hash for record in Experiment(config)]
    assert [result.last for result in results] == [False, False, True]
    assert [result.due for result in results] == [False, True, True]  # every second round and the last one
    assert [result.devices is None for result in results] == [False, True, True]
    assert all(result.schedule for result in results)
    assert all(result.timeline is None for result in results)  # the world and the clock are off


def test_a_round_that_goes_otherwise_than_planned_comes_with_its_timeline(monkeypatch) -> None:
    config = small_config(
        "scheduling.name=fedavg", "max_rounds=2", "clock.edge.deadline=0.9", "allocation.method=equal"
    )
    records: list[RoundRecord] = []
    for result in TASK.run(Job(config, watch=lambda experiment: records.append)):
        happens = records[-1].timeline
        assert result.timeline is not None
        assert inflated(result.timeline) == happens.table()
        assert 0 < sum(happens.table()["counts"]) < 12
    monkeypatch.setattr(module, "DETAILED_DEVICES", 11)
    assert next(iter(TASK.run(Job(config)))).timeline is None


def test_without_checkpoints_nothing_is_due(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=2", "checkpoint.every=0")
    assert not any(result.due for result in run_and_save(Job(config), tmp_path))


def test_it_continues_bit_for_bit_and_skips_damaged_checkpoints(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=4")
    whole = run_and_save(Job(config), tmp_path)
    (after,) = list(TASK.run(Job(config, saved=[checkpoint_at(tmp_path / "3")])))
    assert (after.step, after.note, after.model_hash) == (4, None, whole[3].model_hash)
    (tmp_path / "3" / "state" / "state.json").write_text("{")
    results = list(TASK.run(Job(config, saved=[checkpoint_at(tmp_path / "3"), checkpoint_at(tmp_path / "2")])))
    assert [result.model_hash for result in results] == [result.model_hash for result in whole[2:]]
    assert str(results[0].note).endswith("; going on after round 2")
    assert results[1].note is None
    results = list(TASK.run(Job(config, saved=[checkpoint_at(tmp_path / "3"), checkpoint_at(tmp_path / "none")])))
    assert [result.step for result in results] == [1, 2, 3, 4]
    assert str(results[0].note).endswith("; starting from round 1")


def test_in_a_population_its_note_names_the_adopted_trial(tmp_path) -> None:
    config = small_config("scheduling.name=fedavg", "max_rounds=3", "training.learning_rate=0.01")
    run_and_save(Job(config), tmp_path)
    faster = small_config("scheduling.name=fedavg", "max_rounds=3", "training.learning_rate=0.02")
    job = Job(faster, saved=[checkpoint_at(tmp_path / "2", "other")], mutable=("training.learning_rate",))
    (result,) = TASK.run(job)
    assert result.note == "adopts the state of other after round 2, with training.learning_rate 0.01 → 0.02"
    assert result.changes[-1]["from"] == "other"


def test_closing_the_iterator_closes_the_experiment() -> None:
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


def test_a_huge_fleet_logs_no_schedules(monkeypatch) -> None:
    monkeypatch.setattr(module, "DETAILED_DEVICES", 3)
    (result,) = TASK.run(Job(small_config("scheduling.name=fedavg", "max_rounds=1")))
    assert result.schedule is None
    assert result.devices is None


@pytest.mark.parametrize("settings, name", [([], "digits"), (["data.name=fashion_mnist"], "fashion")])
def test_its_trials_are_named_by_data_scheduler_and_assigner(settings: list[str], name: str) -> None:
    config = small_config("scheduling.name=vkc", "seed=4", *settings)
    assert list(TASK.label(config).values()) == [name, "H6", "λ1", "vkc", "geographic", "s4"]


@pytest.mark.parametrize(
    "settings",
    [
        ("training.rule.name=scaffold", "compression.device.name=top_k", "compression.edge.name=sign"),
        (
            "aggregation.cloud.name=fedadam",
            "aggregation.weights=uniform",
            "training.rule.name=mtgc",
            "privacy.clip=0.5",
        ),
    ],
)
def test_the_estimate_of_memory_counts_what_is_kept_inside_the_round(tmp_path, settings: tuple[str, ...]) -> None:
    sizes = ("fleet.num_devices=12", "fleet.num_edges=2", "scheduling.num_scheduled=12", "model.name=logistic")
    config = small_config("scheduling.name=fedavg", "max_rounds=1", *settings, *sizes)
    run_and_save(Job(config), tmp_path)
    written = sum(path.stat().st_size for path in (tmp_path / "1").rglob("*") if path.is_file())
    with Experiment(config) as experiment:
        model_bytes = experiment.global_model.nbytes
    kept = module.kept_inside(config, model_bytes)
    assert kept > 2 * model_bytes
    assert abs(written - model_bytes - kept) < 9_000  # the configuration, and the names of arrays


@pytest.mark.parametrize("cloud", ["{rule: fedat, updates: 1}", "{buffer: 3, updates: 1}"])
def test_the_estimate_of_memory_counts_what_an_asynchronous_cloud_keeps(tmp_path, cloud: str) -> None:
    """It is an upper bound, because an edge that waits for a plan has fetched nothing."""
    sizes = ("fleet.num_devices=12", "fleet.num_edges=4", "scheduling.num_scheduled=12", "model.name=logistic")
    config = small_config("scheduling.name=fedavg", "max_rounds=1", f"clock.cloud={{asynchronous: {cloud}}}", *sizes)
    run_and_save(Job(config), tmp_path)
    written = sum(path.stat().st_size for path in (tmp_path / "1").rglob("*") if path.is_file())
    with Experiment(config) as experiment:
        model_bytes = experiment.global_model.nbytes
    kept = module.kept_inside(config, model_bytes)
    assert kept >= 4 * model_bytes
    assert 2 * model_bytes < written <= model_bytes + kept + 9_000
