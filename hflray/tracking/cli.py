"""The command ``python -m hflray.tracking sync FOLDER``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hflray.errors import HflrayError
from hflray.tracking.tracker import sync


def main(arguments: list[str] | None = None) -> int:
    """Send the rounds that MLflow or another tracker of the sweep has missed; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hflray.tracking", description="Send missed rounds to MLflow.")
    parser.add_argument("command", choices=["sync"])
    parser.add_argument("folder", type=Path, help="the sweep's results, hflray_results/NAME-…")
    parser.add_argument("--tracking-uri", help="the MLflow server; default: the one of the sweep")
    options = parser.parse_args(arguments)
    try:
        complete = sync(options.folder, options.tracking_uri)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("everything is in MLflow" if complete else "not everything arrived; try again")
    return 0 if complete else 1
