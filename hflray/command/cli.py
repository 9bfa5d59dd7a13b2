"""The command ``hflray``, which imports a subcommand only when it runs, so that ``hflray --help`` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command

from hflray import __version__
from hflray.support.terminal.app import Commands, exit_code, group, program


class Subcommand(NamedTuple):
    """Where a subcommand is, and its line in the help.

    Attributes:
        place: ``module:application``, and for one command of a group of commands ``module:application:name``.
        summary: what it does.
    """

    place: str
    summary: str


COMMANDS = {
    "tune": Subcommand("hflray.tune.cli:app", "Run a sweep of experiments; without a sweep file, the quickstart."),
    "report": Subcommand("hflray.command.report:app", "Draw figures, tables and a page of finished runs."),
    "export": Subcommand("hflray.command.export:app", "Write the rounds of a sweep as one table, CSV or Parquet."),
    "compare": Subcommand(
        "hflray.command.compare:app", "Print a sweep's closing table, or statistics of one or several sweeps."
    ),
    "leaderboard": Subcommand(
        "hflray.reproduction.leaderboard_command:app",
        "Score the shipped assigners or schedulers, and your own, on fixed instances.",
    ),
    "reproduce": Subcommand(
        "hflray.reproduction.command:app", "Repeat a paper's results, ours or another's, and judge its claims."
    ),
    "explain": Subcommand(
        "hflray.command.report:app:explain", "Explain a round: who took part and why, and at what cost."
    ),
    "train-assigner": Subcommand(
        "hflray.rl.command:app:train-assigner", "Train the learned assigner (Algorithm 5), without Tune."
    ),
    "finetune": Subcommand(
        "hflray.rl.command:app:finetune", "Improve a trained assigner on the round's objective itself."
    ),
    "card": Subcommand("hflray.rl.command:app:card", "Write the card of a learned assigner beside its file."),
    "nodes": Subcommand("hflray.tune.nodes:app", "Check that all nodes of a cluster run the same versions."),
    "sync": Subcommand("hflray.tracking.cli:sync_app", "Send the rounds that MLflow or another tracker has missed."),
    "data": Subcommand("hflray.command.data:app", "List the data sets, download them, and check their files."),
    "doctor": Subcommand("hflray.command.doctor:app", "Check versions, memory, disk, Ray and data sets here."),
    "check": Subcommand("hflray.command.check:app", "Try every part in a file of your own, as --dry-run would."),
    "calibrate": Subcommand(
        "hflray.command.calibrate:app", "Fit what devices and links take from a log of real ones, and test it."
    ),
    "plan": Subcommand(
        "hflray.command.plan:app", "Search H, λ, scheduler, assigner and clock for an accuracy at the least cost."
    ),
    "new": Subcommand("hflray.command.new:app", "Write a commented sweep file, or a system, to begin with."),
}  # fmt: skip


def load(name: str) -> Any:
    """Import and return the subcommand called `name`."""
    module, application, *member = COMMANDS[name].place.split(":")
    command: Any = get_command(getattr(import_module(module), application))
    return command.commands[member[0]] if member else command


class LazyCommands(Commands):
    """The subcommands. Their names and summaries are known without an import."""

    _listing = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the subcommand, or its name and summary only while names are completed."""
        listed = super().get_command(ctx, cmd_name)
        return listed if listed is None or self._listing else load(cmd_name)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the names and options that begin with `incomplete`."""
        self._listing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = False


app = group(cls=LazyCommands, add_completion=True)


def _print_version(enabled: bool) -> None:
    if enabled:
        print(f"hflray {__version__}")
        raise typer.Exit


@app.callback()
def overview(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Experiments in hierarchical federated learning on Ray.

    Begin with:

    \b
      hflray doctor                        # can this machine run a sweep?
      hflray tune                          # the quickstart, about a minute
      hflray report quickstart             # its figures, tables and page
      hflray new my_sweep                  # a sweep file of your own
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    sys.exit(exit_code(app, arguments, program() or "hflray"))
