"""`hflray.sweep.tasks`: the table of tasks, and what holds for every task."""

from __future__ import annotations

from typing import ClassVar

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.sweep import SweepFile, TuneConfig, load_sweep, tasks
from hflray.sweep.tasks import DEFAULT, TASKS, Job, Result, Task, find_task, tasks_where
from hflray.sweep.tasks.base import ONE_BY_ONE, Results
from hflray.sweep.trials import run_name
from tests.conftest import small_config


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
    with pytest.raises(ValueError, match=r"tune\.stop: got task 'counting'; accepted: task 'experiment'; leave it out"):
        file._the_task_agrees()
    run = task.run(Job(config))
    next(run)
    Counting.closed.clear()
    run.close()
    assert Counting.closed == [1]
