"""A training run of the assigner, with its fleets and evaluations, which can be saved and resumed bit for bit."""

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

from hflray import metrics
from hflray.assignment.policy import save_policy
from hflray.checksum import checked, stamped
from hflray.config import ExperimentConfig, LearningConfig
from hflray.errors import ConfigError, DamagedError, DivergedError
from hflray.files import replacing_folder, write
from hflray.rl.algorithm import algorithm_config, checked_state
from hflray.rl.card import model_card
from hflray.rl.evaluation import Evaluation, Quality
from hflray.rl.files import PROGRESS, RLLIB
from hflray.rl.fleets import FleetSpec, held_out, network_spec, reporting
from hflray.rl.pool import FleetPool, prepare
from hflray.training.start import start_local_ray

OBJECT_STORE_BYTES = 100 * 2**20
Report = Callable[[str, int, int], None]  # (name of the set of fleets, number solved, number of all)


@dataclass(frozen=True)
class Point:
    """A point of the learning curve.

    Attributes:
        env_steps: number of devices assigned so far; the point is logged under this step.
        episodes: number of training episodes so far.
        learn_s: training time so far without evaluations, s.
        steps_per_s: environment steps per second since the previous point.
        episode_return: mean return of the last 50 training episodes, exploration included, as the paper plots it.
        loss: loss of the last update.
        quality: quality on the held-out fleets.
    """

    env_steps: int
    episodes: int
    learn_s: float
    steps_per_s: float
    episode_return: float
    loss: float
    quality: Quality

    def metrics(self) -> dict[str, float]:
        """Return the logged metrics by name; `hflray.metrics` explains them."""
        return {
            metrics.ASSIGNER_RETURN: self.episode_return,
            metrics.ASSIGNER_LOSS: self.loss,
            metrics.ASSIGNER_EPISODES: self.episodes,
            metrics.ASSIGNER_STEPS_PER_S: self.steps_per_s,
            metrics.WALL_LEARN_S: self.learn_s,
            **self.quality.metrics(),
        }


class AssignerTraining:
    """A training run, which solves the missing fleets, builds the algorithm and trains from evaluation to evaluation.

    The run is a context manager; `close` stops the algorithm.

    Args:
        config: the configuration; ``learning``, ``fleet``, ``cost``, ``scheduling.num_scheduled`` and ``training``
            matter.
        report: called while fleets are solved.
        workers: number of solving threads; None: one per CPU.

    Raises:
        ConfigError: the cache holds other fleets, or the teacher or one of its options is unknown.
    """

    def __init__(self, config: ExperimentConfig, report: Report | None = None, workers: int | None = None) -> None:
        self.config, learning = config, config.learning
        spec = FleetSpec.of(config)

        def progress_of(kind: str) -> Callable[[int, int], None] | None:
            return None if report is None else lambda done, total: report(kind, done, total)

        def solved_pool(fleet_spec: FleetSpec, count: int, name: str, suffix: str = "") -> FleetPool:
            folder = learning.cache.rstrip("/") + suffix if learning.cache else None
            return prepare(fleet_spec, count, folder, workers=workers, progress=progress_of(name))

        def evaluation(fleet_spec: FleetSpec, name: str, suffix: str) -> Evaluation:
            pool = solved_pool(fleet_spec, learning.evaluation_fleets, name, suffix)
            return Evaluation(pool, learning.features, network_spec(config).num_edges, progress_of("references"))

        self.pool = solved_pool(spec, learning.fleets, "training fleets")
        self.evaluate = evaluation(held_out(spec), "held-out fleets", "-held-out")
        self.evaluate_finished = evaluation(reporting(spec), "fleets to report on", "-reporting")
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # two threads are slower as soon as another process runs
        quiet_ray()
        ensure_ray()
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
        """The finished share of the run, from 0 to 1."""
        learning = self.config.learning
        parts = [self.learn_s / 60.0 / learning.minutes if learning.minutes else 0.0]
        parts += [self.env_steps / learning.env_steps if learning.env_steps else 0.0]
        return min(1.0, max(parts))

    def advance(self) -> Point:
        """Train until the next evaluation or until a limit, and evaluate.

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
        loss = float(learned.get("total_loss", 0.0))  # RLlib reports no loss before the first update
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
        """Write the whole state to `folder`, and replace an older state in one step."""
        with replacing_folder(Path(folder).resolve()) as scratch:
            self.algorithm.save_to_path(scratch / RLLIB)
            state = {
                "learning": learning_state(self.config),
                "env_steps": self.env_steps,
                "episodes": self.episodes,
                "learn_s": self.learn_s,
                "points": self.points,
            }
            write(scratch / PROGRESS, json.dumps(stamped(state)))

    def restore(self, folder: str | Path) -> None:
        """Continue from a state that `save` wrote.

        Raises:
            DamagedError: `folder` holds no whole checkpoint.
            ConfigError: it is one of another Ray version or another configuration.
        """
        source = Path(folder).resolve()
        checked_state(source / RLLIB)
        try:
            state = checked(json.loads((source / PROGRESS).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"checkpoint {source}: not a whole checkpoint ({error}); remove it, or give another"
            ) from error
        current = learning_state(self.config)
        # The state lacks settings that are newer than it; it was then trained with their defaults.
        saved = LearningConfig().model_dump(mode="json") | state["learning"]
        differ = [
            f"{key} = {saved.get(key)} in the checkpoint, {current[key]} in the configuration"
            for key in current
            if saved.get(key) != current[key]
        ]
        if differ:
            raise ConfigError(
                f"checkpoint {source}: of another configuration ({'; '.join(differ)}); "
                "give the configuration that made it, or begin anew"
            )
        self.algorithm.restore_from_path(str(source / RLLIB))
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
        self.learn_s, self.points = state["learn_s"], state["points"]

    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its model card, for ``assignment.name: d3qn``.

        The card's figures are measured on the reporting fleets, which neither training nor the learning curve uses.
        """
        network = self.algorithm.network()
        quality = self.evaluate_finished(network)
        card = model_card(self.config, self.pool, self.env_steps, self.learn_s, quality)
        save_policy(path, network, card)


def learning_state(config: ExperimentConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share: ``learning`` without its limits, and the fleets' hash."""
    limits = {"minutes", "env_steps", "cache"}
    learning = {k: v for k, v in config.learning.model_dump(mode="json").items() if k not in limits}
    return {**learning, "hash": FleetSpec.of(config).hash}


def quiet_ray() -> None:
    """Silence RLlib's hints and warnings, which address users who configure RLlib by hand."""
    for name in ("ray.rllib", "ray.tune", "ray", "ray.rllib.utils.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)


def ensure_ray() -> None:
    """Start a small local Ray, which RLlib requires, unless Ray is running, as it is within Tune."""
    if not ray.is_initialized():
        start_local_ray(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
