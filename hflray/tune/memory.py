"""What Ray Tune keeps of every round in the driver's memory and never reads again is dropped.

Ray 2.60 keeps two things for as long as a trial's process lives, so that a driver grew by 11 kB with each round:

* the text of every object that it writes as a pickle into its state, to report it only once in a log that hflray has
  switched off;
* a reference to the result of every call of a trial, and with it the result.

`hflray.tune.callback` drops what Tune keeps of a trial that has ended.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def keep_no_rounds() -> None:
    """Let Tune drop the results of calls that have been read, and remember no log lines. Further calls change nothing.

    A Ray without the method that is extended here keeps its results as before.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.util.debug import disable_log_once_globally

    disable_log_once_globally()
    whole = getattr(RayActorManager, "next", None)
    if whole is None or hasattr(whole, "__wrapped__"):
        return

    @wraps(whole)
    def step(self: Any, *arguments: Any, **options: Any) -> Any:
        result = whole(self, *arguments, **options)
        drop_read(self)
        return result

    RayActorManager.next = step


def drop_read(manager: Any) -> None:
    """Drop the references to the calls of a `RayActorManager` whose results have been read."""
    waiting = getattr(getattr(manager, "_actor_task_events", None), "_tracked_futures", None)
    if waiting is not None:
        for futures in getattr(manager, "_tracked_actors_to_task_futures", {}).values():
            futures.intersection_update(waiting)
