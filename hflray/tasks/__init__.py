"""The tasks, by name. A new one is a file with a subclass of `Task`, its test, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from hflray.errors import ConfigError, nearest
from hflray.tasks.assignment import AssignmentTask
from hflray.tasks.base import Job, Progress, Result, Saved, Shown, Task
from hflray.tasks.clustering import ClusteringTask
from hflray.tasks.experiment import ExperimentTask
from hflray.tasks.train_assigner import TrainAssignerTask

__all__ = ["DEFAULT", "TASKS", "Job", "Progress", "Result", "Saved", "Shown", "Task", "find_task", "that"]

TASKS: dict[str, Task] = {
    task.name: task for task in (ExperimentTask(), TrainAssignerTask(), AssignmentTask(), ClusteringTask())
}
DEFAULT = ExperimentTask.name


def find_task(name: str) -> Task:
    """The task of this name. Raises ConfigError: there is none."""
    if name not in TASKS:
        raise ConfigError(f"task: got '{name}'; accepted: {', '.join(TASKS)}{nearest(name, TASKS)}; correct it")
    return TASKS[name]


def that(holds: Callable[[Task], bool]) -> str:
    """The tasks of which something holds, as a message names them."""
    return " or ".join(f"'{task.name}'" for task in TASKS.values() if holds(task))
