"""Every use of something private of Ray, with its reason. All of it was read and tested with Ray 2.60.

Ray may change what is private in any release, so the version of Ray is pinned in pyproject.toml. No other file imports
a private module of Ray or reads an underscored attribute of one of Ray's objects. What a subclass of a Ray class
inherits or overrides is used in the subclass and listed in `INHERITED`. ``tests/support/test_ray_private.py`` checks
both, and that the installed Ray has each of these names.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

VERSION = "2.60"  # the release of Ray of which all of this is true

# By the dotted name of a Ray class: the private names that our subclass of it uses or overrides. The reasons:
INHERITED: dict[str, frozenset[str]] = {
    # hflray/rl/algorithm.py: Tune turns the name of a buffer's class into the class, which RLlib then refuses.
    "ray.rllib.algorithms.dqn.DQN": frozenset({"_create_local_replay_buffer_if_necessary"}),
    # hflray/rl/replay.py: the buffer and its state are complete only with RLlib's own counts.
    "ray.rllib.utils.replay_buffers.episode_replay_buffer.EpisodeReplayBuffer": frozenset(
        {"_num_timesteps", "_num_timesteps_added", "_num_episodes_evicted"}
    ),
    # hflray/rl/runner.py, hflray/rl/scheduling_module.py: whole episodes are played in one call of the network, and
    # RLlib's counts of them stay true.
    "ray.rllib.env.single_agent_env_runner.SingleAgentEnvRunner": frozenset(
        {
            "_sample",
            "_done_episodes_for_metrics",
            "_log_env_steps",
            "_metrics_num_env_steps_sampled",
            "_increase_sampled_metrics",
        }
    ),
    # hflray/rl/module.py, hflray/rl/scheduling_module.py: RLlib asks an author of a module to override these.
    "ray.rllib.core.rl_module.torch.TorchRLModule": frozenset(
        {"_forward", "_forward_inference", "_forward_exploration", "_forward_train"}
    ),
}


@contextmanager
def _exchanged(owner: Any, name: str, ours: Callable[..., Any]) -> Iterator[None]:
    """Within the block, let `owner` have our function in place of its own."""
    original = getattr(owner, name)
    setattr(owner, name, ours)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def keep_loopback(address: str) -> Iterator[dict[str, str]]:
    """Yield the arguments of ``ray.init`` that make a new Ray listen on the loopback `address` only.

    Ray 2.60 replaces a loopback address by one that other machines can reach. Its head, raylet, agents and workers then
    listen on all interfaces, and no setting changes that. Within the block, the function that replaces the address
    returns it as it is. It is exchanged only for a Ray that this process starts, and put back at the end. If this Ray
    has no such function, nothing is exchanged and no arguments are yielded.
    """
    from ray._private import services

    name = "resolve_ip_for_localhost"
    original = getattr(services, name, None)
    if original is None or list(inspect.signature(original).parameters) != ["host"]:
        yield {}
        return
    with _exchanged(services, name, lambda host: host):
        yield {"_node_ip_address": address}


SPARED = "start_monitor", "start_log_monitor", "start_api_server"  # methods of a node that each start a process


@contextmanager
def fewer_processes() -> Iterator[None]:
    """Within the block, let a new Ray of one machine start without what only a cluster or a dashboard needs.

    The monitor scales a cluster, the log monitor copies logs to a driver that prints none of them, and the third
    process would serve the dashboard. Each costs a second of a CPU and 60 MB. The agent of the remaining processes,
    which serves their metrics, listens on a free port for requests of a dashboard. Ray's default is port 52365. Where
    another Ray has it, each start would wait 3.5 s before it went on without. If this Ray has other names for these,
    it starts everything.
    """
    from ray._private import services
    from ray._private.node import Node

    start_raylet = getattr(services, "start_raylet", None)
    if start_raylet is None or not all(hasattr(Node, name) for name in SPARED):
        yield
        return

    def start_with_a_free_port(*arguments: Any, **options: Any) -> Any:
        return start_raylet(*arguments, **options | {"dashboard_agent_listen_port": 0})

    with ExitStack() as stack:
        for name in SPARED:
            stack.enter_context(_exchanged(Node, name, lambda self, *arguments, **options: None))
        stack.enter_context(_exchanged(services, "start_raylet", start_with_a_free_port))
        yield


# A program that does what Ray does between fork and exec, and then becomes a process of Ray. Its first argument is its
# parent, which may have ended before. 1 is PR_SET_PDEATHSIG.
BECOME = """
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def plain_forks() -> Iterator[None]:
    """Within the block, let no Python run between fork and exec of Ray's own processes.

    Ray blocks SIGINT there, and lets the process end with its parent. Such a fork calls the hooks of all modules. While
    another thread imports `concurrent.futures`, its hook failed ("release unlocked lock"), and the child would wait for
    ever for a lock that another thread had held.
    """
    from ray._private import services

    if not sys.platform.startswith("linux") or not hasattr(services, "ConsolePopen"):
        yield
        return

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        become = [sys.executable, "-I", "-S", "-c", BECOME, str(os.getpid())]
        return subprocess.Popen([*become, *command], **{**options, "preexec_fn": None})

    with _exchanged(services, "ConsolePopen", start):
        yield


def system_config(options: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``ray.init`` with these `values` for Ray's own processes, unless `options` has others.

    Ray has no public option for them.
    """
    name = "_system_config"
    return {**options, name: {**values, **options.get(name, {})}}


def count_no_callbacks() -> None:
    """Let Tune not count the kinds of callbacks, for which it imports MLflow and other libraries for two seconds."""
    from ray.air._internal import usage

    usage.tag_callbacks = lambda callbacks: False


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
