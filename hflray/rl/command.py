"""The commands of this package: train the assigner (Algorithm 5), fine-tune a policy, and write a policy's card.

They are ``hflray train-assigner``, ``hflray finetune`` and ``hflray card``, and ``python -m hflray.rl.command`` has all
three. Each imports what it needs only when it runs, because importing torch and RLlib takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hflray.support.terminal.app import HELP, exit_code, group

if TYPE_CHECKING:
    from hflray.rl.session import Point

app = group()

ConfigFile = Annotated[Path | None, typer.Option(help="Configuration or sweep file (YAML); default: all defaults.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
]


@app.command("train-assigner", context_settings=HELP)
def train_assigner(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint, the policy and the learning curve.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
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
    from hflray.rl import POLICY
    from hflray.rl.session import train

    reported: dict[str, int] = {}

    def show_solved(kind: str, done: int, total: int) -> None:
        if done == total or done >= reported.get(kind, 0) + total // 10:
            reported[kind] = done
            print(f"{kind}: {done}/{total}", flush=True)

    def show(point: Point) -> None:
        values, prefix = point.metrics, metrics.assigner_ratio("")
        shown = {
            "return": metrics.ASSIGNER_RETURN, "greedy": metrics.ASSIGNER_GREEDY_RETURN,
            "agreement": metrics.ASSIGNER_AGREEMENT, "loss": metrics.ASSIGNER_LOSS,
            "objective": metrics.ASSIGNER_OBJECTIVE,
        }  # fmt: skip
        figures = "  ".join(f"{label} {values[name]:.3f}" for label, name in shown.items())
        ratios = ", ".join(f"{name.removeprefix(prefix)} {values[name]:.3f}" for name in values if prefix in name)
        rate = f"{point.env_steps:>10,} steps  {values[metrics.ASSIGNER_STEPS_PER_S]:5.0f}/s"
        print(f"{values[metrics.WALL_LEARN_S]:7.0f} s  {rate}  {figures} ({ratios})", flush=True)

    extra = [] if minutes is None else [f"learning.minutes={minutes}"]
    train(load_config(config, [*(overrides or []), *extra]), out, resume=resume, on_point=show, report=show_solved)
    print(f"policy: {out / POLICY}")


@app.command(context_settings=HELP)
def finetune(
    policy: Annotated[Path, typer.Option(help="Policy to start from (safetensors).")],
    out: Annotated[Path, typer.Option(help="Policy to write.")],
    config: ConfigFile = None,
    overrides: Overrides = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE …", help="Train on as many fleets with these settings too; may be repeated."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this many minutes; 10 if --updates is not given either.")
    ] = None,
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
    from hflray.rl.fine_tuning import finetune_file

    def report(done: int, seconds: float, figures: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(f"{seconds:6.0f} s  {done:6d} updates  {text}", flush=True)

    if not updates and minutes is None:
        minutes = 10.0
    summary = finetune_file(
        policy, out, config, overrides or [], also or [], updates=updates, minutes=minutes,
        learning_rate=learning_rate, batch=batch, seed=seed, resume=resume, report=report,
    )  # fmt: skip
    before, after = summary["before"]["mean_ratio"], summary["after"]["mean_ratio"]
    print(f"{out}: objective against the teacher's {before:.4f} before, {after:.4f} after {summary['updates']} updates")


@app.command(context_settings=HELP)
def card(
    policy: Annotated[Path, typer.Argument(help="Policy file (safetensors).", metavar="POLICY")],
    measure_first: Annotated[
        bool, typer.Option("--measure", help="Measure the policy first, on fleets that it has never seen.")
    ] = False,
    fleets: Annotated[int, typer.Option(help="Number of fleets for --measure.")] = 100,
) -> None:
    """Write the card of a learned assigner beside its file, as POLICY.md."""
    from hflray.rl.card import measure, write_card

    if measure_first:
        measure(policy, fleets)
    write_card(policy)


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.rl.command`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.rl.command")


if __name__ == "__main__":
    sys.exit(main())
