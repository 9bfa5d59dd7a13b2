"""The table of tasks by name. A new task is a file with a subclass of `Task`, a test, and an entry in `TASKS`."""

from __future__ import annotations

from collections.abc import Callable

from hflray.errors import ConfigError, nearest
from hflray.sweep.tasks.base import Job, Result, Saved, Shown, Task, TrialProgress
from hflray.sweep.tasks.experiment import ExperimentTask
from hflray.sweep.tasks.learning import TrainAssignerTask, TrainSchedulerTask
from hflray.sweep.tasks.studies import AssignmentTask, ClusteringTask

__all__ = ["DEFAULT", "TASKS", "Job", "Result", "Saved", "Shown", "Task", "TrialProgress", "find_task", "tasks_where"]

TASKS: dict[str, Task] = {
    task.name: task
    for task in (ExperimentTask(), TrainAssignerTask(), TrainSchedulerTask(), AssignmentTask(), ClusteringTask())
}
DEFAULT = ExperimentTask.name


def find_task(name: str) -> Task:
    """Return the task called `name`. Raises ConfigError: no task has this name."""
    if name not in TASKS:
        raise ConfigError(f"task: got '{name}'; accepted: {', '.join(TASKS)}{nearest(name, TASKS)}; correct it")
    return TASKS[name]


def tasks_where(predicate: Callable[[Task], bool]) -> str:
    """Return the quoted names of the tasks for which `predicate` is true, joined by "or" for use in a message."""
    return " or ".join(f"'{task.name}'" for task in TASKS.values() if predicate(task))
