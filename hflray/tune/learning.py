"""Task ``train_assigner`` in a trial's process and on its display: Algorithm 5 through Tune."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.rl.files import POLICY
from hflray.tune.stopping import asked

STATE = "training"  # in a checkpoint, beside the policy
POLICIES = "policies"  # folder of a sweep


def train_trial(config: ExperimentConfig, cpus: int) -> None:
    """Train to the configuration's limits; each evaluation is a result, every `checkpoint.every`-th a checkpoint.

    Raises:
        ConfigError, DivergedError: see `AssignerTraining`.
    """
    from ray import tune

    from hflray.rl.session import AssignerTraining  # with RLlib, which takes seconds to import

    with AssignerTraining(config, workers=cpus) as training:
        note: str | None = f"{len(training.pool)} fleets solved in {training.pool.solve_s:.0f} s, now or earlier"
        latest = tune.get_checkpoint()
        if latest is not None:
            with latest.as_directory() as folder:
                training.restore(Path(folder) / STATE)
            note = None
        while not training.finished:
            point = training.advance()
            result = {"round": point.env_steps, "metrics": point.metrics()}
            if note:
                result["note"], note = note, None
            every = config.checkpoint.every
            stop = asked(tune.get_context().get_experiment_name())
            if not (training.finished or (every and (stop or len(training.points) % every == 0))):
                tune.report(result)
                continue
            with tempfile.TemporaryDirectory() as scratch:
                training.save_policy(Path(scratch) / POLICY)
                training.save(Path(scratch) / STATE)
                tune.report(result, checkpoint=tune.Checkpoint.from_directory(scratch))


def progress_of(config: ExperimentConfig, env_steps: int, values: dict[str, float]) -> tuple[int, int, str, str]:
    """How far a trial is: so many of so many, of what, and a line about it."""
    learning = config.learning
    text = (
        f"return {values[metrics.ASSIGNER_RETURN]:.1f}, held-out {values[metrics.ASSIGNER_GREEDY_RETURN]:.1f}, "
        f"objective {values[metrics.assigner_ratio('local_search')]:.3f} × local search"
    )
    if learning.minutes is None:
        return env_steps, learning.env_steps or 0, "step", text
    return int(values[metrics.WALL_LEARN_S]), int(60 * learning.minutes), "second", text


def take_policy(checkpoint: Any, path: Path) -> None:
    """Copy the policy of a trial's last checkpoint, wherever that lies, to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with checkpoint.as_directory() as folder:
        shutil.copyfile(Path(folder) / POLICY, path)


def total_of(config: ExperimentConfig) -> int:
    """What `progress_of` counts up to."""
    learning = config.learning
    return learning.env_steps or 0 if learning.minutes is None else int(60 * learning.minutes)
