"""The command ``python -m hflray.report``: figures, tables and a page of a sweep, a round explained, RESULTS.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from hflray.errors import ConfigError, HflrayError, nearest
from hflray.report import beside, choices_text, figures, page, tables
from hflray.report.choices import Study, rank
from hflray.report.explain import explain as explained
from hflray.report.exports import FILE, export, exports, read_exhibit
from hflray.report.paper import EXHIBITS, exhibit, exhibit_of, verdicts
from hflray.report.runs import Run, Sweep, read_sweep
from hflray.results import SweepFolder

PACKAGE = Path(__file__).parents[1]
CONFIGS = PACKAGE / "tune_configs" if (PACKAGE / "tune_configs").is_dir() else PACKAGE.parent / "tune_configs"
SAY: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

Results = Annotated[Path, typer.Option(help="Folder of the results.")]
From = Annotated[Path | None, typer.Option("--from", metavar="DIR", help="Read exports instead of MLflow.")]
Uri = Annotated[str | None, typer.Option(help="MLflow server; default: the one of the sweep.")]
DEFAULT_RESULTS = Path("hflray_results")


@app.callback()
def overview() -> None:
    """Figures, tables and a page from finished runs.

    Examples:

      python -m hflray.report quickstart                          # a sweep's name or folder; the latest of a name

      python -m hflray.report fig3_fashion_scheduling --figure fig3

      python -m hflray.report fig6_assignment --export tests/data/results

      python -m hflray.report fig6_assignment --from tests/data/results

      python -m hflray.report explain digits-H5-λ1-ikc-d3qn-s0 --round 3
    """


def _read(name: str | None, results: Path, source: Path | None, uri: str | None, console: Console) -> Sweep:
    """The sweep called `name`, with a progress bar while MLflow is read."""
    if source is not None:
        return _exported(name, source)
    if name is None:
        raise ConfigError("SWEEP: name a sweep, or give its exports with --from DIR")
    bar = Progress(TextColumn("reading runs"), BarColumn(bar_width=24), MofNCompleteColumn(), console=console,
                   disable=not console.is_terminal, transient=True)  # fmt: skip
    with bar:
        task = bar.add_task("runs", total=None)
        return read_sweep(results, name, uri, lambda done, of: bar.update(task, completed=done, total=of))


def _exported(name: str | None, source: Path) -> Sweep:
    found = {folder.name: folder for folder in exports(source)}
    if not found:
        raise ConfigError(f"--from {source}: holds no {FILE}; write an export with --export {source}")
    if name is None and len(found) == 1:
        return read_exhibit(next(iter(found.values())))
    if name not in found:
        hint = nearest(name, found) if name else ""
        raise ConfigError(f"{name or 'SWEEP'}: not among the exports in {source}{hint}; there: {', '.join(found)}")
    return read_exhibit(found[name])


def _rich(table: pd.DataFrame, title: str) -> Table:
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for number, name in enumerate(table.columns):
        made.add_column(str(name), justify="left" if number == 0 else "right", overflow="fold")
    for row in table.itertuples(index=False):
        made.add_row(*(str(cell) for cell in row))
    return made


def _draw(sweep: Sweep, wanted: dict[str, figures.Draw], folder: Path, missing: list[str]) -> list[Path]:
    """Draw each figure; one that cannot be drawn becomes a line of what is missing."""
    paths: list[Path] = []
    for stem, draw in wanted.items():
        try:
            paths += figures.save(draw, sweep, folder, stem)
        except HflrayError as error:
            missing.append(f"{stem}: not drawn: {error}")
    return paths


@app.command("show", help="Figures, tables and one page of a sweep (the default command).")
def show(
    sweep: Annotated[str | None, typer.Argument(help="A sweep's name or folder; of a name, the latest.")] = None,
    figure: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this figure of the paper, see list; repeatable.")
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="Also write the runs as small parquet files.")
    ] = None,
    source: From = None,
    out: Annotated[Path | None, typer.Option(help="Where to; default: report/ in the sweep's folder.")] = None,
    results: Results = DEFAULT_RESULTS,
    tracking_uri: Uri = None,
) -> None:
    """Figures, tables and one page of a sweep."""
    console = Console()
    asked = {name: exhibit(name) for name in figure or ()}
    read = _read(sweep, results, source, tracking_uri, console)
    missing = list(read.notes)
    in_results = source is None and (results / read.title).is_dir()
    folder = out or (results / read.title / "report" if in_results else Path("hflray_report") / read.name)
    known = exhibit_of(read)
    shown = asked or ({known: exhibit(known)} if known else {})
    paths: list[Path] = []
    with console.status("drawing"):
        for one in shown.values():
            paths += _draw(read, one.drawings, folder, missing)
        if not asked:
            paths += _draw(read, {stem: figures.FIGURES[stem] for stem in read.shown.figures}, folder, missing)
            paths += tables.write(read, folder)
            claims = verdicts(shown[known], read) if known else None
            claims = claims if claims is not None and len(claims) else None
            made, unseen = page.write(read, folder, claims)
            missing += [note for note in unseen if note not in missing]
            paths.insert(0, made)
        paths += export(read, export_to / read.name) if export_to is not None else []
    console.print(_rich(tables.summary(read), read.title))
    for one in shown.values():
        if one.claims:
            _say_verdicts(verdicts(one, read), console)
    _say_paths(paths, console)
    for note in missing:
        console.print(f"missing: {note}", style="yellow", **SAY)
    if not paths:
        raise typer.Exit(1)


def _say_verdicts(claims: pd.DataFrame, console: Console) -> None:
    """Each claim of the paper in a few lines: the answer, our numbers, what they rest on, and our guess why not."""
    for text, ours, answer, evidence, guess in claims.itertuples(index=False):
        console.print(f"the paper: {text}", style="bold", markup=False, highlight=False)
        for what, said in (("", answer), ("ours: ", ours), ("on: ", evidence), ("our guess why: ", guess)):
            if said:
                console.print(Padding(Text(f"{what}{said}"), (0, 0, 0, 2)))


def _say_paths(paths: Sequence[Path], console: Console) -> None:
    """What was written; many files of one folder as their number."""
    by_folder: dict[Path, list[Path]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, []).append(path)
    for folder, several in by_folder.items():
        if len(several) > 20:
            console.print(f"  {folder}/ ({len(several)} files)", **SAY)
        else:
            for path in several:
                console.print(f"  {path}", **SAY)


@app.command()
def explain(
    run: Annotated[str, typer.Argument(help="A run's name, as the closing table has it.")],
    number: Annotated[int, typer.Option("--round", help="The round, from 1.")],
    sweep: Annotated[
        str | None, typer.Option(help="Its sweep; default: the latest that has a run of this name.")
    ] = None,
    source: From = None,
    results: Results = DEFAULT_RESULTS,
    tracking_uri: Uri = None,
) -> None:
    """Who took part in a round and why, with what, at what cost, and who was late."""
    console = Console()
    console.print(explained(_find(run, sweep, source, results, tracking_uri, console), number))


def _find(run: str, sweep: str | None, source: Path | None, results: Path, uri: str | None, console: Console) -> Run:
    """The run of this name, in the sweep named, or else in the latest that has one."""
    if source is not None and sweep is None:
        read = [read_exhibit(folder) for folder in exports(source)]
        for one in read:
            if any(known.name == run for known in one.runs):
                return one.find(run)
        names = [known.name for one in read for known in one.runs]
        raise ConfigError(f"{run}: no such run in the exports in {source}{nearest(run, names)}")
    if source is not None or sweep is not None:
        return _read(sweep, results, source, uri, console).find(run)
    folders = sorted(results.glob(f"*/journal/{run}.jsonl"), key=lambda path: path.stat().st_mtime)
    if not folders:
        names = [path.stem for path in results.glob("*/journal/*.jsonl")]
        raise ConfigError(
            f"{run}: no such run in {results}{nearest(run, names)}; name one of a closing table, or give --sweep"
        )
    return _read(str(SweepFolder.load(folders[-1].parents[1]).path), results, None, uri, console).find(run)


@app.command("list", help="The figures and tables of the paper, what runs and what draws each.")
def listing() -> None:
    """The figures and tables of the paper, what runs and what draws each."""
    console = Console()
    for name, one in EXHIBITS.items():
        console.print(f"{name:8} {one.label}: {one.shows}", **SAY)
        console.print(f"{'':8} python -m hflray.tune tune_configs/{one.config}.yaml", style="dim", **SAY)
        console.print(f"{'':8} python -m hflray.report {one.config} --figure {name}", style="dim", **SAY)


@app.command("results", help="Our results beside the paper's, as one markdown file written from exports.")
def results_page(
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Folder of exports.")] = Path(
        "tests/data/results"
    ),
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tune_configs/RESULTS.md"),
) -> None:
    """Our results beside the paper's, as one markdown file written from exports."""
    text = beside.render(beside.read_all(source), CONFIGS, source.as_posix(), Study.read(source))
    out.write_text(text, encoding="utf-8")
    Console().print(f"  {out}", **SAY)


@app.command("choices", help="Table II by the choices that the paper leaves open: bills on random fleets, no training.")
def choices_page(
    fleets: Annotated[int, typer.Option(help="Random fleets, the same for every choice.")] = 200,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as seed=1; repeatable.")
    ] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", metavar="DIR", help="Also write the bills, for RESULTS.md.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Choices shown, the nearest to the paper first.")] = 10,
) -> None:
    """Table II by the choices that the paper leaves open."""
    console = Console()
    bar = Progress(TextColumn("fleets"), BarColumn(bar_width=24), MofNCompleteColumn(), console=console,
                   disable=not console.is_terminal, transient=True)  # fmt: skip
    with bar:
        task = bar.add_task("fleets", total=fleets)
        study = Study.make(overrides or (), fleets, lambda done, of: bar.update(task, completed=done, total=of))
    ranked = rank(study.bills)
    for number, row in enumerate(choices_text.table(ranked.head(top)).to_dict("records"), start=1):
        said = " | ".join(f"{str(name).strip()} {cell}" for name, cell in row.items())
        console.print(f"{number:3} {said}", **SAY)
    for line in choices_text.findings(study, ranked):
        console.print(f"* {line}", **SAY)
    if export_to is not None:
        _say_paths(study.export(export_to), console)


COMMANDS = ("show", "explain", "list", "results", "choices")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: ``show`` if no command is named; an HflrayError is one line on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] not in (*COMMANDS, "--help"):
        given.insert(0, "show")
    try:
        app(given, prog_name="python -m hflray.report")
    except HflrayError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"error: {error.filename or 'report'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
