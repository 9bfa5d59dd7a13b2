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
from pathlib import Path
from typing import Any, ClassVar

from hflray import metrics
from hflray.assignment.policy import save_policy
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.rl import POLICY
from hflray.rl.algorithm import algorithm_config
from hflray.rl.evaluation import Evaluation
from hflray.rl.fleets import FleetSpec, held_out, network_spec, reporting
from hflray.rl.resumable import Point, ResumableTraining
from hflray.rl.solved_fleets import FleetPool, prepare
from hflray.support.files import write
from hflray.training.machine import available_cpus, quiet_heap

CHECKPOINT, HISTORY = "checkpoint", "history.jsonl"
SAVE_EVERY_S = 300.0
Report = Callable[[str, int, int], None]  # (name of the set of fleets, number solved, number of all)


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
    limits: ClassVar[frozenset[str]] = frozenset({"minutes", "env_steps", "cache"})

    def __init__(self, config: ExperimentConfig, report: Report | None = None, workers: int | None = None) -> None:
        quiet_heap()  # minibatches of single transitions differ in length, so that each would fault in its memory anew
        learning, spec = config.learning, FleetSpec.of(config)

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
        super().__init__(config)
        self.algorithm = algorithm_config(config, self.pool, workers or len(available_cpus())).build_algo()

    @property
    def finished(self) -> bool:
        """Whether a limit of the configuration has been reached."""
        learning = self.config.learning
        out_of_time = learning.minutes is not None and self.learn_s >= 60.0 * learning.minutes
        return out_of_time or (learning.env_steps is not None and self.env_steps >= learning.env_steps)

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

    def save_policy(self, path: str | Path) -> None:
        """Write the policy with its model card, for ``assignment.name: d3qn``.

        The card's figures are measured on the reporting fleets, which neither training nor the learning curve uses.
        """
        network, spec = self.algorithm.network(), self.pool.spec
        trained_on = {  # `hflray.assignment.d3qn` warns about fleets outside of these ranges
            "num_scheduled": list(spec.num_scheduled),
            "num_edges": list(spec.num_edges),
            "fleets": len(self.pool),
            "specification": spec.to_dict(),
            "solve_s": round(self.pool.solve_s, 1),
        }
        save_policy(path, network, self.card(trained_on, self.evaluate_finished(network).summary()))


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
        if saved.exists():
            training.restore(saved)
        last = time.monotonic()
        while not training.finished:
            point = training.advance()
            if on_point:
                on_point(point)
            if training.finished or time.monotonic() - last >= SAVE_EVERY_S:
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
