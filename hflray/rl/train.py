"""Training of the assigner (Algorithm 5): a loop around the RLlib algorithm that evaluates, saves and resumes.

::

    hflray train-assigner --config FILE --set learning.minutes=40 --out runs/any --resume

`hflray.tune` runs the same `AssignerTraining` as a sweep's trial (task ``train_assigner``). The result is a function of
the configuration if ``learning.env_steps`` is the limit, and depends on the machine's speed if ``learning.minutes`` is.
A checkpoint holds the whole state, the replay buffer and all generators included, so that a stopped run resumes bit for
bit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.rl.cli import train_app
from hflray.rl.files import CHECKPOINT, HISTORY, POLICY
from hflray.rl.session import AssignerTraining, Point, Report
from hflray.support.files import write
from hflray.support.terminal.app import exit_code


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


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.rl.train`` and return its exit code."""
    return exit_code(train_app, arguments, "python -m hflray.rl.train")


if __name__ == "__main__":
    sys.exit(main())
