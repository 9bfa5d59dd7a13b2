"""Training of the assigner (Algorithm 5): a loop around the RLlib algorithm that evaluates, saves and resumes.

::

    python -m hflray.rl.train --config FILE --set learning.minutes=40 --out runs/any --resume

`hflray.tune` runs the same `AssignerTraining` as a sweep's trial (task ``train_assigner``). The result is a function of
the configuration if ``learning.env_steps`` is the limit, and depends on the machine's speed if ``learning.minutes`` is.
A checkpoint holds the whole state, the replay buffer and all generators included, so that a stopped run resumes bit for
bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hflray.config import ExperimentConfig, load_config
from hflray.errors import ConfigError, HflrayError
from hflray.files import write
from hflray.rl.files import CHECKPOINT, HISTORY, POLICY
from hflray.rl.session import AssignerTraining, Point, Report


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
    """Run ``python -m hflray.rl.train``."""
    parser = argparse.ArgumentParser(prog="python -m hflray.rl.train", description="Train the assigner, without Tune.")
    parser.add_argument("--config", type=Path, help="configuration or sweep file (YAML); default: all defaults")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    parser.add_argument("--minutes", type=float, help="same as --set learning.minutes=…")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint, policy and learning curve")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    options = parser.parse_args(arguments)
    reported: dict[str, int] = {}

    def show_solved(kind: str, done: int, total: int) -> None:
        if done == total or done >= reported.get(kind, 0) + total // 10:
            reported[kind] = done
            print(f"{kind}: {done}/{total}", flush=True)

    def show(training: AssignerTraining, point: Point) -> None:
        q = point.quality
        ratios = ", ".join(f"{name} {value:.3f}" for name, value in q.ratio.items())
        print(
            f"{point.learn_s:7.0f} s  {point.env_steps:>10,} steps  {point.steps_per_s:5.0f}/s  "
            f"return {point.episode_return:6.1f}  greedy {q.greedy_return:6.1f}  agreement {q.agreement:.3f}  "
            f"loss {point.loss:.3f}  objective {q.objective:.2f} ({ratios})",
            flush=True,
        )

    try:
        extra = [] if options.minutes is None else [f"learning.minutes={options.minutes}"]
        config = load_config(options.config, [*options.set, *extra])
        train(config, options.out, resume=options.resume, on_point=show, report=show_solved)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"policy: {options.out / POLICY}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
