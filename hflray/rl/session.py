"""Training of the assigner (Algorithm 5): a loop around the RLlib algorithm that evaluates, saves and resumes.

`hflray.tune` runs the same `AssignerTraining` as a sweep's trial (task ``train_assigner``) as `train` does. The result
is a function of the configuration if ``learning.env_steps`` is the limit, and depends on the machine's speed if
``learning.minutes`` is. A checkpoint holds the whole state, the replay buffer and all generators included, so that a
stopped run resumes bit for bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hflray import metrics
from hflray.assignment.policy import save_policy
from hflray.config import ExperimentConfig, LearningConfig
from hflray.errors import ConfigError
from hflray.rl import POLICY
from hflray.rl.algorithm import algorithm_config
from hflray.rl.evaluation import Evaluation, Quality
from hflray.rl.fleets import FleetSpec, held_out, network_spec, reporting
from hflray.rl.resumable import ResumableTraining
from hflray.rl.solved_fleets import FleetPool, prepare
from hflray.support.files import write
from hflray.support.provenance import git_commit, release
from hflray.training.machine import available_cpus, quiet_heap

CHECKPOINT, HISTORY = "checkpoint", "history.jsonl"
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


class AssignerTraining(ResumableTraining):
    """A training run, which solves the missing fleets, builds the algorithm and trains from evaluation to evaluation.

    The run is a context manager; `close` stops the algorithm.

    Args:
        config: the configuration; ``learning``, ``fleet``, ``cost``, ``scheduling.num_scheduled`` and ``training``
            matter.
        report: called while fleets are solved.
        workers: number of CPUs, for threads that solve fleets and for the network's two directions; None: all.

    Raises:
        ConfigError: the cache holds other fleets, or the teacher or one of its options is unknown.
    """

    section: ClassVar[str] = "learning"

    def __init__(self, config: ExperimentConfig, report: Report | None = None, workers: int | None = None) -> None:
        quiet_heap()  # minibatches of single transitions differ in length, so that each would fault in its memory anew
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
        super().__init__()
        self.algorithm = algorithm_config(config, self.pool, workers or len(available_cpus())).build_algo()

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
        steps, begun = self.env_steps, self.learn_s
        result, loss = self.train_until((self.env_steps // every + 1) * every)
        quality = self.evaluate(self.algorithm.network())
        rate = (self.env_steps - steps) / (self.learn_s - begun)
        mean = float(result["env_runners"]["episode_return_mean"])
        point = Point(self.env_steps, self.episodes, self.learn_s, rate, mean, loss, quality)
        self.points.append({"env_steps": float(point.env_steps), **point.metrics()})
        return point

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        return learning_state(self.config)

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of ``learning``."""
        return LearningConfig().model_dump(mode="json")

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


def model_card(
    config: ExperimentConfig, pool: FleetPool, env_steps: int, learn_s: float, quality: Quality
) -> dict[str, Any]:
    """Return the card, JSON-ready; `hflray.assignment.d3qn` warns about fleets outside the ranges of ``trained_on``."""
    spec = pool.spec
    return {
        "trained_on": {
            "num_scheduled": list(spec.num_scheduled),
            "num_edges": list(spec.num_edges),
            "fleets": len(pool),
            "specification": spec.to_dict(),
            "solve_s": round(pool.solve_s, 1),
        },
        "algorithm": config.learning.model_dump(mode="json"),
        "seed": config.seed,
        "env_steps": env_steps,
        "learn_s": round(learn_s, 1),
        "results": quality.summary(),
        "git_commit": git_commit(),
        "release": release(),
    }


def train(
    config: ExperimentConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    save_minutes: float = 5.0,
    on_point: Callable[[AssignerTraining, Point], None] | None = None,
    report: Report | None = None,
) -> list[dict[str, float]]:
    """Train to the limits of the configuration; return the learning curve.

    Args:
        config: see `AssignerTraining`.
        folder: folder for ``checkpoint/``, ``policy.safetensors`` and ``history.jsonl``.
        resume: continue from ``folder/checkpoint`` if it exists.
        save_minutes: minutes between saves.
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
        if saved.exists():
            training.restore(saved)
        last = time.monotonic()
        while not training.finished:
            point = training.advance()
            if on_point:
                on_point(training, point)
            if training.finished or time.monotonic() - last >= 60.0 * save_minutes:
                _save(training, run_folder, saved)
                last = time.monotonic()
        if not (run_folder / POLICY).exists():
            _save(training, run_folder, saved)
        return training.points


def _save(training: AssignerTraining, run_folder: Path, saved: Path) -> None:
    training.save(saved)
    training.save_policy(run_folder / POLICY)
    lines = "".join(json.dumps(point) + "\n" for point in training.points)
    write(run_folder / HISTORY, lines)
