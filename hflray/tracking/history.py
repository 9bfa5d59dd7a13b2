"""Read runs from the journal, and what MLflow has of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.support.reader import fit, parse_json
from hflray.support.text import one_line
from hflray.tracking.journal import Journal, RunTables, ending_of, rounds_of, run_of
from hflray.tracking.mlflow import client_of, quoted
from hflray.tracking.schema import RunContent
from hflray.tracking.sink import reason

STOPPED = "hflray.stopped"  # the tag of a run that says why it was stopped early


def run_ids_of(uri: str, experiment: str, sweep: str) -> tuple[str, list[str]]:
    """Return MLflow's id of an experiment, and those of a sweep's runs in the order of their start.

    Raises:
        ConfigError: the store does not answer, or has no runs of the sweep.
    """
    try:
        client = client_of(uri)
        stored = client.get_experiment_by_name(experiment)
        query = f"tags.`hflray.sweep` = {quoted(sweep)}"
        runs = client.search_runs([stored.experiment_id], query, order_by=["start_time"]) if stored else []
    except Exception as error:
        raise ConfigError(f"MLflow at {one_line(uri)} does not answer ({reason(error)}); start that server") from error
    if stored is None or not runs:
        raise ConfigError(
            f"MLflow at {one_line(uri)} has no runs of {one_line(sweep)}; send them with "
            "python -m hflray.tracking sync FOLDER"
        )
    return str(stored.experiment_id), [run.info.run_id for run in runs]


@dataclass(frozen=True)
class History:
    """A run with all its rounds.

    Attributes:
        name, status: MLflow's; the status is ``RUNNING`` also for a run that was killed.
        error: why the run failed, or None.
        config: the resolved configuration as YAML, or as JSON.
        environment: see `hflray.support.provenance.environment`.
        values: the last value of each metric, including metrics of the run's end.
        tables: the tables of rounds and devices.
        started_ms, ended_ms: the time of the run's start, and of its end or its last sign of life, in ms since 1970.
        stopped: why the run was stopped before its last round, or None.
    """

    name: str
    status: str
    error: str | None
    config: str
    environment: dict[str, str]
    values: dict[str, float]
    tables: RunTables
    started_ms: int
    ended_ms: int
    stopped: str | None = None

    def __post_init__(self) -> None:
        """Raise UnfitError: a value has another type, as in a file that is damaged or a stranger's."""
        fit(RunContent, {name: getattr(self, name) for name in RunContent.model_fields})

    @property
    def last_round(self) -> int | None:
        """The number of the last round; None if there is none."""
        return int(self.tables.rounds["round"].max()) if len(self.tables.rounds) else None


def read_journal(folder: Path, damaged: list[str] | None = None) -> list[History]:
    """Return the runs of a sweep in its journal, in the order of their start.

    Args:
        folder: the sweep's results folder.
        damaged: a list that receives a line for each run whose journal cannot be read in full.

    Raises:
        ConfigError: the journal has no run, or none that can be read.
    """
    journal = Journal(folder)
    histories, problems = [], [] if damaged is None else damaged
    for key in journal.run_keys():
        path = journal.path(key)
        try:
            lost = journal.lost_lines(key)
            histories.append(_journalled(key, journal.entries(key)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{key}: its journal {path} cannot be read ({reason(error)})")
            continue
        if lost:
            problems.append(
                f"{key}: {lost} of the lines in its journal {path} cannot be read; their rounds are missing here "
                "unless they were run again or MLflow has them"
            )
    if not histories:
        defect = f"holds no run that can be read ({'; '.join(problems)})" if problems else "holds no run"
        raise ConfigError(f"{journal.folder}: {defect}; give the folder of a sweep's results")
    return sorted(histories, key=lambda history: history.started_ms)


def _environment(entries: list[dict[str, Any]]) -> dict[str, str]:
    """Return the environment of the last start; its commit is a modified one if that of any start with rounds is."""
    environment: dict[str, str] = {}
    commit, is_modified = "", False
    for entry in entries:
        if "start" in entry:
            environment = dict(parse_json(entry.get("artifacts", {}).get("environment.json", "{}")))
            commit = str(environment.get("git_commit", ""))
        elif "round" in entry:
            is_modified |= commit.endswith("-dirty")
    return environment | ({"git_commit": commit.removesuffix("-dirty") + "-dirty"} if is_modified else {})


def _journalled(key: str, entries: list[dict[str, Any]]) -> History:
    """Return the run of these journal entries. Raises ValueError, KeyError, TypeError: the entries are damaged."""
    run, ending = run_of(key, entries), ending_of(entries)
    if run is None:
        raise ValueError("no line of it says which run it is")
    starts_ms = [entry["start"] for entry in entries if "start" in entry]
    values: dict[str, float] = {}
    for round in rounds_of(entries):
        values |= round.values
    return History(
        name=run.name,
        status="RUNNING" if ending is None else ending.status,
        error=None if ending is None else ending.error,
        config=run.artifacts["config.yaml"],
        environment=_environment(entries),
        values=values,
        tables=RunTables.of(entries),
        started_ms=starts_ms[0],
        ended_ms=max((entry["time"] for entry in entries if "time" in entry), default=starts_ms[-1]),
        stopped=None if ending is None else ending.tags.get(STOPPED),
    )
