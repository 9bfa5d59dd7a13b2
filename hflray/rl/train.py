"""The command that trains the assigner (Algorithm 5), without Tune.

::

    hflray train-assigner --config FILE --set learning.minutes=40 --out runs/any --resume

It imports `hflray.rl.session` only when it runs, because importing torch and RLlib takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hflray.rl import POLICY
from hflray.support.terminal.app import HELP, exit_code, single

if TYPE_CHECKING:
    from hflray.rl.resumable import Point

app = single()


@app.command(context_settings=HELP)
def train_assigner(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint, the policy and the learning curve.")],
    config: Annotated[
        Path | None, typer.Option(help="Configuration or sweep file (YAML); default: all defaults.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="The same as --set learning.minutes=…")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Train the learned assigner (Algorithm 5), without Tune.

    \b
    Examples:
      hflray train-assigner --out runs/mine --minutes 40
      hflray train-assigner --out runs/mine --resume       # goes on, bit for bit
    """
    from hflray import metrics
    from hflray.config import load_config
    from hflray.rl.session import train

    reported: dict[str, int] = {}

    def show_solved(kind: str, done: int, total: int) -> None:
        if done == total or done >= reported.get(kind, 0) + total // 10:
            reported[kind] = done
            print(f"{kind}: {done}/{total}", flush=True)

    def show(point: Point) -> None:
        values = point.metrics
        prefix = metrics.assigner_ratio("")
        ratios = ", ".join(f"{name.removeprefix(prefix)} {values[name]:.3f}" for name in values if prefix in name)
        print(
            f"{values[metrics.WALL_LEARN_S]:7.0f} s  {point.env_steps:>10,} steps  "
            f"{values[metrics.ASSIGNER_STEPS_PER_S]:5.0f}/s  return {values[metrics.ASSIGNER_RETURN]:6.1f}  "
            f"greedy {values[metrics.ASSIGNER_GREEDY_RETURN]:6.1f}  "
            f"agreement {values[metrics.ASSIGNER_AGREEMENT]:.3f}  "
            f"loss {values[metrics.ASSIGNER_LOSS]:.3f}  objective {values[metrics.ASSIGNER_OBJECTIVE]:.2f} ({ratios})",
            flush=True,
        )

    extra = [] if minutes is None else [f"learning.minutes={minutes}"]
    train(load_config(config, [*(overrides or []), *extra]), out, resume=resume, on_point=show, report=show_solved)
    print(f"policy: {out / POLICY}")


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.rl.train`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.rl.train")


if __name__ == "__main__":
    sys.exit(main())
