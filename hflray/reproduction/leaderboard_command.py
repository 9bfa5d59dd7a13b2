"""``hflray leaderboard``: score the shipped assigners and schedulers, and your own, on fixed instances."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hflray.errors import ConfigError
from hflray.support.files import write
from hflray.support.terminal.app import group
from hflray.support.terminal.output import new_console, say, waiting
from hflray.support.terminal.tables import TextTable

References = Annotated[
    list[str] | None, typer.Argument(metavar="[MINE]...", help="Your own, such as mine.py:Mine, or a registered name.")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the places to a file as well.")]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print the table as Markdown, for a page or a pull request.")
]

app = group()


@app.callback()
def overview() -> None:
    """Score the shipped algorithms, and your own, on fixed instances.

    \b
    Examples:
      hflray leaderboard assignment
      hflray leaderboard scheduling mine.py:Mine
    """


@app.command()
def assignment(
    references: References = None,
    fleets: Annotated[int, typer.Option(min=1, help="Fleets of each of five deployments.")] = 20,
    json_file: Json = None,
    markdown: Markdown = False,
) -> None:
    """Score assigners: cost, proven gap, and time as a multiple of best gain's.

    Every assigner, yours and the shipped ones, gets the same fleets now. 100 fleets take about half a minute.
    """
    from hflray.reproduction import leaderboard as board

    console = new_console()
    board.assigners(references or ())  # a mistake ends the command before anything runs
    with waiting(console, f"{5 * fleets} fleets, {len(board.ASSIGNERS) + len(references or ())} assigners", markdown):
        places = board.score_assigners(references or (), fleets)
    rows = [
        {
            "place": str(number), "assigner": f"{place.name} *" if place.is_own else place.name,
            "objective, J": f"{place.objective_j:,.1f}", "× best gain": f"{place.ratio:.3f}",
            "gap, %: median": f"{100 * place.gap:.1f}", "worst": f"{100 * place.worst_gap:.1f}",
            "time × best gain": f"{place.time_ratio:,.0f}",
        }
        for number, place in enumerate(places, 1)
    ]  # fmt: skip
    title = f"{5 * fleets} fleets of 50 devices and 5 edges; the gap is to a proven lower bound"
    _show(console, TextTable.of(rows, title, "rl"), markdown, bool(references))
    _write(json_file, [asdict(place) for place in places])


@app.command()
def scheduling(
    references: References = None,
    seeds: Annotated[int, typer.Option(min=1, max=10, help="Runs of each of your own, one for each seed.")] = 10,
    by: Annotated[
        Literal["seconds", "joules", "rounds"], typer.Option(help="The quantity that orders the places.")
    ] = "seconds",
    json_file: Json = None,
    markdown: Markdown = False,
) -> None:
    """Score schedulers: rounds, simulated seconds and joules to 80 % on digits, over ten seeds.

    The shipped schedulers were measured once. Yours train now, ten small runs of some seconds each.
    """
    from hflray.report.labels import label_apart, pretty
    from hflray.report.ranking import median_text
    from hflray.reproduction import leaderboard as board

    console, on_board = new_console(), board.measured()
    for name in references or ():  # a mistake ends the command before anything runs
        board.scheduler_config(name, 0)
        if name in on_board:
            raise ConfigError(f"MINE: got {name}, which is on the board; give a scheduler of your own")

    def tell(name: str, seed: int) -> None:
        if not markdown:
            say(console, f"{name}: seed {seed} of {seeds - 1} done")

    labels = label_apart(references or (), [*on_board, *map(pretty, on_board)])
    trained = {label: board.train(name, board.SEEDS[:seeds], partial(tell, name)) for name, label in labels.items()}
    places = board.score_schedulers(trained, by)
    rows = []
    for number, place in enumerate(places, 1):
        name = f"{place.name} *" if place.is_own else pretty(place.name)
        row = {"place": str(number), "scheduler": name, "reached": f"{place.reached} of {place.runs}"}
        for quantity in board.SPENT:
            median, test = place.medians[quantity], place.tests[quantity]
            form = "{:.0f}" if quantity == "rounds" else "{:,.1f}"
            row[f"{quantity}, median"] = form.format(median) if median < float("inf") else "–"
            row[f"{quantity} × IKC's"] = median_text(*place.ratios[quantity]) + (f" ({test})" if test else "")
        rows.append(row)
    title = "digits, 12 of 60 devices, 3 edges, majority 80 %, local search, to 80 % within 30 rounds"
    _show(console, TextTable.of(rows, title, "rl"), markdown, bool(trained))
    _write(json_file, [asdict(place) for place in places])


def _show(console: Any, table: TextTable, markdown: bool, has_own: bool) -> None:
    """Print the places, with the place first on a page, and the name first on a terminal, as in every table of ours."""
    if markdown:
        say(console, table.markdown().rstrip())
        return
    rows: list[Sequence[str]] = [[name, place, *cells] for place, name, *cells in table.rows]
    place, name, *headings = table.headings
    console.print(TextTable(table.title, [name, place, *headings], rows, caption="* your own" if has_own else ""))


def _write(path: Path | None, places: list[dict[str, Any]]) -> None:
    if path is not None:
        finite = json.loads(json.dumps(places), parse_constant=lambda _: None)  # JSON has no infinity
        write(path, json.dumps(finite, indent=1, ensure_ascii=False) + "\n")
