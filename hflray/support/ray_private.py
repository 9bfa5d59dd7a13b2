"""Every use of something private of Ray, with its reason. All of it was read and tested with Ray 2.59 and 2.60.

Ray may change what is private in any release, so pyproject.toml names the releases. No other file imports a private
module of Ray or reads an underscored attribute of one of Ray's objects. What a subclass of a Ray class inherits or
overrides is used in the subclass. ``tests/support/test_ray_private.py`` checks this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch


@contextmanager
def one_machine() -> Iterator[None]:
    """Within the block, let a Ray that this process starts be that of one machine.

    * It listens on the loopback only. On Linux a new Ray takes an address that other machines can reach, and its head,
      raylet, agents and workers then listen on all interfaces. On macOS and Windows it takes the loopback, because of
      a constant that Ray reads from the environment when it is imported.
    * It starts no monitor, which would scale a cluster, no log monitor, which would copy logs to a driver that prints
      none of them, and no server of a dashboard that nobody sees. Each takes seconds of CPU at the start.

    What this Ray does not have by these names stays as it is.
    """
    from ray._private import parameter, ray_constants
    from ray._private.node import Node

    with ExitStack() as stack:
        for owner, name, ours in (
            (ray_constants, "ENABLE_RAY_CLUSTER", False),
            (parameter, "RayParams", partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)),
            (Node, "start_api_server", lambda *arguments, **options: None),
        ):
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, ours))
        yield


def count_no_callbacks() -> None:
    """Let Tune not count the kinds of callbacks, for which it imports MLflow and other libraries for two seconds."""
    from ray.air._internal import usage

    usage.tag_callbacks = lambda callbacks: False


def pass_no_keys() -> None:
    """Let Tune give its trials no keys of AWS, for it writes them on the command line of each trial's process.

    Every user of a machine can read command lines. A trial's process has the environment of its own node.
    """
    from ray.tune.execution import class_cache

    passed: set[str] = getattr(class_cache, "ENV_VARS_TO_PROPAGATE", set())
    class_cache.ENV_VARS_TO_PROPAGATE = {name for name in passed if not name.startswith("AWS_")}


def learner_module(algorithm: Any) -> Any:
    """Return the module that an RLlib algorithm trains in this process, which is read after every training step."""
    from ray.rllib.core import DEFAULT_MODULE_ID

    return algorithm.learner_group._learner.module[DEFAULT_MODULE_ID]


def keep_no_rounds() -> None:
    """Let Tune drop the results of calls that have been read, and remember no log lines. Further calls change nothing.

    Ray 2.60 keeps two things for as long as a trial's process lives, so that a driver grew by 11 kB with each round:

    * the text of every object that it writes as a pickle into its state, to report it only once in a log that hflray
      has switched off;
    * a reference to the result of every call of a trial, and with it the result.

    A Ray without the method that is extended here keeps its results as before. `hflray.tune.callback` drops what Tune
    keeps of a trial that has ended.
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
