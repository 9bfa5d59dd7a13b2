"""The command that fine-tunes a trained policy on the round's objective itself.

    hflray finetune --policy learned.safetensors --out tuned.safetensors --minutes 10 [--set …] [--resume]

It imports `hflray.rl.fine_tuning` only when it runs, because importing torch takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hflray.support.terminal.app import HELP, exit_code, single

app = single()


@app.command(context_settings=HELP)
def finetune(
    policy: Annotated[Path, typer.Option(help="Policy to start from (safetensors).")],
    out: Annotated[Path, typer.Option(help="Policy to write.")],
    config: Annotated[
        Path | None, typer.Option(help="Configuration or sweep file, for the fleets of its `learning`.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE …", help="Train on as many fleets with these settings too; may be repeated."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Stop after this many minutes.")] = 10.0,
    updates: Annotated[int | None, typer.Option(help="Stop after this many updates (reproducible).")] = None,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of Adam at the start.")] = 3e-4,
    batch: Annotated[int, typer.Option(help="Fleets in an update.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from OUT's state folder.")] = False,
) -> None:
    """Improve a trained assigner on the round's objective itself, beyond what its teacher can show.

    \b
    Example:
      hflray finetune --policy runs/mine/policy.safetensors --out tuned.safetensors --minutes 10
    """
    from hflray.rl.fine_tuning import Steps, finetune_file

    def report(done: int, seconds: float, figures: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(f"{seconds:6.0f} s  {done:6d} updates  {text}", flush=True)

    summary = finetune_file(
        policy, out, config, overrides or [], also or [], updates=updates, minutes=None if updates else minutes,
        steps=Steps(learning_rate=learning_rate, batch=batch, seed=seed), resume=resume, report=report,
    )  # fmt: skip
    before, after = summary["before"]["mean_ratio"], summary["after"]["mean_ratio"]
    print(f"{out}: objective against the teacher's {before:.4f} before, {after:.4f} after {summary['updates']} updates")


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.rl.finetune`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.rl.finetune")


if __name__ == "__main__":
    sys.exit(main())
