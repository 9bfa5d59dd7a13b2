"""The command ``hflray``, which imports a subcommand only when it runs, so that ``hflray --help`` answers at once."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from hflray import __version__
from hflray.support.terminal.app import Commands, exit_code, group, program

COMMANDS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text(encoding="utf-8")
)


def load(name: str) -> Any:
    """Import and return the subcommand called `name`."""
    module, application, *member = COMMANDS[name]["place"].split(":")
    command: Any = get_command(getattr(import_module(module), application))
    return command.commands[member[0]] if member else command


class LazyCommands(Commands):
    """The subcommands. Their names and summaries are known without an import."""

    _listing = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, help=entry["summary"]) for name, entry in COMMANDS.items()}

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
