"""The command ``hflray sync FOLDER``, also as ``python -m hflray.tracking sync FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hflray.support.terminal.app import HELP, exit_code, group, single

sync_app, app = single(), group()


@app.callback()
def overview() -> None:
    """Send missed rounds to MLflow."""


@sync_app.command(context_settings=HELP)
@app.command("sync")
def send(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The sweep's results, hflray_results/NAME-…")],
    tracking_uri: Annotated[str | None, typer.Option(help="The MLflow server; default: the one of the sweep.")] = None,
) -> None:
    """Send the rounds that MLflow or another tracker of a sweep has missed."""
    from hflray.tracking.tracker import sync

    complete = sync(folder, tracking_uri)
    print("everything is in MLflow" if complete else "not everything arrived; try again")
    if not complete:
        raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.tracking`` and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.tracking")
