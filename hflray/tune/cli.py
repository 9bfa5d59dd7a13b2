"""The command ``python -m hflray.tune``: from a sweep file to a closing table. Without one it runs the quickstart."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

# What takes long to import comes later: kernels are compiled and Ray starts meanwhile.
from hflray.compare import Outcome, closing_table, comparison_lines
from hflray.errors import ConfigError, HflrayError
from hflray.results import SweepFolder, find, new_folder, unfinished
from hflray.sweep import SweepFile, Trial, expand, load_sweep, smoke, with_absolute_paths, with_data_root
from hflray.tasks import find_task
from hflray.tasks.assignment import assigner_label
from hflray.tracking import Tracker, default_uri
from hflray.training.start import never_mind, start_soon
from hflray.tune import warm

PACKAGE = Path(__file__).parents[1]
# Inside the package when it was installed from a wheel, beside it in a checkout.
CONFIGS = PACKAGE / "tune_configs" if (PACKAGE / "tune_configs").is_dir() else PACKAGE.parent / "tune_configs"
QUICKSTART = CONFIGS / "quickstart.yaml"
INTERRUPTED = 130  # the shell's exit code for Ctrl-C


def _trials_table(file: SweepFile, trials: Sequence[Trial]) -> Table:
    title = f"{file.name}: {len(trials)} trials of task '{file.task}'"
    if file.tune.search is not None:
        title = (
            f"{file.name}: a search of {file.tune.samples} trials of task '{file.task}'; at the first of all values:"
        )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("trial", no_wrap=True)
    last = [key.rpartition(".")[2] for key in file.sweep]
    for key, short in zip(file.sweep, last, strict=True):
        table.add_column(key if last.count(short) > 1 else short, overflow="fold")
    table.add_column("max_rounds", justify="right")
    for trial in trials:
        table.add_row(trial.name, *(str(trial.values[key]) for key in file.sweep), str(trial.config.max_rounds))
    return table


def _report_assignment(
    title: str, trials: Sequence[Trial], outcomes: Sequence[Outcome], folder: Path, console: Console
) -> None:
    """Table and charts of an assignment study; assigners that failed are left out of it."""
    import pandas as pd

    from hflray.report import assignment

    studies = {}
    for trial, outcome in zip(trials, outcomes, strict=True):
        if outcome.error is None and outcome.history:
            label = assigner_label(trial.config)
            studies[trial.name if label in studies else label] = pd.DataFrame(outcome.history)
    if studies:
        table, paths = assignment.write(title, studies, folder)
        console.print(table)
        for path in paths:
            console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


def _list(console: Console) -> None:
    for path in sorted(CONFIGS.glob("*.yaml")):
        console.print(f"{path.stem:24} {load_sweep(path).description}", markup=False, highlight=False, soft_wrap=True)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    config: Annotated[Path | None, typer.Argument(help="Sweep file (YAML); without one, the quickstart runs.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    smoke_run: Annotated[
        bool, typer.Option("--smoke", help="One small trial on synthetic data, a minute or less.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate, list the trials, estimate time and memory; run nothing.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the shipped sweep files.")] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on with an unfinished sweep: its name or folder.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew although an unfinished sweep has this name.")
    ] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; else $HFLRAY_DATA, else ~/.cache/hflray.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where results and the default MLflow database go.")] = Path(
        "hflray_results"
    ),
    storage: Annotated[
        str | None,
        typer.Option(metavar="URI", help="On a cluster: where trials and checkpoints go, s3://bucket/folder."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to run on; auto: the one this machine is part of.")
    ] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow server, such as http://127.0.0.1:5000.")] = None,
    require_tracking: Annotated[
        bool, typer.Option("--require-tracking", help="Fail if MLflow cannot be reached at the start.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only failures and the closing table.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log lines of hflray itself as well.")] = False,
) -> None:
    """Run a sweep of hierarchical federated learning experiments.

    Examples:

      python -m hflray.tune
      python -m hflray.tune tune_configs/fashion_small.yaml --set scheduling.num_scheduled=50
      python -m hflray.tune tune_configs/fashion_small.yaml --dry-run
      python -m hflray.tune --resume fashion_small
    """
    console = Console()
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=console, show_path=False, show_time=False)])
    if verbose:
        logging.getLogger("hflray").setLevel(logging.INFO)
    if listing:
        _list(console)
        return
    if address is not None:
        os.environ["RAY_ADDRESS"] = address
    if resume is not None:
        if config or overrides or smoke_run or data_root or tracking_uri:
            raise ConfigError(f"--resume {resume}: the saved sweep says it all; leave CONFIG, --set and the like out")
        if storage is not None:
            from hflray.tune.storage import fetch

            fetch(storage, results, resume)
        folder = find(results, resume)
    else:
        file = load_sweep(config or QUICKSTART, overrides or ())
        file = smoke(file) if smoke_run else file
        file = with_data_root(file, data_root) if data_root is not None else file
        file = with_absolute_paths(file)
        first = expand(file)[0].config.tracking
        uri = tracking_uri or first.uri or default_uri(results)
        folder = new_folder(results, file, uri, first.experiment)
        folder.storage, folder.sinks = storage, first.sinks
    trials = expand(folder.file)
    if not dry_run:
        warm.begin(trials)
        start_soon()
    with console.status("checking data and measuring this machine"):
        from hflray.preflight import check_trials, estimate

        # The head of a cluster need not have the GPU that its workers have.
        here = not os.environ.get("RAY_ADDRESS") or all(trial.config.training.device == "cpu" for trial in trials)
        checked = check_trials(trials, folder.file.task, measure=here and not dry_run)
    if dry_run:
        console.print(_trials_table(folder.file, trials))
    if not quiet:
        for note in checked.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
    if dry_run:
        console.print(estimate(folder.file, trials, checked, os.cpu_count() or 1), markup=False, highlight=False)
        return
    if resume is None and not fresh:
        folder = _asked(folder, results)
    elif resume is not None and not quiet:
        console.print(f"going on with {folder.path.name}", markup=False, highlight=False)

    from hflray.tune.driver import run_sweep

    going_on = (folder.path / "sweep.json").exists()
    started = time.monotonic()
    outcomes, tracker = run_sweep(
        folder, trials, checked, console, resume=going_on, require_tracking=require_tracking, quiet=quiet
    )
    title = f"{folder.file.name} ({time.monotonic() - started:.0f} s)"
    task = find_task(folder.file.task)
    if task.keeps_history and folder.finished:
        _report_assignment(title, trials, outcomes, folder.path, console)
    else:
        console.print(closing_table(title, outcomes, console.width, task.shown.table))
    _farewell(folder, outcomes, tracker, console)


def _asked(folder: SweepFolder, results: Path) -> SweepFolder:
    """An unfinished sweep of the same name: go on with it if the user says so, never begin a second one silently."""
    left = unfinished(results, folder.file.name)
    if left is None:
        return folder
    previous = SweepFolder.load(left)
    same = previous.file == folder.file
    if same and sys.stdin.isatty() and typer.confirm(f"{left.name} is unfinished. Go on with it?", default=True):
        return replace(previous, path=left.resolve(), finished=False)
    what = "is unfinished" if same else "of other settings is unfinished"
    raise ConfigError(
        f"name: a sweep '{folder.file.name}' {what} ({left}); "
        f"continue it with --resume {left.name}, or begin anew with --fresh"
    )


def _farewell(folder: SweepFolder, outcomes: Sequence[Outcome], tracker: Tracker, console: Console) -> None:
    """How to compare the runs, what failed, how to go on; the exit code."""
    say: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    logged = {name for outcome in outcomes for name in outcome.values}
    if "mlflow" in folder.sinks:
        ids = tracker.run_ids(outcome.name for outcome in outcomes)
        lines = comparison_lines(folder.uri, tracker.experiment_id, ids, logged)
        if lines:
            console.print("Compare the runs in MLflow (parameters, curves, parallel coordinates):", **say)
        else:
            console.print(
                f"MLflow has none of the runs; send them: python -m hflray.tracking sync {folder.path}", **say
            )
        for line in lines:
            console.print(f"  {line}", **say)
    for line in tracker.seen_at():
        console.print(line, **say)
    place = "" if folder.path.parent == Path("hflray_results").resolve() else f" --results {folder.path.parent}"
    console.print(f"Figures, tables and a page: python -m hflray.report {folder.path.name}{place}", **say)
    for outcome in outcomes:
        if outcome.stopped:
            console.print(f"{outcome.name}: stopped early: {outcome.stopped}", **say)
    if not folder.finished:
        console.print(f"unfinished; go on with: python -m hflray.tune --resume {folder.path.name}{place}", **say)
        raise typer.Exit(INTERRUPTED)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        console.print(f"{outcome.name}: failed: {outcome.error}", style="red", **say)
    if failed:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: an HflrayError is one line per mistake on stderr and exit code 2, never a traceback."""
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    try:
        app()
    except HflrayError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a results folder that cannot be written, a full disk
        what = f"{error.filename or 'results'}: {error.strerror or error}"
        print(f"error: {what}; make room or the folder writable, or give another with --results", file=sys.stderr)
        sys.exit(2)
    finally:
        never_mind()
