"""``hflray leaderboard``: score the shipped assigners and schedulers, and your own, on fixed instances."""

from __future__ import annotations

import json
import math
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
from hflray.support.terminal.tables import Table
from hflray.support.text import as_markdown_cell

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
    from hflray.reproduction.leaderboard import assignment as board

    console = new_console()
    board.contestants(references or ())  # a mistake ends the command before anything runs
    with waiting(console, f"{5 * fleets} fleets, {len(board.SHIPPED) + len(references or ())} assigners", markdown):
        places = board.compete(references or (), fleets)
    rows = [
        [
            str(number), f"{place.name} *" if place.own else place.name, f"{place.objective_j:,.1f}",
            f"{place.ratio:.3f}", f"{100 * place.gap:.1f}", f"{100 * place.worst_gap:.1f}", f"{place.time_ratio:,.0f}",
        ]
        for number, place in enumerate(places, 1)
    ]  # fmt: skip
    headings = ["place", "assigner", "objective, J", "× best gain", "gap, %: median", "worst", "time × best gain"]
    title = f"{5 * fleets} fleets of 50 devices and 5 edges; the gap is to a proven lower bound"
    _show(console, title, headings, rows, markdown, any(place.own for place in places))
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
    from hflray.reproduction.leaderboard import scheduling as board

    console, on_board = new_console(), board.shipped()
    for name in references or ():  # a mistake ends the command before anything runs
        board.config_of(name, 0)
        if name in on_board:
            raise ConfigError(f"MINE: got {name}, which is on the board; give a scheduler of your own")

    def tell(name: str, seed: int) -> None:
        if not markdown:
            say(console, f"{name}: seed {seed} of {seeds - 1} done")

    labels = label_apart(references or (), [*on_board, *map(pretty, on_board)])
    own = {label: board.run(name, board.SEEDS[:seeds], partial(tell, name)) for name, label in labels.items()}
    places = board.compete(own, by)
    rows = []
    for number, place in enumerate(places, 1):
        row = [str(number), f"{place.name} *" if place.own else pretty(place.name)]
        row.append(f"{place.reached} of {place.runs}")
        for quantity in board.SPENT:
            low, high = place.ratios[quantity]
            form = "{:.0f}" if quantity == "rounds" else "{:,.1f}"
            row.append(form.format(place.medians[quantity]) if place.medians[quantity] < float("inf") else "–")
            test = f" ({place.tests[quantity]})" if place.tests[quantity] else ""
            row.append(f"{_bounds(low, high)}{test}")
        rows.append(row)
    headings = ["place", "scheduler", "reached"]
    for quantity in board.SPENT:
        headings += [f"{quantity}, median", f"{quantity} × IKC's"]
    title = "digits, 12 of 60 devices, 3 edges, majority 80 %, local search, to 80 % within 30 rounds"
    _show(console, title, headings, rows, markdown, bool(own))
    _write(json_file, [asdict(place) for place in places])


def _bounds(low: float, high: float) -> str:
    if low == high:
        return f"{low:.2f}" if low < float("inf") else "not reached"
    return f"≥ {low:.2f}" if high == float("inf") else f"{low:.2f} to {high:.2f}"


def _show(
    console: Any, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool, has_own: bool
) -> None:
    caption = "* your own" if has_own else ""
    if not markdown:
        # The name comes first, as in every table of ours.
        ordered: list[Sequence[str]] = [[row[1], row[0], *row[2:]] for row in rows]
        console.print(Table(title, [headings[1], headings[0], *headings[2:]], ordered, caption=caption))
        return
    lines = ["| " + " | ".join(headings) + " |", "|--:|---|" + "--:|" * (len(headings) - 2)]
    lines += ["| " + " | ".join(as_markdown_cell(cell) for cell in row) + " |" for row in rows]
    for line in lines:
        say(console, line)


def _write(path: Path | None, places: list[dict[str, Any]]) -> None:
    if path is not None:
        write(path, json.dumps(_plain(places), indent=1, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    """Return a value with null for what is infinite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
