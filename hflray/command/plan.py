"""``hflray plan``: the settings that reach an accuracy on a fleet at the least cost, by a search with Tune."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hflray.errors import ConfigError
from hflray.support.limits import check_address_space
from hflray.support.terminal.app import HELP, RESULTS, DataRoot, Results, single, spoken

if TYPE_CHECKING:
    from hflray.support.terminal.tables import TextTable
    from hflray.sweep import SweepFile

UNITS_S = {"s": 1, "min": 60, "h": 3600}

app = single()


@app.command(context_settings=HELP)
def plan(
    fleet: Annotated[
        Path | None, typer.Argument(metavar="FLEET", help="A sweep file, or an experiment's settings (YAML).")
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option(metavar="A", help="The test accuracy to reach, between 0 and 1.")
    ] = None,
    joules: Annotated[float | None, typer.Option(metavar="E", help="The most joules until then.")] = None,
    seconds: Annotated[float | None, typer.Option(metavar="T", help="The most simulated seconds until then.")] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="How long to search on this machine: 90s, 10min or 2h.")
    ] = "10min",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, which is then not searched; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write; else the sweep's folder.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and list what is searched.")] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on with a plan, by the name of its sweep or its folder.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew although such a plan is unfinished.")] = False,
    data_root: DataRoot = None,
    results: Results = RESULTS,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print only failures, the table and the answer.")
    ] = False,
) -> None:
    """Search H, λ, the scheduler, the assigner and the cloud's clock for what reaches an accuracy at the least cost.

    All other settings are those of FLEET. A key below its "sweep:" gives the values to choose from; it may be one of
    the five only. What FLEET says of the five is tried first, and --set KEY=VALUE takes one out of the search.

    With --joules alone the seconds are minimised, with --seconds alone the joules, and else E + λT with the λ of FLEET.
    Each setting that reaches the accuracy runs with three seeds, and all three must do so within the limits.

    The exit code is 0 if a setting meets this, 1 if none that was tried does, and 2 for wrong input.

    \b
    Examples:
      hflray plan calibrated/sweep.yaml --accuracy 0.85 --joules 500 --dry-run
      hflray plan calibrated/sweep.yaml --accuracy 0.85 --joules 500 --budget 10min -o plan
      hflray tune plan/recommended.yaml
      hflray plan --resume calibrated_plan --budget 30min
    """
    began_s = time.monotonic()
    budget_s = _seconds(budget)
    if (fleet is None) == (resume is None):
        raise ConfigError("FLEET: got it and --resume, or neither; accepted: one of them; give FLEET --accuracy A")
    if resume is not None and (accuracy, joules, seconds, overrides, data_root) != (None, None, None, None, None):
        raise ConfigError(
            f"--resume {resume}: the saved plan has all settings; leave out --accuracy, --set and the like"
        )
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is a file; choose a folder")
    if resume is None:
        _check_numbers(accuracy, joules, seconds)
    check_address_space(dry_run)
    from hflray.support.terminal.output import new_console, say, show_log, waiting
    from hflray.sweep import expand, load_sweep, with_absolute_paths, with_data_root
    from hflray.sweep.preflight import least_s
    from hflray.sweep.progress import duration
    from hflray.sweep.results import new_folder
    from hflray.tracking import Journal, default_uri
    from hflray.tune.cli import INTERRUPTED, begin, check, saved
    from hflray.tune.plan import Limits, answer, plan_file, settings_of, table_of, write_plan
    from hflray.tune.search import drawn

    console = new_console()
    show_log(console)
    notes: list[str] = []
    with waiting(console, "checking each value that is searched", quiet or not console.is_terminal):
        if resume is not None:
            folder = saved(resume, results)
            Limits.of(folder.file)
            folder.admit(False)
        else:
            assert fleet is not None
            assert accuracy is not None
            base = load_sweep(fleet, overrides or (), bare=True)
            base = with_data_root(base, data_root) if data_root is not None else base
            file, ours = plan_file(with_absolute_paths(base), _keys(overrides or ()), accuracy, seconds, joules)
            file = _checked(file, ours, notes)
            tracking = expand(file)[0].config.tracking
            uri = tracking.uri or default_uri(results)
            folder = new_folder(results, file, uri, tracking.experiment)
            folder.sinks = tracking.sinks
        trials = expand(folder.file)
        checked = check(folder, trials, dry_run, goes_on=resume is not None)
        needed_s = least_s(trials[0], checked)
    if budget_s < needed_s:
        raise ConfigError(
            f"--budget: got {budget}; Ray's start and one round take about {duration(needed_s)} here; give more"
        )
    if dry_run:
        console.print(_space(folder.file))
    for note in () if quiet else [*notes, *checked.notes]:
        say(console, f"note: {note}")
    if dry_run:
        say(console, f"{Limits.of(folder.file)}; Ray's start and one round take about {duration(needed_s)}")
        return
    if resume is None:
        folder = begin(folder, results, fresh)
    from hflray.tune.driver import run_sweep

    until_s = began_s + budget_s
    goes_on = (folder.path / "sweep.json").exists()
    run_sweep(folder, trials, checked, console, resume=goes_on, quiet=quiet, until_s=until_s)
    past = drawn(Journal(folder.path), folder.file)
    tried = settings_of(folder.file, past)
    go_on = folder.resume_command.replace(spoken("tune", "hflray.tune"), spoken("plan", "hflray plan"), 1)
    if tried:
        ended = sum(trial.ending is not None for trial in past)
        console.print(table_of(tried, f"{folder.file.name}: {len(tried)} settings, {ended} runs"))
        say(console, answer(tried))
        for path in write_plan(folder.file, tried, out or folder.path):
            say(console, f"  {path}")
    else:
        say(console, "No run has ended.")
    if not folder.finished:
        say(console, f"the search is not exhausted; go on with: {go_on}")
        if time.monotonic() < until_s:  # Ctrl-C, and not the budget
            raise typer.Exit(INTERRUPTED)
    if not (tried and tried[0].meets):
        raise typer.Exit(1)


def _seconds(text: str) -> float:
    """Return a time such as 10min in seconds. Raises ConfigError: it is none, or 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if match is None or not (value := float(match[1])):
        raise ConfigError(f"--budget: got {text}; accepted: a number above 0 and s, min or h, as in 10min; correct it")
    return value * UNITS_S[match[2]]


def _check_numbers(accuracy: float | None, joules: float | None, seconds: float | None) -> None:
    if accuracy is None or not 0 < accuracy < 1:
        got = "nothing" if accuracy is None else f"{accuracy:g}"
        raise ConfigError(f"--accuracy: got {got}; accepted: above 0 and below 1, as in 0.85; give it")
    for name, limit in (("joules", joules), ("seconds", seconds)):
        if limit is not None and not 0 < limit < 1e15:
            raise ConfigError(f"--{name}: got {limit:g}; accepted: above 0 and below 1e15; correct it, or leave it out")


def _keys(overrides: Sequence[str]) -> list[str]:
    """Return the dotted keys that the overrides set."""
    from hflray.config import flatten, split_override

    pairs = dict(split_override(text) for text in overrides)
    return [*pairs, *flatten(pairs)]


def _checked(file: SweepFile, ours: set[str], notes: list[str]) -> SweepFile:
    """Return the file without those of our values that its data or its other settings refuse; `notes` say which.

    Raises:
        HflrayError: they refuse a value of the user's own, or the task has no test accuracy.
    """
    from hflray.support.references import short
    from hflray.sweep import Axis, make_trial
    from hflray.sweep.preflight import check_trials
    from hflray.sweep.trials import first_values

    first = first_values(file)
    try:
        check_trials([make_trial(file, first)], file.task, measure=False)
    except ConfigError as error:
        if str(error).startswith("target_accuracy: "):
            raise ConfigError(
                f"--accuracy: these data have no test accuracy ({str(error).partition(';')[0]})"
            ) from error
        raise
    axes = {}
    for key, axis in file.sweep.items():
        accepted = []
        for value in axis.choice or ():
            try:
                if value != first[key]:
                    check_trials([make_trial(file, first | {key: value})], file.task, measure=False)
            except ConfigError as error:
                if key not in ours:
                    raise
                notes.append(f"{key}={short(value)} is not searched: {str(error).splitlines()[0]}")
            else:
                accepted.append(value)
        axes[key] = Axis(choice=accepted) if accepted else axis
    return file.model_copy(update={"sweep": axes})


def _space(file: SweepFile) -> TextTable:
    """Return the table of what is searched."""
    from hflray.support.references import short
    from hflray.support.terminal.tables import TextTable

    table = TextTable(f"{file.name}: at most {file.tune.samples} settings", ["searched", "values"], align="ll")
    for key, axis in file.sweep.items():
        table.add_row(key, ", ".join(map(short, getattr(axis, axis.kind))))
    return table
