"""The closing table of a sweep, and the pages of MLflow that compare its runs: `hflray.command.compare` shows them."""

from __future__ import annotations

import json
import shlex
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from hflray import metrics
from hflray.support.references import short
from hflray.support.terminal.output import new_console, say
from hflray.support.terminal.tables import TextTable
from hflray.support.text import one_line
from hflray.sweep.results import SweepFolder, locate
from hflray.sweep.tasks import find_task
from hflray.tracking import read_journal, run_ids_of
from hflray.tracking.addresses import of_folder
from hflray.tracking.history import STOPPED
from hflray.tracking.journal import ending_of, rounds_of
from hflray.tracking.mlflow import quoted

LOCAL = "http://127.0.0.1:5000"  # where `mlflow ui` serves


@dataclass
class Outcome:
    """The outcome of a trial: its last metrics, and why it failed or what stopped it before its last round."""

    name: str
    round: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    stopped: str | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)
    opened: bool = False
    by_itself: bool = False  # whether the experiment ended with its last round, as at its target or by an observer
    ended: bool = False

    @classmethod
    def of(cls, name: str, entries: Sequence[Mapping[str, Any]]) -> Outcome:
        """Return the outcome of a trial with these journal entries."""
        outcome, ending = cls(name), ending_of(entries)
        for round in rounds_of(entries):
            outcome.add(round.number, round.values)
        if ending is not None:
            outcome.ended, outcome.error, outcome.stopped = True, ending.error, ending.tags.get(STOPPED)
        return outcome

    def add(self, index: int, values: dict[str, float]) -> None:
        """Count a round."""
        self.round, self.values = index, self.values | values


def without_effect(outcomes: Sequence[Outcome], values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each group of trials that differ in settings and have the same last numbers, to the bit.

    Args:
        outcomes: the outcomes of trials, of which those that failed are left out.
        values: the swept values of each trial, by its name; a trial that is not among them is left out.
    """
    alike: dict[str, list[str]] = {}
    for outcome in outcomes:
        numbers = {name: value for name, value in outcome.values.items() if not metrics.is_timed(name)}
        if numbers and outcome.error is None and outcome.name in values:
            alike.setdefault(json.dumps([outcome.round, numbers], sort_keys=True), []).append(outcome.name)
    lines = []
    for first, *alike_names in alike.values():
        keys = [key for key in values[first] if any(values[other][key] != values[first][key] for other in alike_names)]
        if keys:
            rest = alike_names[0] if len(alike_names) == 1 else f"{len(alike_names)} others"
            lines.append(
                f"{first} and {rest} differ in {', '.join(keys)} and have the same numbers, so that it changed nothing "
                "here"
            )
    return lines


def closing_table(
    title: str,
    outcomes: Sequence[Outcome],
    table_of: metrics.Table = "training",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> TextTable:
    """Return the closing table, one row per trial with its last metrics; totals are simulated seconds and joules.

    The columns are the rows of `hflray.metrics` of the table `table_of` (`hflray.sweep.tasks.base.Shown.table`).
    The caption names the user's own `labels` of values (`hflray.sweep.SweepFile`), because the trials keep their names.
    """
    # A column without a value in any trial, such as the rounds to a target that is not set, is left out.
    logged = dict.fromkeys(name for outcome in outcomes for name in outcome.values)
    columns = [row for row in metrics.rows(table_of, logged) if row.short and row.name in logged]
    marks = [_mark(outcome) for outcome in outcomes]
    legend = [text for mark, text in MARKS.items() if f" {mark}" in marks]
    cells = [_cells(column, outcomes) for column in columns]
    rounds = [f"{outcome.round or 0}{mark}" for outcome, mark in zip(outcomes, marks, strict=True)]
    headings = ["trial", "steps" if table_of == "learning" else "rounds", *(column.short for column in columns)]
    names = [one_line(outcome.name) for outcome in outcomes]
    legend += [f"{short(value)} is {one_line(label)}" for value, label in labels.items()]
    return TextTable(title, headings, list(zip(names, rounds, *cells, strict=True)), caption="; ".join(legend))


def _cells(column: metrics.Metric, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the cells of a column, with the digits that its least number needs."""
    values = [outcome.values.get(column.name) for outcome in outcomes]
    logged = [value for value in values if value is not None]
    return ["–" if value is None else column.text(value, logged) for value in values]


MARKS = {"✗": "✗ failed", "⊣": "⊣ stopped early", "…": "… not ended"}


def _mark(outcome: Outcome) -> str:
    if outcome.error:
        return " ✗"
    if not outcome.ended:
        return " …"
    return " ⊣" if outcome.stopped else ""


def comparison_url(experiment_id: str, run_ids: Sequence[str], base: str = LOCAL) -> str:
    """Return the address of MLflow's page that compares these runs: parameters, metrics, parallel coordinates."""
    runs, experiments = (quote(json.dumps(ids, separators=(",", ":"))) for ids in (list(run_ids), [experiment_id]))
    return f"{base}/#/compare-runs?runs={runs}&experiments={experiments}"


def comparison_lines(folder: SweepFolder, experiment_id: str | None, run_ids: Sequence[str]) -> list[str]:
    """Return lines that say how to see a sweep's runs in MLflow.

    The first line is the command that starts a server, unless the tracking URI is one; the others are addresses of
    MLflow's pages: the charts of the sweep's runs, then the comparison of the runs.

    Args:
        folder: the sweep's folder.
        experiment_id: the experiment's ID; None if MLflow was never reached, so that there are no addresses.
        run_ids: the IDs of the runs.
    """
    base, command = _server(folder)
    lines = [command] if command else []
    if experiment_id is None or not run_ids:
        return lines
    charts, comparison = charts_url(folder, experiment_id), comparison_url(experiment_id, run_ids, base)
    return [*lines, f"charts: {charts}", f"compare: {comparison}"]


def _server(folder: SweepFolder) -> tuple[str, str]:
    """Return the address of the server with a sweep's runs, and the command that starts it here; empty: it runs."""
    if folder.uri.startswith(("http://", "https://")):
        return folder.uri.rstrip("/"), ""
    return LOCAL, f"mlflow ui --backend-store-uri {shlex.quote(folder.uri)}"


def charts_url(folder: SweepFolder, experiment_id: str) -> str:
    """Return the address of MLflow's page of charts, with the sweep's runs only. MLflow chooses the charts."""
    page = f"{_server(folder)[0]}/#/experiments/{experiment_id}/runs"
    query = quote(f"tags.`hflray.sweep` = {quoted(folder.path.name)}", safe="")
    return f"{page}?compareRunsMode=CHART&workflowType=machine_learning&searchFilter={query}"


def open_charts(folder: SweepFolder, experiment_id: str, run_id: str) -> str | None:
    """Open the charts of a sweep in the browser; return the reason if that fails, else None."""
    base, command = _server(folder)
    if not _answers(base, run_id):
        start = f"start one: {command}" if command else "start it"
        return f"no MLflow server with this sweep answers at {base}; {start}"
    page = charts_url(folder, experiment_id)
    return None if webbrowser.open(page) else f"found no browser; open {page} in one"


def _answers(base: str, run_id: str) -> bool:
    """Return whether an MLflow server at an address has a run, or refuses to say so without a password."""
    proxies = [urllib.request.ProxyHandler({})] if base == LOCAL else []  # a proxy does not reach this machine's server
    try:
        urllib.request.build_opener(*proxies).open(
            f"{base}/api/2.0/mlflow/runs/get?run_id={run_id}", timeout=10
        ).close()
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except (OSError, ValueError):
        return False
    return True


def show(sweep: str, results: Path, opens: bool = False, tracking_uri: str | None = None) -> str | None:
    """Print the closing table of a sweep, which its journal has, and the addresses of its pages in MLflow.

    Args:
        sweep: the sweep's folder in the results, or its name for the latest sweep of that name.
        results: the folder of the results.
        opens: whether to open the sweep's charts in the browser as well (`open_charts`).
        tracking_uri: the MLflow server; None: the one of the sweep.

    Returns:
        Why the charts could not be opened, or None.

    Raises:
        HflrayError: there is no such sweep, MLflow has none of its runs, or only the folder names MLflow's address.
    """
    folder = locate(results, sweep)
    console = new_console()
    notes: list[str] = []
    outcomes = [
        Outcome(run.name, run.last_round, run.values, run.error, run.stopped, ended=run.status != "RUNNING")
        for run in read_journal(folder.path, notes)
    ]
    for note in notes:
        say(console, note)
    table_of = find_task(folder.file.task).shown.table
    console.print(closing_table(folder.path.name, outcomes, table_of, folder.file.labels))
    folder.uri = of_folder(folder.uri, folder.path.parent, tracking_uri)
    experiment_id, run_ids = run_ids_of(folder.uri, folder.experiment, folder.path.name)
    for line in comparison_lines(folder, experiment_id, run_ids):
        say(console, line)
    return open_charts(folder, experiment_id, run_ids[0]) if opens else None
