"""A training run with RLlib that is saved and resumed bit for bit, whatever is learned."""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import ray
import torch
from pydantic import BaseModel, Field

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError, DamagedError, DivergedError
from hflray.rl.portable import checked_state
from hflray.support.checksum import checked, stamped
from hflray.support.files import replacing_folder, write
from hflray.support.provenance import git_commit, release
from hflray.support.reader import fit, read_json
from hflray.training.start import start_local_ray

RLLIB, PROGRESS = "rllib", "training.json"  # in the folder of a checkpoint
OBJECT_STORE_BYTES = 100 * 2**20


class Point(NamedTuple):
    """A point of a learning curve.

    Attributes:
        env_steps: number of environment steps so far; the point is logged under it.
        metrics: the logged metrics by name; `hflray.metrics` explains them.
    """

    env_steps: int
    metrics: dict[str, float]


class ProgressContent(BaseModel):
    """What a checkpoint says of the progress of a training."""

    learning: dict[str, Any]
    env_steps: Annotated[int, Field(ge=0)]
    episodes: Annotated[int, Field(ge=0)]
    learn_s: float
    points: list[Any]


class ResumableTraining(ABC):
    """A training run, as a context manager; `close` stops the algorithm. A subclass sets `algorithm`.

    Attributes:
        algorithm: the RLlib algorithm, whose `save_to_path` saves everything.
        env_steps, episodes: what was played so far.
        learn_s: training time so far without evaluations, s.
        points: the learning curve.
        section: the name of the section of the configuration that a resumed run must share, except for `limits`.
    """

    algorithm: Any
    section: ClassVar[str]
    limits: ClassVar[frozenset[str]]

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # two threads are slower as soon as another process runs
        quiet_ray()
        ensure_ray()
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
    @abstractmethod
    def finished(self) -> bool:
        """Whether a limit of the configuration has been reached."""

    @property
    def chosen(self) -> BaseModel:
        """The settings of the run's section."""
        settings: BaseModel = getattr(self.config, self.section)
        return settings

    @abstractmethod
    def measured(self, episode_return: float, loss: float, steps_per_s: float) -> dict[str, float]:
        """Evaluate the network and return the metrics of a point, by name.

        Args:
            episode_return: mean return of the last training episodes, exploration included.
            loss: loss of the last update.
            steps_per_s: environment steps per second since the previous point.
        """

    @abstractmethod
    def surroundings(self) -> dict[str, Any]:
        """Return what a resumed run must share beside its section, JSON-ready."""

    def advance(self) -> Point:
        """Train until the next evaluation or until a limit, and evaluate.

        Raises:
            DivergedError: the loss or an output of the network is not finite.
        """
        every = getattr(self.config, self.section).evaluate_every
        steps, begun = self.env_steps, self.learn_s
        result, loss = self.train_until((self.env_steps // every + 1) * every)
        rate = (self.env_steps - steps) / (self.learn_s - begun)
        values = self.measured(float(result["env_runners"]["episode_return_mean"]), loss, rate)
        self.points.append({"env_steps": float(self.env_steps), **values})
        return Point(self.env_steps, values)

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share, JSON-ready."""
        return self.chosen.model_dump(mode="json", exclude=set(self.limits)) | self.surroundings()

    def card(self, trained_on: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
        """Return the card of the policy as it is, JSON-ready, with what it was trained on and how good it is."""
        return {
            "trained_on": trained_on,
            "algorithm": self.chosen.model_dump(mode="json"),
            "seed": self.config.seed,
            "env_steps": self.env_steps,
            "learn_s": round(self.learn_s, 1),
            "results": results,
            "git_commit": git_commit(),
            "release": release(),
        }

    @abstractmethod
    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its model card."""

    def train_until(self, goal: int) -> tuple[dict[str, Any], float]:
        """Train to `goal` environment steps or to a limit; return RLlib's last result and the loss.

        Raises:
            DivergedError: the loss is not finite.
        """
        result: dict[str, Any] | None = None
        while result is None or (self.env_steps < goal and not self.finished):
            begin = time.perf_counter()
            result = self.algorithm.train()
            self.learn_s += time.perf_counter() - begin
            self.env_steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
            self.episodes = int(result["env_runners"]["num_episodes_lifetime"])
        learned = result.get("learners", {}).get("default_policy", {})
        loss = float(learned.get("total_loss", 0.0))  # RLlib reports no loss before the first update
        if not math.isfinite(loss):
            raise DivergedError(
                f"{self.section}: the loss is {loss} after {self.env_steps} steps; lower {self.section}.learning_rate"
            )
        return result, loss

    def save(self, folder: str | Path) -> None:
        """Write the whole state to `folder`, and replace an older state in one step."""
        with replacing_folder(Path(folder).resolve()) as scratch:
            self.algorithm.save_to_path(scratch / RLLIB)
            state = {
                "learning": self.settings(),
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
            state = checked(read_json(source / PROGRESS))
            fit(ProgressContent, state)
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"checkpoint {source}: not a whole checkpoint ({error}); remove it, or give another"
            ) from error
        current = self.settings()
        # The state lacks settings that are newer than it; it was then trained with their defaults.
        saved = type(self.chosen)().model_dump(mode="json") | state["learning"]
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


def quiet_ray() -> None:
    """Silence RLlib's hints and warnings, which address users who configure RLlib by hand."""
    for name in ("ray.rllib", "ray.tune", "ray", "ray.rllib.utils.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)


def ensure_ray() -> None:
    """Start a small local Ray, which RLlib requires, unless Ray is running, as it is within Tune."""
    if not ray.is_initialized():
        start_local_ray(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
