"""The commands of this package with their options: train-assigner, finetune, card, and the module `pool`.

Each ``main`` of a module runs its command from here. The modules are imported only when a command runs, because
importing torch and RLlib takes seconds, and ``--help`` needs neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hflray.support.terminal.app import HELP, single

if TYPE_CHECKING:
    from hflray.rl.session import AssignerTraining, Point

Config = Annotated[Path | None, typer.Option(help="Configuration or sweep file (YAML); default: all defaults.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
]

train_app, finetune_app, card_app, pool_app = (single() for _ in range(4))


@train_app.command(context_settings=HELP)
def train_assigner(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint, the policy and the learning curve.")],
    config: Config = None,
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
    from hflray.config import load_config
    from hflray.rl.files import POLICY
    from hflray.rl.train import train

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

    extra = [] if minutes is None else [f"learning.minutes={minutes}"]
    train(load_config(config, [*(overrides or []), *extra]), out, resume=resume, on_point=show, report=show_solved)
    print(f"policy: {out / POLICY}")


@finetune_app.command(context_settings=HELP)
def finetune(
    policy: Annotated[Path, typer.Option(help="Policy to start from (safetensors).")],
    out: Annotated[Path, typer.Option(help="Policy to write.")],
    config: Annotated[
        Path | None, typer.Option(help="Configuration or sweep file, for the fleets of its `learning`.")
    ] = None,
    overrides: Overrides = None,
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
    from hflray.rl.finetune import Steps, finetune_file

    def report(done: int, seconds: float, figures: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(f"{seconds:6.0f} s  {done:6d} updates  {text}", flush=True)

    summary = finetune_file(
        policy, out, config, overrides or [], also or [], updates=updates, minutes=None if updates else minutes,
        steps=Steps(learning_rate=learning_rate, batch=batch, seed=seed), resume=resume, report=report,
    )  # fmt: skip
    before, after = summary["before"]["mean_ratio"], summary["after"]["mean_ratio"]
    print(f"{out}: objective against the teacher's {before:.4f} before, {after:.4f} after {summary['updates']} updates")


@card_app.command(context_settings=HELP)
def card(
    policy: Annotated[Path, typer.Argument(help="Policy file (safetensors).", metavar="POLICY")],
    measure_first: Annotated[
        bool, typer.Option("--measure", help="Measure the policy first, on fleets that it has never seen.")
    ] = False,
    fleets: Annotated[int, typer.Option(help="Number of fleets for --measure.")] = 100,
) -> None:
    """Write the card of a learned assigner beside its file, as POLICY.md."""
    from hflray.assignment.policy import load_policy
    from hflray.rl.card import as_markdown, measure
    from hflray.support.files import write

    if measure_first:
        measure(policy, fleets)
    _, header = load_policy(policy)
    text = as_markdown(policy.stem, header, policy.stat().st_size)
    write(policy.with_suffix(".md"), text)


@pool_app.command(context_settings=HELP)
def pool(
    config: Config = None,
    overrides: Overrides = None,
    workers: Annotated[int | None, typer.Option(help="Number of threads; default: one per CPU.")] = None,
) -> None:
    """Solve the fleets of a configuration ahead of training, and keep them in their cache."""
    from rich.progress import Progress

    from hflray.config import load_config
    from hflray.rl.fleets import FleetSpec
    from hflray.rl.solved_fleets import prepare
    from hflray.support.terminal.output import new_console

    loaded = load_config(config, overrides or [])
    learning = loaded.learning
    with Progress(console=new_console()) as bar:
        task = bar.add_task("fleets solved")
        solved = prepare(
            FleetSpec.of(loaded), learning.fleets, learning.cache, workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    print(f"{len(solved)} fleets in {solved.folder}, solved in {solved.solve_s:.0f} s")
