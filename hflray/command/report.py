"""The command ``hflray report``, which reports a sweep, explains a round and writes RESULTS.md.

``python -m hflray.report`` is the same command, and ``hflray explain`` is its command of that name. What draws is
imported only when a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hflray.errors import ConfigError, nearest
from hflray.support.files import write
from hflray.support.shipped import CONFIGS
from hflray.support.terminal.app import HELP, RESULTS, Commands, Results, exit_code, group, spoken
from hflray.support.terminal.output import new_console, say, waiting
from hflray.support.text import as_file_stem

if TYPE_CHECKING:
    from rich.console import Console

    from hflray.report.runs import RunRecord, SweepRecord


COMMANDS = ("show", "explain", "list", "results")


class ShowByDefault(Commands):
    """The commands of the report; without a command's name, the words are those of ``show``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words after the program's name."""
        if args and args[0] not in (*COMMANDS, *HELP["help_option_names"]):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = group(cls=ShowByDefault)

From = Annotated[Path | None, typer.Option("--from", metavar="DIR", help="Read exports instead of the results.")]


@app.callback()
def overview() -> None:
    """Draw figures, tables and a page of finished runs.

    \b
    Examples:
      hflray report quickstart            # a sweep's folder, or its name for the latest one
      hflray report fig3_fashion_scheduling --figure fig3
      hflray report fig6_assignment --export tests/data/results
      hflray report fig6_assignment --from tests/data/results
      hflray report explain digits-H5-λ1-ikc-d3qn-s0 --round 3
    """


def _read(name: str | None, results: Path, source: Path | None, console: Console) -> SweepRecord:
    """Read the sweep called `name` from the results, or from the exports in `source`."""
    from hflray.report.exports import named_exports, read_exhibit
    from hflray.report.runs import read_sweep

    if source is not None:
        places = named_exports(source, [name] if name else ())
        if len(places) > 1:
            raise ConfigError(
                f"SWEEP: name one of the exports in {source}: {', '.join(place.name for place in places)}"
            )
        return read_exhibit(places[0])
    if name is None:
        raise ConfigError("SWEEP: name a sweep, or give its exports with --from DIR")
    with waiting(console, "reading runs", quiet=not console.is_terminal):
        return read_sweep(results, name)


@app.command(context_settings=HELP)
def show(
    sweep: Annotated[
        str | None, typer.Argument(help="A sweep's folder, or its name for the latest sweep of that name.")
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Draw only this figure of the paper (see list), or mine.py:draw; repeatable."
        ),
    ] = None,
    export_to: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Also write the runs as one small file, DIR/NAME.zip."),
    ] = None,
    brief: Annotated[
        bool, typer.Option("--brief", help="With --export: without devices, schedules and most metrics of each round.")
    ] = False,
    source: From = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default: report/ in the sweep's folder.")
    ] = None,
    results: Results = RESULTS,
) -> None:
    """Figures, tables and one page of a sweep (the default command)."""
    from hflray import metrics, registry
    from hflray.report import page, tables
    from hflray.report.exports import export, lacking
    from hflray.reproduction.command import print_verdicts
    from hflray.reproduction.judge import drawn, verdicts
    from hflray.reproduction.protocol import exhibit_of, exhibits
    from hflray.support.references import short

    if brief and export_to is None:
        raise ConfigError("--brief: got it without --export; accepted: with --export DIR; add that, or leave it out")
    console = new_console()
    exhibit_by_name = exhibits()
    requested = {name: exhibit_by_name[name] for name in figure or () if name in exhibit_by_name}
    own_drawings = {as_file_stem(short(name)): registry.check("figure", name, "--figure", list(exhibit_by_name))
                    for name in figure or () if name not in exhibit_by_name}  # fmt: skip
    runs = _read(sweep, results, source, console)
    missing = list(runs.notes)
    in_results = source is None and (results / runs.title).is_dir()
    folder = out or (results / runs.title / "report" if in_results else Path("hflray_report") / as_file_stem(runs.name))
    belonging = exhibit_of(runs)
    shown_exhibits = requested if figure else {belonging.config: belonging} if belonging else {}
    paths: list[Path] = []
    with waiting(console, "drawing"):
        from hflray.report.figures import save_all  # with matplotlib, which takes a second

        for shown in shown_exhibits.values():
            paths += save_all(drawn(shown, runs), shown.drawings, folder, missing)
        paths += save_all(runs, own_drawings, folder, missing)
        judged = {name: verdicts(shown, runs) for name, shown in shown_exhibits.items() if shown.claims}
        if not figure:
            main = runs.main_metric  # a metric of the user's own may be called as another figure is
            curves = f"{main}_metric" if main in runs.shown.figures and main != metrics.ACCURACY else main
            drawings = {curves if stem == metrics.ACCURACY else stem: name for stem, name in runs.shown.figures.items()}
            paths += save_all(runs, drawings, folder, missing)
            paths += tables.write(runs, folder)
            index, not_shown = page.write(runs, folder, judged.get(belonging.config) if belonging else None)
            missing += [note for note in not_shown if note not in missing]
            paths.insert(0, index)
        if export_to is not None:
            paths.append(export(runs, export_to / as_file_stem(runs.name), brief))
            missing += lacking(runs, brief)
    console.print(tables.summary(runs))
    for claims in judged.values():
        print_verdicts(claims, console)
    for path in paths:
        say(console, f"  {path}")
    for note in missing:
        say(console, f"missing: {note}", "yellow")
    if not paths:
        raise typer.Exit(1)


@app.command(context_settings=HELP)
def explain(
    run: Annotated[str, typer.Argument(help="A run's name, as in the closing table.")],
    number: Annotated[int, typer.Option("--round", help="The round, counted from 1.")],
    sweep: Annotated[
        str | None, typer.Option(help="The run's sweep; default: the latest sweep that has a run of this name.")
    ] = None,
    source: From = None,
    results: Results = RESULTS,
) -> None:
    """Explain a round: who took part and why, with which resources, at what cost, and who was late."""
    from hflray.report.detail import explain as explained

    console = new_console()
    console.print(explained(_find_run(run, sweep, source, results, console), number))


def _find_run(run: str, sweep: str | None, source: Path | None, results: Path, console: Console) -> RunRecord:
    """Return the run of this name from the sweep that is named, else from the latest sweep that has one."""
    from hflray.report.exports import named_exports, read_exhibit
    from hflray.sweep.results import by_start

    if source is not None and sweep is None:
        exhibits = [read_exhibit(place) for place in named_exports(source)]
        return replace(
            exhibits[0], title=str(source), runs=[member for shown in exhibits for member in shown.runs]
        ).find(run)
    if source is None and sweep is None:
        folders = [folder for folder in by_start(results) if (folder / "journal" / f"{run}.jsonl").is_file()]
        if not folders:
            names = [path.stem for path in results.glob("*/journal/*.jsonl")]
            raise ConfigError(
                f"{run}: no such run in {results}{nearest(run, names)}; name a run of a closing table, or add --sweep"
            )
        sweep = str(folders[0])
    return _read(sweep, results, source, console).find(run)


@app.command("list", context_settings=HELP)
def listing() -> None:
    """The figures and tables of the paper, with the commands that run and draw each."""
    from hflray.reproduction.protocol import exhibits

    console = new_console()
    tune, report = spoken("tune", "hflray.tune"), spoken("report", "hflray.report")
    for name, shown in exhibits().items():
        say(console, f"{name:8} {shown.label}: {shown.shows}")
        say(console, f"{'':8} {tune} tune_configs/{shown.config}.yaml", "dim")
        say(console, f"{'':8} {report} {shown.config} --figure {name}", "dim")


@app.command("results", context_settings=HELP)
def results_page(
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Folder of exports.")] = Path(
        "tests/data/results"
    ),
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tune_configs/RESULTS.md"),
) -> None:
    """Our results beside the paper's, as one markdown file written from exports."""
    from hflray.reproduction import results_page

    text = results_page.render(results_page.read_all(source), CONFIGS, source.as_posix())
    write(out, text)
    say(new_console(), f"  {out}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``python -m hflray.report`` and end the process with its exit code; without a command, run ``show``."""
    sys.exit(exit_code(app, arguments, "python -m hflray.report"))
