"""A training run that can be saved and resumed bit for bit: the RLlib algorithm, its fleets and its evaluations."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray
import torch

from hflray import checkpoint, metrics
from hflray.assignment.d3qn import save_policy
from hflray.config import ExperimentConfig, LearningConfig
from hflray.errors import ConfigError, DivergedError
from hflray.rl.algorithm import algorithm_config, checked_state
from hflray.rl.card import model_card
from hflray.rl.evaluation import Evaluation, Quality
from hflray.rl.files import PROGRESS, RLLIB
from hflray.rl.fleets import FleetSpec, held_out, network_spec
from hflray.rl.pool import FleetPool, prepare

OBJECT_STORE_BYTES = 100 * 2**20
Report = Callable[[str, int, int], None]  # what is being solved, how many are, of how many


@dataclass(frozen=True)
class Point:
    """A point of the learning curve.

    Attributes:
        env_steps: devices assigned so far; the step under which it is logged.
        episodes: fleets seen so far.
        learn_s: seconds of training so far, evaluations not counted.
        steps_per_s: environment steps a second since the point before.
        episode_return: mean of the last 50 training episodes, as the paper plots; exploration included.
        loss: of the last update.
        quality: on held-out fleets.
    """

    env_steps: int
    episodes: int
    learn_s: float
    steps_per_s: float
    episode_return: float
    loss: float
    quality: Quality

    def metrics(self) -> dict[str, float]:
        """The entries of the glossary, by name."""
        return {
            metrics.ASSIGNER_RETURN: self.episode_return,
            metrics.ASSIGNER_LOSS: self.loss,
            metrics.ASSIGNER_EPISODES: self.episodes,
            metrics.ASSIGNER_STEPS_PER_S: self.steps_per_s,
            metrics.WALL_LEARN_S: self.learn_s,
            **self.quality.metrics(),
        }


class AssignerTraining:
    """A training run: solves what fleets are missing, builds the algorithm, and yields points of the learning curve.

    A context manager; `close` stops the algorithm.

    Args:
        config: its sections ``learning``, ``fleet``, ``cost``, ``scheduling.num_scheduled`` and ``training``.
        report: called while fleets are solved.
        workers: threads that solve; None: one a CPU.

    Raises:
        ConfigError: a cache of other fleets, an unknown teacher or option.
    """

    def __init__(self, config: ExperimentConfig, report: Report | None = None, workers: int | None = None) -> None:
        self.config, learning = config, config.learning
        spec = FleetSpec.of(config)
        test_folder = f"{learning.cache.rstrip('/')}-held-out" if learning.cache else None

        def said(what: str) -> Callable[[int, int], None] | None:
            return None if report is None else lambda done, total: report(what, done, total)

        def solved(what: FleetSpec, count: int, folder: str | None, name: str) -> FleetPool:
            return prepare(what, count, folder, workers=workers, progress=said(name))

        self.pool = solved(spec, learning.fleets, learning.cache, "training fleets")
        test = solved(held_out(spec), learning.evaluation_fleets, test_folder, "held-out fleets")
        network = network_spec(config)
        self.evaluate = Evaluation(test, learning.features, network.num_edges, said("references"))
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # two are slower as soon as anything else runs
        quiet()
        own_ray()
        self.algorithm = algorithm_config(config, self.pool).build_algo()
        self.env_steps, self.episodes, self.learn_s = 0, 0, 0.0
        self.points: list[dict[str, float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the algorithm."""
        self.algorithm.stop()
        torch.set_num_threads(self._threads)

    @property
    def finished(self) -> bool:
        """Whether a limit of the configuration has been reached."""
        learning = self.config.learning
        out_of_time = learning.minutes is not None and self.learn_s >= 60.0 * learning.minutes
        return out_of_time or (learning.env_steps is not None and self.env_steps >= learning.env_steps)

    @property
    def share(self) -> float:
        """How far the run is, from 0 to 1."""
        learning = self.config.learning
        parts = [self.learn_s / 60.0 / learning.minutes if learning.minutes else 0.0]
        parts += [self.env_steps / learning.env_steps if learning.env_steps else 0.0]
        return min(1.0, max(parts))

    def advance(self) -> Point:
        """Train until the next evaluation, or a limit, and evaluate.

        Raises:
            DivergedError: the loss or a Q-value is not finite.
        """
        every = self.config.learning.evaluate_every
        goal, steps, begun, result = (self.env_steps // every + 1) * every, self.env_steps, self.learn_s, None
        while result is None or (self.env_steps < goal and not self.finished):
            begin = time.perf_counter()
            result = self.algorithm.train()
            self.learn_s += time.perf_counter() - begin
            sampled = result["env_runners"]
            self.env_steps = int(sampled["num_env_steps_sampled_lifetime"])
            self.episodes = int(sampled["num_episodes_lifetime"])
        learned = result.get("learners", {}).get("default_policy", {})
        loss = float(learned.get("total_loss", 0.0))  # before the first update there is none
        if not math.isfinite(loss):
            raise DivergedError(
                f"learning: the loss is {loss} after {self.env_steps} steps; lower learning.learning_rate"
            )
        quality = self.evaluate(self.algorithm.network())
        rate = (self.env_steps - steps) / (self.learn_s - begun)
        mean = float(sampled["episode_return_mean"])
        point = Point(self.env_steps, self.episodes, self.learn_s, rate, mean, loss, quality)
        self.points.append({"env_steps": float(point.env_steps), **point.metrics()})
        return point

    def save(self, folder: str | Path) -> None:
        """Write the whole state to `folder`, replacing what is there in one step."""
        with checkpoint.replacing(Path(folder).resolve()) as scratch:
            self.algorithm.save_to_path(scratch / RLLIB)
            state = {
                "learning": learning_state(self.config),
                "env_steps": self.env_steps,
                "episodes": self.episodes,
                "learn_s": self.learn_s,
                "points": self.points,
            }
            (scratch / PROGRESS).write_text(json.dumps(state), encoding="utf-8")

    def restore(self, folder: str | Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            ConfigError: no checkpoint, one of another Ray version, or one of another configuration.
        """
        source = Path(folder).resolve()
        checked_state(source / RLLIB)  # no pickle is opened before this
        state = json.loads((source / PROGRESS).read_text(encoding="utf-8"))
        here = learning_state(self.config)
        there = LearningConfig().model_dump(mode="json") | state["learning"]  # settings that came later: their defaults
        differ = [f"{key} = {there.get(key)} there, {here[key]} here" for key in here if there.get(key) != here[key]]
        if differ:
            raise ConfigError(
                f"checkpoint {source}: of another configuration ({'; '.join(differ)}); give the same, or begin anew"
            )
        self.algorithm.restore_from_path(str(source / RLLIB))
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
        self.learn_s, self.points = state["learn_s"], state["points"]

    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its model card, for ``assignment.name: d3qn``."""
        network = self.algorithm.network()
        card = model_card(self.config, self.pool, self.env_steps, self.learn_s, self.evaluate(network))
        save_policy(path, network, card)


def learning_state(config: ExperimentConfig) -> dict[str, Any]:
    """What must be equal for a run to go on: all of ``learning`` but its limits, and the fleets."""
    limits = {"minutes", "env_steps", "cache"}
    learning = {k: v for k, v in config.learning.model_dump(mode="json").items() if k not in limits}
    return {**learning, "hash": FleetSpec.of(config).hash}


def quiet() -> None:
    """RLlib's hints and warnings are for whoever configures it by hand."""
    for name in ("ray.rllib", "ray.tune", "ray", "ray.rllib.utils.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)


def own_ray() -> None:
    """RLlib wants a Ray to be in. Within Tune there is one; else a small one of this process, for nothing is sent."""
    if not ray.is_initialized():
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=OBJECT_STORE_BYTES,
        )
