"""``hflray reproduce``: list the papers whose results can be repeated, run one, and judge its claims."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from hflray.errors import ConfigError
from hflray.support.terminal.app import HELP, RESULTS, DataRoot, Results, single
from hflray.support.terminal.output import new_console, say, say_notes, waiting

if TYPE_CHECKING:
    from rich.console import Console

    from hflray.report.runs import SweepRecord
    from hflray.reproduction.protocol import Exhibit, Paper
    from hflray.support.terminal.tables import TextTable

MOST_NAMED = 4  # notes on runs that are not used

app = single()


@app.command(context_settings=HELP)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="The paper, or a folder with a claims.yaml; without one, all are listed."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run the small form, in minutes, which answers for its own task only.")
    ] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="EXPORTS", help="Run nothing; judge the exports in this folder.")
    ] = None,
    results: Results = RESULTS,
    data_root: DataRoot = None,
    cpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Use N CPUs of this machine, the idlest; by default all.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the trials, estimate time and memory; run nothing.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the answers as Markdown, for a page.")] = False,
) -> None:
    """Repeat a paper's results, and judge its claims; without a name, list the papers.

    What was interrupted goes on when the same command is given again. What has ended is judged without a new run.

    \b
    Examples:
      hflray reproduce
      hflray reproduce hierfavg --quick
      hflray reproduce zhang --from tests/data/results
    """
    console = new_console()
    if name is None:
        _list(console)
        return
    from hflray.reproduction.judge import tally, verdicts
    from hflray.reproduction.protocol import paper

    chosen = paper(name)
    if not chosen.of_form(quick):
        form = "quick" if quick else "full"
        raise ConfigError(f"{name}: no exhibit has {form} among its forms; add forms: [{form}] to one")
    if source is not None and dry_run:
        raise ConfigError("--from: judges what has been run, and --dry-run runs nothing; leave one out")
    if source is None:
        _run(chosen, quick, console, results, data_root, cpus, dry_run)
        if dry_run:
            return
    with waiting(console, f"reading {'runs' if source is None else 'exports'}", markdown):
        sweeps = _read(list(chosen.of_form(quick).values()), results, source)
    if markdown:
        from hflray.reproduction.results_page import answers

        for shown in chosen.of_form(quick).values():
            print(answers(shown, sweeps.get(shown.config)))
        return
    claimed = {shown.config: shown for shown in chosen.of_form(quick).values() if shown.claims}
    judged = {name: verdicts(shown, sweeps[name]) for name, shown in claimed.items() if name in sweeps}
    _show(chosen, quick, sweeps, judged, console)
    small = quick and chosen.of_form(True) != chosen.of_form(False)
    say(console, f"{chosen.name}, the {'quick' if quick else 'full'} form: {tally(chosen, quick, judged)}")
    if small:
        say(console, "These answers are about the quick form's own small task, not about the paper's.")


def _list(console: Console) -> None:
    from hflray.reproduction.protocol import PAPERS, paper

    for name in PAPERS:
        listed = paper(name)
        full, quick = listed.takes
        say(console, f"{name:10} {listed.title} ({listed.source})")
        say(console, f"{'':10} {listed.about}", "dim")
        say(console, f"{'':10} quick: {quick}; full: {full}", "dim")


def _read(exhibits: Sequence[Exhibit], results: Path, source: Path | None) -> dict[str, SweepRecord]:
    """Return the latest sweep of each exhibit in the results, or its export in `source`, by the name of the sweep.

    Raises:
        ConfigError: the results lack a sweep, or `source` has no export of any.
    """
    from hflray.report.exports import named_exports, read_exhibit
    from hflray.report.runs import read_sweep
    from hflray.reproduction.judge import with_borrowed

    names = [shown.config for shown in exhibits]
    if source is None:
        return with_borrowed({name: read_sweep(results, name) for name in names}, exhibits)
    return with_borrowed({place.name: read_exhibit(place) for place in named_exports(source, names)}, exhibits)


def _run(
    chosen: Paper, quick: bool, console: Console, results: Path, data_root: Path | None, cpus: int | None, dry_run: bool
) -> None:
    """Run the sweeps of a paper that have not ended, one after the other, each by its own ``hflray tune``.

    Raises:
        typer.Exit: a sweep failed or was interrupted; the code is that of its command.
    """
    from hflray.reproduction.protocol import PAPERS

    exhibits = list({shown.config: shown for shown in chosen.of_form(quick).values()}.values())
    if chosen.name not in PAPERS:
        for line in _lacking(chosen, quick):
            say(console, f"note: {line}")
    for number, shown in enumerate(exhibits, 1):
        words = _words(chosen.sweep_file(shown), results, data_root)
        where = f"{shown.config} ({number} of {len(exhibits)})"
        if dry_run:
            words = ["--dry-run", str(chosen.sweep_file(shown)), *_data(data_root)]
        elif not words:
            say(console, f"{where}: has ended")
            continue
        else:
            say(console, f"{where}: {'goes on' if '--resume' in words else 'begins'}")
        words += [] if cpus is None else ["--cpus", str(cpus)]
        # With -P, no file of the folder in which the command runs is imported as a module.
        command = [sys.executable, "-P", "-m", "hflray.tune", *words, "--results", str(results)]
        try:
            code = subprocess.run(command, check=False).returncode
        except KeyboardInterrupt:  # the sweep has the signal too, and has said how to go on
            raise typer.Exit(130) from None
        if code:
            say(console, f"{where}: ended with code {code}; give the same command again to go on")
            raise typer.Exit(code)


def _lacking(chosen: Paper, quick: bool) -> list[str]:
    """Return a line for each compared selection of settings that lacks planned seeds in its sweep file.

    Raises:
        ConfigError: a sweep file has another name than the exhibits that are judged by its runs.
    """
    from hflray.report.runs import every_setting
    from hflray.reproduction.judge import holds
    from hflray.reproduction.protocol import expanded
    from hflray.sweep import expand, load_sweep

    lines = []
    for shown in chosen.of_form(quick).values():
        file = chosen.sweep_file(shown)
        sweep = load_sweep(file)
        if sweep.name != shown.config:
            raise ConfigError(f"{file}: name: got {sweep.name!r}; accepted: {shown.config!r}, as the file is called")
        values = [every_setting(trial.config) for trial in expand(sweep)]
        for claim, contrasts in expanded(shown):
            seeds = claim.seeds or (shown.plan.seeds if shown.plan else None) or 1
            for side in [side for contrast in contrasts for side in contrast.sides]:
                held = {settings["seed"] for settings in values if holds(settings, side)}
                count = len(held.intersection(range(seeds)))
                words = ", ".join(f"{key}={value}" for key, value in side.items())
                if count < seeds:
                    lines.append(f"{shown.label}: {file.name} has {count} of the {seeds} planned seeds with {words}")
    return list(dict.fromkeys(lines))


def _data(data_root: Path | None) -> list[str]:
    return [] if data_root is None else ["--data-root", str(data_root)]


def _words(file: Path, results: Path, data_root: Path | None) -> list[str]:
    """Return the arguments of the ``hflray tune`` that begins or continues a sweep file's sweep; none if it has ended.

    A sweep of the same name with other settings does not count as this one.
    """
    from hflray.sweep import load_sweep, with_absolute_paths, with_data_root
    from hflray.sweep.results import folders_of

    sweep = load_sweep(file)
    sweep = with_absolute_paths(with_data_root(sweep, data_root) if data_root is not None else sweep)
    for folder in folders_of(results, sweep.name):
        if folder.file == sweep:
            return [] if folder.finished else ["--resume", folder.path.name]
    return ["--fresh", str(file), *_data(data_root)]


def _show(
    chosen: Paper, quick: bool, sweeps: dict[str, SweepRecord], judged: dict[str, TextTable], console: Console
) -> None:
    from hflray.reproduction.judge import testable

    for shown in chosen.of_form(quick).values():
        if not shown.claims:
            continue
        say(console, f"\n{shown.label}: {shown.shows}", "bold")
        if shown.config not in judged:
            say(console, f"  not run; {testable(shown)} claims have too few runs")
            continue
        print_verdicts(judged[shown.config], console)
        say_notes(console, sweeps[shown.config].notes, MOST_NAMED)


def print_verdicts(claims: TextTable, console: Console) -> None:
    """Print the answer to each claim, our numbers, their count and p-value, and the notes."""
    for row in claims.records:
        split = f" ({row.pop('split')})" if "split" in row else ""
        (claimant, text), *cells = row.items()
        console.print(f"{claimant}: {text}{split}", style="bold", markup=False, highlight=False)
        for heading, cell in sorted(cells, key=lambda item: item[0] != "answer"):
            if cell:
                line = f"{'' if heading == 'answer' else f'{heading}: '}{cell}"
                console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
