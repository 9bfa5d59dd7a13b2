"""`hflray.sweep.tasks`: the table of tasks, and what holds for every task."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hflray import metrics
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.study import run_study
from hflray.sweep import SweepFile, TuneConfig, load_sweep, tasks
from hflray.sweep.tasks import DEFAULT, TASKS, Job, Result, Task, find_task, tasks_where
from hflray.sweep.tasks.base import ONE_BY_ONE, Results
from hflray.sweep.tasks.studies import AssignmentTask, ClusteringTask, assigner_label
from hflray.sweep.trials import run_name
from tests.conftest import cases, refusal, small_config


def test_find_task_returns_every_task_by_its_name() -> None:
    assert list(TASKS) == ["experiment", "train_assigner", "train_scheduler", "assignment", "clustering"]
    assert all(find_task(name).name == name for name in TASKS)
    assert SweepFile().task == DEFAULT == "experiment"
    with pytest.raises(ConfigError, match=r"task: got 'clusterin'; accepted: .*; did you mean 'clustering'\?"):
        find_task("clusterin")


def test_the_error_for_an_unknown_task_lists_the_accepted_ones() -> None:
    names = "'experiment' or 'train_assigner' or 'train_scheduler' or 'assignment' or 'clustering'"
    with pytest.raises(ConfigError, match=f"accepted: {names}"):
        load_sweep(None, ["task=fly"])


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_facts_of_a_task_are_consistent(task: Task) -> None:
    assert set(task.refuses) <= set(TuneConfig.model_fields)
    assert task.saves or task.product is None
    assert task.needs_data or not task.trains_model
    config = load_config()
    assert task.total(config) >= task.steps(config) >= 0
    small = load_config(None, [f"{key}={value!r}" for key, value in task.shrink(config).items() if value is not None])
    assert small.max_rounds <= 10
    assert small.data.name == ("synthetic" if task.needs_data else config.data.name)
    assert run_name(config, {}, task.name) == "-".join(part for part in task.label(config).values() if part)


def test_tasks_where_joins_the_names_for_a_message() -> None:
    assert tasks_where(lambda task: task.trains_model) == "'experiment'"
    assert tasks_where(lambda task: not task.needs_data) == "'train_assigner' or 'train_scheduler' or 'assignment'"


class Counting(Task):
    """A minimal task."""

    name = "counting"
    refuses = ONE_BY_ONE[:1]
    closed: ClassVar[list[int]] = []

    def run(self, job: Job) -> Results:
        try:
            for step in range(1, job.config.max_rounds + 1):
                yield Result(step, {"accuracy": step / 10, "round/objective": 1234.5}, last=step == 3)
        finally:
            self.closed.append(1)


def test_a_new_task_is_a_class_and_a_line(monkeypatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "counting", Counting())
    task, config = find_task("counting"), small_config("max_rounds=3")
    results = list(task.run(Job(config)))
    assert [result.step for result in results] == [1, 2, 3]
    assert task.progress(config, 2, results[1].metrics) == (2, 3, "round", "accuracy 20.0%, objective 1,234.5")
    file = SweepFile.model_construct(task="counting", tune=TuneConfig(stop={"accuracy": 0.5}))
    refused = "tune.stop: got task 'counting'; accepted: task 'experiment'; leave it out"
    assert list(file.contradictions()) == [refused]
    run = task.run(Job(config))
    next(run)
    Counting.closed.clear()
    run.close()
    assert Counting.closed == [1]


# Task ``assignment`` yields a result for each fleet, needs no data, and gives assigners distinct names.


TASK = AssignmentTask()


def test_it_yields_the_results_of_the_study() -> None:
    config = load_config(None, ["max_rounds=3", "assignment.name=geographic"])
    results = list(TASK.run(Job(config)))
    assert [result.step for result in results] == [1, 2, 3]
    assert [result.last for result in results] == [False, False, True]
    bills = [{**result.metrics, "wall/assign_s": 0.0} for result in results]
    assert bills == [{**fleet.metrics(), "wall/assign_s": 0.0} for fleet in run_study(config)]


def test_it_bills_the_named_data_set_and_checks_the_assigner() -> None:
    cifar = TASK.complete(load_config(None, ["data.name=cifar10"]))
    assert cifar.cost.model_kb == 882.0
    with pytest.raises(ConfigError, match="for a task that loads no data"):
        TASK.complete(load_config(None, ["data.name=synthetic"]))
    with pytest.raises(ConfigError, match="speed"):
        TASK.check(load_config(None, ["assignment.options={speed: 9}"]))


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("world.fading.name=rayleigh", "world: got settings for the task assignment"),
        ("clock.cloud=asynchronous", "clock: got settings for the task assignment"),
        ("clock.edge={deadline_s: 3}", "clock: got settings for the task assignment"),
        ("scheduling.name=energy_aware", "scheduling.name: got energy_aware for the task assignment"),
        (
            "allocation.limits={drop: true, device_delay_s: 9}",
            "allocation.limits.drop: got true for the task assignment",
        ),
    ],
)
def test_what_changes_a_round_but_not_the_study_is_refused(setting: str, refused: str) -> None:
    with refusal(ConfigError, refused, "accepted", "leave it out"):
        TASK.check(load_config(None, [setting]))
    TASK.check(load_config(None, ["scheduling.name=fedavg"]))


@pytest.mark.parametrize("settings, label", cases("sweep/labels"))
def test_an_assigners_label_shows_every_setting_that_distinguishes_it(settings: list[str], label: str) -> None:
    config = load_config(None, settings)
    assert assigner_label(config) == label
    parts = [part for part in TASK.label(config).values() if part]
    assert parts == ["H50", "λ1", label, "s0"]


# Task ``clustering`` yields one result and ends.


def test_it_clusters_as_an_experiment_does_and_trains_no_round() -> None:
    config = small_config("scheduling.name=ikc")
    (result,) = ClusteringTask().run(Job(config))
    with Experiment(config) as experiment:
        experiment.cluster()
        assert result.metrics == experiment.summary()
    assert {metrics.CLUSTERING_ARI, metrics.CLUSTERING_DELAY_S, metrics.CLUSTERING_ENERGY_J} == set(result.metrics)
    assert (result.step, result.last, result.save) == (0, True, None)


def test_its_first_result_completes_it() -> None:
    task, config = ClusteringTask(), small_config("max_rounds=50")
    assert task.total(config) == task.steps(config) == 1
    assert task.progress(config, 0, {metrics.CLUSTERING_ARI: 0.98765}) == (1, 1, "round", "ARI 0.988")
