"""A training run of the assigner (Algorithm 5) or of the scheduler: a loop around RLlib that evaluates and resumes.

`hflray.sweep.tasks` runs a training as a sweep's trial (tasks ``train_assigner`` and ``train_scheduler``), and `train`
runs the assigner's without Tune. The result is a function of the configuration if a number of steps is the limit, and
depends on the machine's speed if ``learning.minutes`` is. A checkpoint holds the whole state, the replay buffer and all
generators included, so that a stopped run resumes bit for bit.
"""

from __future__ import annotations

import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import ray
import torch
from pydantic import BaseModel, Field

from hflray import metrics
from hflray.assignment.policy import save_policy
from hflray.config import AgentConfig, ExperimentConfig, LearningConfig
from hflray.errors import ConfigError, DamagedError, DivergedError
from hflray.experiment.study import sized_by_data
from hflray.rl import POLICY
from hflray.rl.dqn import dqn_config
from hflray.rl.evaluation import AssignerEvaluation, SchedulerEvaluation
from hflray.rl.fleets import FleetSpec, held_out, reporting
from hflray.rl.ppo import ppo_config
from hflray.rl.scheduling_env import environment
from hflray.rl.solved_fleets import prepare
from hflray.support.checksum import checked, stamped
from hflray.support.files import replacing_folder, write
from hflray.support.limits import available_cpus
from hflray.support.provenance import git_commit, release
from hflray.support.reader import fit, read_json
from hflray.training.machine import quiet_heap
from hflray.training.start import start_local_ray

RLLIB, PROGRESS = "rllib", "training.json"  # in the folder of a checkpoint
OBJECT_STORE_BYTES = 100 * 2**20
CHECKPOINT, HISTORY = "checkpoint", "history.jsonl"  # in the folder of `train`
SAVE_EVERY_S = 300.0
REFUSED = ("download_bits", "limits", "steps")  # of the work: the training knows the paper's physics alone
Report = Callable[[str, int, int], None]  # (name of the set of fleets, number solved, number of all)


class Point(NamedTuple):
    """A point of a learning curve.

    Attributes:
        env_steps: number of environment steps so far; the point is logged under it.
        metrics: the logged metrics by name; `hflray.metrics` explains them.
    """

    env_steps: int
    metrics: dict[str, float]


class SavedProgress(BaseModel):
    """What a checkpoint says of the progress of a training."""

    learning: dict[str, Any]
    env_steps: Annotated[int, Field(ge=0)]
    episodes: Annotated[int, Field(ge=0)]
    learn_s: float
    points: list[Any]


class ResumableTraining(ABC):
    """A training run, as a context manager, at whose end the algorithm stops. A subclass sets `algorithm`.

    Attributes:
        algorithm: the RLlib algorithm, whose `save_to_path` saves everything.
        env_steps, episodes: what was played so far.
        learn_s: training time so far without evaluations, s.
        points: the learning curve.
        section: the name of the section of the configuration that a resumed run must share, except for `limits`.
        settings: the settings of that section.
    """

    algorithm: Any
    section: ClassVar[Literal["learning", "agent"]]
    limits: ClassVar[frozenset[str]]

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self.settings: LearningConfig | AgentConfig = getattr(config, self.section)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # two threads are slower as soon as another process runs
        start_quiet_ray()
        self.env_steps, self.episodes, self.learn_s = 0, 0, 0.0
        self.points: list[dict[str, float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.algorithm.stop()
        torch.set_num_threads(self._threads)

    @property
    def finished(self) -> bool:
        """Whether a limit of the configuration has been reached."""
        minutes: float | None = getattr(self.settings, "minutes", None)
        out_of_time = minutes is not None and self.learn_s >= 60.0 * minutes
        return out_of_time or (self.settings.env_steps is not None and self.env_steps >= self.settings.env_steps)

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

    @abstractmethod
    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the policy as it is was trained on, and how good it is, JSON-ready."""

    def advance(self) -> Point:
        """Train until the next evaluation or until a limit, and evaluate.

        Raises:
            DivergedError: the loss or an output of the network is not finite.
        """
        steps, begun = self.env_steps, self.learn_s
        goal = (steps // self.settings.evaluate_every + 1) * self.settings.evaluate_every
        result: dict[str, Any] = {}
        while not result or (self.env_steps < goal and not self.finished):
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
        rate = (self.env_steps - steps) / (self.learn_s - begun)
        values = self.measured(float(result["env_runners"]["episode_return_mean"]), loss, rate)
        self.points.append({"env_steps": float(self.env_steps), **values})
        return Point(self.env_steps, values)

    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its model card."""
        trained_on, results = self.described()
        card = {
            "trained_on": trained_on,
            "algorithm": self.settings.model_dump(mode="json"),
            "seed": self.config.seed,
            "env_steps": self.env_steps,
            "learn_s": round(self.learn_s, 1),
            "results": results,
            "git_commit": git_commit(),
            "release": release(),
        }
        save_policy(path, self.algorithm.network(), card)

    def save(self, folder: str | Path) -> None:
        """Write the whole state to `folder`, and replace an older state in one step."""
        with replacing_folder(Path(folder).resolve()) as scratch:
            self.algorithm.save_to_path(scratch / RLLIB)
            counts = {name: getattr(self, name) for name in ("env_steps", "episodes", "learn_s", "points")}
            write(scratch / PROGRESS, json.dumps(stamped({"learning": self._shared(), **counts})))

    def restore(self, folder: str | Path) -> None:
        """Continue from a state that `save` wrote.

        Raises:
            DamagedError: `folder` holds no whole checkpoint.
            ConfigError: it is one of another Ray version or another configuration.
        """
        source = Path(folder).resolve()
        try:
            state = fit(SavedProgress, checked(read_json(source / PROGRESS)))
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"checkpoint {source}: not a whole checkpoint ({error}); remove it, or give another"
            ) from error
        current = self._shared()
        # The state lacks settings that are newer than it; it was then trained with their defaults.
        saved = type(self.settings)().model_dump(mode="json") | state.learning
        differ = [
            f"{key} = {saved.get(key)} in the checkpoint, {value} in the configuration"
            for key, value in current.items()
            if saved.get(key) != value
        ]
        if differ:
            raise ConfigError(
                f"checkpoint {source}: of another configuration ({'; '.join(differ)}); "
                "give the configuration that made it, or begin anew"
            )
        self.algorithm.restore_from_path(str(source / RLLIB))
        self.env_steps, self.episodes, self.learn_s, self.points = (
            state.env_steps, state.episodes, state.learn_s, state.points
        )  # fmt: skip

    def _shared(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share, JSON-ready."""
        return self.settings.model_dump(mode="json", exclude=set(self.limits)) | self.surroundings()


class AssignerTraining(ResumableTraining):
    """A training run, which solves the missing fleets, builds the algorithm and trains from evaluation to evaluation.

    Args:
        config: the configuration; ``learning``, ``fleet``, ``cost``, ``scheduling.num_scheduled`` and ``training``
            matter.
        report: called while fleets are solved.
        workers: number of CPUs, for threads that solve fleets and for the network's two directions; None: all.

    Raises:
        ConfigError: the cache holds other fleets, or the teacher or one of its options is unknown.
    """

    section = "learning"
    limits = frozenset({"minutes", "env_steps", "cache"})

    def __init__(self, config: ExperimentConfig, report: Report | None = None, workers: int | None = None) -> None:
        quiet_heap()  # minibatches of single transitions differ in length, so that each would fault in its memory anew
        learning, spec = config.learning, FleetSpec.of(config)
        pools = []
        for fleet_spec, count, suffix, name in (
            (spec, learning.fleets, "", "training fleets"),
            (held_out(spec), learning.evaluation_fleets, "-held-out", "held-out fleets"),
            (reporting(spec), learning.evaluation_fleets, "-reporting", "fleets to report on"),
        ):
            folder = learning.cache.rstrip("/") + suffix if learning.cache else None
            progress = partial(report, name) if report else None
            pools.append(prepare(fleet_spec, count, folder, workers=workers, progress=progress))
        self.pool, *unseen = pools
        solving = partial(report, "references") if report else None
        self.evaluate, self.evaluate_finished = (AssignerEvaluation(pool, solving) for pool in unseen)
        super().__init__(config)
        self.algorithm = dqn_config(config, self.pool, workers or len(available_cpus())).build_algo()

    def measured(self, episode_return: float, loss: float, steps_per_s: float) -> dict[str, float]:
        """Return the metrics of a point; the return is that of 50 episodes, as the paper plots it.

        Raises:
            DivergedError: a Q-value is not finite.
        """
        return {
            metrics.ASSIGNER_RETURN: episode_return,
            metrics.ASSIGNER_LOSS: loss,
            metrics.ASSIGNER_EPISODES: self.episodes,
            metrics.ASSIGNER_STEPS_PER_S: steps_per_s,
            metrics.WALL_LEARN_S: self.learn_s,
            **self.evaluate(self.algorithm.network()).metrics(),
        }

    def surroundings(self) -> dict[str, Any]:
        """Return the hash of the fleets."""
        return {"hash": self.pool.spec.hash}

    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fleets and the quality on the reporting fleets, which neither training nor the curve uses."""
        spec = self.pool.spec
        trained_on = {  # `hflray.assignment.d3qn` warns about fleets outside of these ranges
            "num_scheduled": list(spec.num_scheduled),
            "num_edges": list(spec.num_edges),
            "fleets": len(self.pool),
            "specification": spec.to_dict(),
            "solve_s": round(self.pool.solve_s, 1),
        }
        return trained_on, self.evaluate_finished(self.algorithm.network()).summary()


class SchedulerTraining(ResumableTraining):
    """A training run, from evaluation to evaluation.

    Args:
        config: the configuration; ``agent``, ``fleet``, ``cost``, ``scheduling.num_scheduled``, ``training``,
            ``assignment.name``, ``data.majority_fraction``, the target and ``max_rounds`` matter.

    Raises:
        ConfigError: the assigner is unknown, or H is more than N; see `environment`.
    """

    section = "agent"
    limits = frozenset({"env_steps"})

    def __init__(self, config: ExperimentConfig) -> None:
        super().__init__(config)
        self.evaluate = SchedulerEvaluation(environment(config), config.agent.evaluation_fleets, config.seed)
        self.algorithm = ppo_config(config).build_algo()

    def measured(self, episode_return: float, loss: float, steps_per_s: float) -> dict[str, float]:
        """Return the metrics of a point."""
        return {
            metrics.AGENT_RETURN: episode_return,
            metrics.AGENT_LOSS: loss,
            metrics.WALL_LEARN_S: self.learn_s,
            **self.evaluate(self.algorithm.network()),
        }

    def surroundings(self) -> dict[str, Any]:
        """Return the seed and the environment."""
        return {"seed": self.config.seed, "environment": self._environment()}

    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the environment and the last point of the learning curve."""
        return self._environment(), self.points[-1] if self.points else {}

    def _environment(self) -> dict[str, Any]:
        """Return the environment of the configuration, JSON-ready."""
        arguments = environment(self.config)
        fleet = sized_by_data(self.config).fleet.model_dump(mode="json", exclude_defaults=True)
        work = {name: value for name, value in vars(arguments["work"]).items() if name not in REFUSED}
        return {**arguments, "fleet": fleet, "work": work}


def train(
    config: ExperimentConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    on_point: Callable[[Point], None] | None = None,
    report: Report | None = None,
) -> list[dict[str, float]]:
    """Train to the limits of the configuration; return the learning curve.

    Args:
        config: see `AssignerTraining`.
        folder: folder for ``checkpoint/``, ``policy.safetensors`` and ``history.jsonl``.
        resume: continue from ``folder/checkpoint`` if it exists.
        on_point: called after each evaluation.
        report: called while fleets are solved.

    Raises:
        ConfigError: see `AssignerTraining`; or `folder` holds a run and `resume` is not set.
    """
    run_folder = Path(folder)
    saved = run_folder / CHECKPOINT
    if saved.exists() and not resume:
        raise ConfigError(f"--out {run_folder}: holds a training run; go on with --resume, or give another folder")
    run_folder.mkdir(parents=True, exist_ok=True)
    with AssignerTraining(config, report) as training:

        def save() -> None:
            training.save(saved)
            training.save_policy(run_folder / POLICY)
            write(run_folder / HISTORY, "".join(json.dumps(point) + "\n" for point in training.points))

        if saved.exists():
            training.restore(saved)
        last = time.monotonic()
        while not training.finished:
            point = training.advance()
            if on_point:
                on_point(point)
            if training.finished or time.monotonic() - last >= SAVE_EVERY_S:
                save()
                last = time.monotonic()
        if not (run_folder / POLICY).exists():
            save()
        return training.points


def start_quiet_ray() -> None:
    """Start a small local Ray, which RLlib requires, unless Ray is running, as it is within Tune.

    RLlib's hints and warnings, which address users who configure RLlib by hand, are silenced.
    """
    for name in ("ray.rllib", "ray.tune", "ray", "ray.rllib.utils.deprecation"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if not ray.is_initialized():
        start_local_ray(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)
