"""The command ``hflray tune``, which runs a sweep file, or the quickstart if no file is given.

``python -m hflray.tune`` is the same command. What runs a sweep is imported only when the command runs, so that its
help is printed at once.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hflray.errors import ConfigError
from hflray.support.limits import check_address_space
from hflray.support.shipped import CONFIGS, sweep_files
from hflray.support.terminal.app import HELP, RESULTS, DataRoot, Results, exit_code, single, spoken

if TYPE_CHECKING:
    from rich.console import Console

    from hflray.support.terminal.tables import TextTable
    from hflray.sweep import SweepFile, Trial
    from hflray.sweep.compare import Outcome
    from hflray.sweep.preflight import CheckedTrials
    from hflray.sweep.results import SweepFolder
    from hflray.tracking import Tracker

QUICKSTART = CONFIGS / "quickstart.yaml"
# Where a secret belongs that an option must not hold, because other users see options, and a sweep stores them.
IN_AWS = "it holds a key; accepted: s3://bucket/folder, with keys in the environment (AWS_ACCESS_KEY_ID) or in ~/.aws"
IN_RAY = "it holds a password; accepted: an address alone, with the token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
INTERRUPTED = 130  # the shell's exit code for Ctrl-C


def _trials_table(file: SweepFile, trials: Sequence[Trial]) -> TextTable:
    from hflray.support.pinned import plain
    from hflray.support.references import short, spoken
    from hflray.support.terminal.tables import TextTable

    title = f"{file.name}: {len(trials)} trials of task '{file.task}'"
    if file.tune.search is not None:
        title = (
            f"{file.name}: a search of {file.tune.samples} trials of task '{file.task}', shown with the first values:"
        )
    last = [key.rpartition(".")[2] for key in file.sweep]
    keys = [key if last.count(name) > 1 else name for key, name in zip(file.sweep, last, strict=True)]
    table = TextTable(title, ["trial", *keys, "max_rounds"], align="l" * (1 + len(keys)))
    for trial in trials:
        values = [trial.values[key] for key in file.sweep]
        texts = [plain(spoken(value)) if isinstance(value, str) else short(value) for value in values]
        table.add_row(trial.name, *texts, str(trial.config.max_rounds))
    return table


def _report_study(title: str, folder: SweepFolder, console: Console) -> None:
    """Print the table of a study whose steps are averaged, and write its figures into the sweep's folder."""
    from hflray.report.figures import save_all
    from hflray.report.runs import read_sweep
    from hflray.report.tables import summary
    from hflray.support.terminal.output import say

    sweep = read_sweep(folder.path.parent, folder.path.name)
    console.print(replace(summary(sweep), title=title))
    missing: list[str] = []  # the sweep has ended, and a report draws these figures again
    for path in save_all(sweep, sweep.shown.figures, folder.path, missing):
        say(console, f"  {path}")
    for note in missing:
        say(console, f"note: {note}", "yellow")


app = single()


@app.command(context_settings=HELP)
def command(
    config: Annotated[Path | None, typer.Argument(help="Sweep file (YAML); without one, the quickstart runs.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    smoke_run: Annotated[
        bool, typer.Option("--smoke", help="Run one small trial on synthetic data, in a minute or less.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate, list the trials, estimate time and memory; run nothing.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the shipped sweep files.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Continue an unfinished sweep, by its name or folder; with --set max_rounds=N also a finished one.",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="With --resume: run a folder's Python files although they are no files of yours here."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin a new sweep although an unfinished one has this name.")
    ] = False,
    data_root: DataRoot = None,
    results: Results = RESULTS,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Storage of journals and checkpoints on a cluster, s3://bucket/folder."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of the Ray cluster; auto: the cluster of this machine.")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(metavar="N", help="Use N CPUs of this machine, the idlest; by default all.")
    ] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow server, such as http://127.0.0.1:5000.")] = None,
    require_tracking: Annotated[
        bool, typer.Option("--require-tracking", help="Fail if MLflow cannot be reached at the start.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only failures and the closing table.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print the log lines of hflray as well.")] = False,
) -> None:
    """Run a sweep of hierarchical federated learning experiments; without a sweep file, the quickstart.

    \b
    Examples:
      hflray tune
      hflray tune tune_configs/fashion_small.yaml --set scheduling.name=vkc
      hflray tune tune_configs/fashion_small.yaml --dry-run
      hflray tune --resume fashion_small
      hflray tune --resume fashion_small --set max_rounds=100
    """
    check_address_space(dry_run or listing)
    from hflray.support.limits import available_cpus
    from hflray.support.terminal.output import new_console, say, show_log, waiting
    from hflray.sweep import check_begins, expand, load_sweep, smoke, with_absolute_paths, with_data_root
    from hflray.sweep.compare import closing_table, without_effect
    from hflray.sweep.results import new_folder
    from hflray.sweep.tasks import find_task
    from hflray.tracking import default_uri
    from hflray.tracking.addresses import refuse_secret
    from hflray.training.machine import keep_to

    console = new_console()
    show_log(console)
    if verbose:
        logging.getLogger("hflray").setLevel(logging.INFO)
    if listing:
        for path in sweep_files():
            say(console, f"{path.stem:24} {load_sweep(path).description}")
        return
    refuse_secret(storage or "", "--storage", IN_AWS)
    refuse_secret(address or "", "--address", IN_RAY)
    if address is not None:
        os.environ["RAY_ADDRESS"] = address
    if cpus is not None:
        if cluster := os.environ.get("RAY_ADDRESS"):
            raise ConfigError(
                f"--cpus: got {cpus} with the cluster at {cluster}, whose nodes have their own; leave it out"
            )
        keep_to(cpus)
    if resume is not None:
        if config or smoke_run or data_root:
            raise ConfigError(f"--resume {resume}: the saved sweep has all settings; leave out CONFIG and the like")
        folder = saved(resume, results, tracking_uri, storage, overrides or ())
        folder.admit(trust)
        trials = expand(folder.file, numbered=not folder.started_ms)  # it is 0 in the folder of an older hflray
    else:
        file = load_sweep(config or QUICKSTART, overrides or ())
        file = smoke(file) if smoke_run else file
        file = with_data_root(file, data_root) if data_root is not None else file
        file = with_absolute_paths(file)
        trials = expand(file)
        check_begins(file, trials)
        first = trials[0].config.tracking
        uri = refuse_secret(tracking_uri) if tracking_uri else first.uri or default_uri(results)
        folder = new_folder(results, file, uri, first.experiment)
        folder.storage, folder.sinks = storage, first.sinks
    silent = quiet or (dry_run and not console.is_terminal)  # a file gets the list of trials alone
    with waiting(console, "checking data and measuring this machine", silent):
        from hflray.sweep.preflight import estimate

        checked = check(folder, trials, dry_run, goes_on=resume is not None)
    if dry_run:
        console.print(_trials_table(folder.file, trials))
    if not quiet:
        for note in checked.notes:
            console.print(f"note: {note}")
    if dry_run:
        console.print(estimate(folder.file, trials, checked, len(available_cpus())))
        return
    if resume is None:
        folder = begin(folder, results, fresh)
    elif not quiet:
        console.print(f"going on with {folder.path.name}")

    from hflray.tune.driver import run_sweep

    going_on = (folder.path / "sweep.json").exists()
    started = time.monotonic()
    outcomes, tracker = run_sweep(
        folder, trials, checked, console, resume=going_on, require_tracking=require_tracking, quiet=quiet
    )
    title = f"{folder.file.name} ({time.monotonic() - started:.0f} s)"
    task = find_task(folder.file.task)
    if task.shown.averaged and folder.finished and not all(outcome.error for outcome in outcomes):
        _report_study(title, folder, console)
    else:
        console.print(closing_table(title, outcomes, task.shown.table, folder.file.labels))
    for line in without_effect(outcomes, {trial.name: trial.values for trial in trials}):
        say(console, f"note: {line}", "yellow")
    _farewell(folder, outcomes, tracker, console)


def check(folder: SweepFolder, trials: Sequence[Trial], dry_run: bool, goes_on: bool) -> CheckedTrials:
    """Check the trials of a sweep and what they name, before anything is written.

    Args:
        folder, trials: the sweep and its trials.
        dry_run: whether nothing will run, so that no kernel is measured and the trackers are tried.
        goes_on: whether the sweep has begun before, so that its fleets are made.

    Raises:
        HflrayError: see `hflray.sweep.preflight.check_trials`.
    """
    from hflray.allocation import compile_soon
    from hflray.experiment.fleets import Fleets
    from hflray.sweep.preflight import check_metrics, check_trials
    from hflray.tracking import try_sinks
    from hflray.training.start import temporary_folder

    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    if not os.environ.get("RAY_ADDRESS"):
        temporary_folder()  # before anything is measured
        if not dry_run:
            compile_soon(trials[0].config.allocation)
    # The head of a cluster may lack the GPU of its workers, so nothing is measured on it for trials on a GPU.
    can_measure = not os.environ.get("RAY_ADDRESS") or all(trial.config.training.device == "cpu" for trial in trials)
    checked = check_trials(
        trials, folder.file.task, can_measure and not dry_run, Fleets(folder.place) if goes_on else None
    )
    check_metrics(folder.file, checked)
    # A run builds them before it trains anything.
    try_sinks(folder.sinks if dry_run else (), folder.uri, folder.experiment)
    return checked


def begin(folder: SweepFolder, results: Path, fresh: bool) -> SweepFolder:
    """Return `folder`, or the unfinished sweep of the same name if the user wants to continue it.

    The addresses of the sweep are from now on among those that the user has named.

    Raises:
        ConfigError: there is an unfinished sweep, and the user did not choose to continue it or to begin a `fresh` one.
    """
    from hflray.sweep import expand
    from hflray.sweep.results import SweepFolder, changed_texts, unfinished
    from hflray.tracking import default_uri
    from hflray.tracking.addresses import named

    for address in (folder.uri, folder.storage):
        if address is not None and address != default_uri(results):
            named(address)
    path = None if fresh else unfinished(results, folder.file.name)
    if path is None:
        return folder
    previous = SweepFolder.load(path)
    if previous.file.labels != folder.file.labels:  # labels are no settings, and the new ones count
        previous.file = previous.file.model_copy(update={"labels": folder.file.labels})
    same = previous.file == folder.file
    names, older = ([t.name for t in expand(folder.file, numbered=old)] for old in (False, not previous.started_ms))
    if (
        same
        and names == older
        and sys.stdin.isatty()
        and typer.confirm(f"{path.name} is unfinished. Continue it?", default=True)
    ):
        previous = replace(previous, path=path.resolve(), finished=False)
        _contact(previous, None, None)
        return previous
    texts = changed_texts(previous, folder)
    state = f"with {f'another text of {texts}' if texts else 'other settings'} is unfinished"
    state = "is unfinished" if same else state
    raise ConfigError(
        f"name: a sweep '{folder.file.name}' {state} ({path}); "
        f"continue it with --resume {path.name}, or begin anew with --fresh"
    )


def saved(
    name: str,
    results: Path,
    tracking_uri: str | None = None,
    storage: str | None = None,
    overrides: Sequence[str] = (),
) -> SweepFolder:
    """Return the sweep of ``--resume``, also one that only the storage has, with more rounds if `overrides` say so.

    The storage's user has named what the storage says of the sweep, such as where it is logged.

    Raises:
        ConfigError: there is no such sweep, it is finished or a loop's, or nobody but its folder names an address.
    """
    from hflray.sweep import prolong
    from hflray.sweep.results import find, locate
    from hflray.tune.storage import fetch

    stored = fetch(storage, results, name) if storage is not None else set()
    folder = locate(results, name) if overrides else find(results, name)
    if folder.by_loop:
        raise ConfigError(
            f"--resume {name}: a loop in Python has made its rounds (hflray.keep), and only the loop knows what it has "
            "changed in the experiment; run the loop again with more rounds"
        )
    if tracking_uri is None and folder.uri in stored and not folder.uri.startswith("sqlite"):
        tracking_uri = folder.uri
    _contact(folder, tracking_uri, storage)
    if overrides:
        folder.file, folder.finished = prolong(folder.file, overrides), False
    return folder


def _contact(folder: SweepFolder, tracking_uri: str | None, storage: str | None) -> None:
    """Let a saved sweep contact the addresses that the user gives, or has named before.

    Raises:
        ConfigError: only its folder names an address.
    """
    from hflray.tracking.addresses import is_known, named, of_folder, unnamed

    if tracking_uri is not None or "mlflow" in folder.sinks:
        folder.uri = of_folder(folder.uri, folder.path.parent, tracking_uri)
    if storage is not None:
        folder.storage = named(storage)
    elif folder.storage is not None and not is_known(folder.storage):
        raise ConfigError(unnamed(folder.storage, "storage", "--storage"))


def _farewell(folder: SweepFolder, outcomes: Sequence[Outcome], tracker: Tracker, console: Console) -> None:
    """Print how to compare the runs, the failures, and how to continue. Raises typer.Exit with the exit code."""
    from hflray.support.terminal.output import say
    from hflray.sweep.compare import comparison_lines

    if "mlflow" in folder.sinks:
        ids = tracker.run_ids(outcome.name for outcome in outcomes)
        lines = comparison_lines(folder, tracker.experiment_id, ids)
        sync = f"{spoken('sync', 'hflray.tracking sync')} {folder.path}"
        title = "See the runs in MLflow (charts of the sweep; table and differences):"
        for line in (
            [title, *(f"  {line}" for line in lines)] if lines else [f"MLflow has none of the runs; send them: {sync}"]
        ):
            say(console, line)
    for line in tracker.seen_at():
        say(console, line)
    parent = folder.path.parent
    place = "" if parent == Path("hflray_results").resolve() else f" --results {shlex.quote(str(parent))}"
    say(console, f"Figures, tables and a page: {spoken('report', 'hflray.report')} {folder.path.name}{place}")
    for outcome in outcomes:
        if outcome.stopped:
            say(console, f"{outcome.name}: stopped early: {outcome.stopped}")
    if not folder.finished:
        say(console, f"unfinished; go on with: {folder.resume_command}")
        raise typer.Exit(INTERRUPTED)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        say(console, f"{outcome.name}: failed: {outcome.error}", style="red")
    if failed or tracker.disk_failed or tracker.broken:
        raise typer.Exit(1)


def main() -> None:
    """Run ``python -m hflray.tune`` and end the process with its exit code."""
    sys.exit(exit_code(app, None, "python -m hflray.tune"))
