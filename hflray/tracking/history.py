"""Finished runs, read again: from MLflow, or from the journal where MLflow is away."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.metrics import ROUND_OBJECTIVE
from hflray.tracking.journal import Journal, Tables, rounds_of
from hflray.tracking.mlflow import client_of
from hflray.tracking.sink import reason


@dataclass(frozen=True)
class LoggedRun:
    """A run as MLflow has it: its last metrics, its last round, and why it failed or was stopped early, if it was."""

    run_id: str
    name: str
    status: str
    rounds: int
    values: dict[str, float]
    error: str | None
    stopped: str | None = None


def read_runs(uri: str, experiment: str, sweep: str) -> tuple[str, list[LoggedRun]]:
    """The MLflow experiment's id and the runs of a sweep, in the order they were begun.

    Raises:
        ConfigError: the store does not answer, or knows no runs of the sweep.
    """
    client, experiment_id, found = _runs_of(uri, experiment, sweep)
    runs = []
    for run in found:
        every = sorted(run.data.metrics, key=lambda name: name != ROUND_OBJECTIVE)[:1]
        rounds = max((m.step for name in every for m in client.get_metric_history(run.info.run_id, name)), default=0)
        info, why, stopped = run.info, run.data.tags.get("hflray.error"), run.data.tags.get("hflray.stopped")
        runs.append(LoggedRun(info.run_id, info.run_name, info.status, rounds, dict(run.data.metrics), why, stopped))
    return experiment_id, runs


def _runs_of(uri: str, experiment: str, sweep: str) -> tuple[Any, str, list[Any]]:
    """Client, experiment id and MLflow's runs of a sweep; raises as `read_runs`."""
    try:
        client = client_of(uri)
        known = client.get_experiment_by_name(experiment)
        query = f"tags.`hflray.sweep` = '{sweep}'"
        found = client.search_runs([known.experiment_id], query, order_by=["start_time"]) if known else []
    except Exception as error:
        raise ConfigError(f"MLflow at {uri} does not answer ({reason(error)}); start that server") from error
    if known is None or not found:
        raise ConfigError(
            f"MLflow at {uri} has no runs of {sweep}; send them with python -m hflray.tracking sync FOLDER"
        )
    return client, str(known.experiment_id), list(found)


@dataclass(frozen=True)
class History:
    """A run with all its rounds.

    Attributes:
        name, status: MLflow's; ``RUNNING`` also where a run was broken off.
        error: why it failed, or None.
        config: its resolved configuration, YAML.
        environment: see `hflray.provenance.environment`.
        values: its last metrics, those known at the end included.
        tables: its rounds and devices.
        started_ms, ended_ms: the clock when it was begun, and when it ended or was last heard of.
    """

    name: str
    status: str
    error: str | None
    config: str
    environment: dict[str, str]
    values: dict[str, float]
    tables: Tables
    started_ms: int
    ended_ms: int


def read_histories(
    uri: str, experiment: str, sweep: str, told: Callable[[int, int], None] = lambda done, of: None
) -> list[History]:
    """The runs of a sweep as MLflow has them, in the order they were begun; `told` after each of them.

    A run that has not ended has no tables yet: its rounds are put together from its metrics.

    Raises:
        ConfigError: the store does not answer, or knows no runs of the sweep.
    """
    client, _, found = _runs_of(uri, experiment, sweep)
    histories = []
    for number, run in enumerate(found, 1):
        try:
            histories.append(_history(client, run))
        except Exception as error:
            raise ConfigError(f"MLflow at {uri} does not answer ({reason(error)}); start that server") from error
        told(number, len(found))
    return histories


def _history(client: Any, run: Any) -> History:
    import pandas as pd

    info, run_id = run.info, run.info.run_id
    names = {artifact.path for artifact in client.list_artifacts(run_id)}
    with tempfile.TemporaryDirectory() as folder:

        def fetch(name: str) -> Path:
            return Path(client.download_artifacts(run_id, name, folder))

        config = fetch("config.yaml").read_text(encoding="utf-8") if "config.yaml" in names else ""
        around = json.loads(fetch("environment.json").read_text()) if "environment.json" in names else {}
        if "rounds.parquet" in names:
            devices = pd.read_parquet(fetch("devices.parquet")) if "devices.parquet" in names else None
            tables = Tables(pd.read_parquet(fetch("rounds.parquet")), devices)
        else:
            rows: dict[int, dict[str, float]] = {}
            for name in run.data.metrics:
                for metric in client.get_metric_history(run_id, name):
                    rows.setdefault(metric.step, {"round": metric.step})[name] = metric.value
            tables = Tables(pd.DataFrame([rows[step] for step in sorted(rows)]))
    why, end = run.data.tags.get("hflray.error"), info.end_time or info.start_time
    values = dict(run.data.metrics)
    return History(info.run_name, info.status, why, config, around, values, tables, info.start_time, end)


def read_journal(folder: Path, damaged: list[str] | None = None) -> list[History]:
    """The runs of a sweep as its journal has them, in the order they were begun.

    Args:
        folder: of the sweep's results.
        damaged: is given a line for each run whose journal cannot be read, or not all of it.

    Raises:
        ConfigError: there is none, or none that can be read.
    """
    journal = Journal(folder)
    histories, said = [], [] if damaged is None else damaged
    for key in journal.run_keys():
        path = journal.path(key)
        try:
            lost = journal.lost_lines(key)
            histories.append(_journalled(journal.entries(key)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            said.append(f"{key}: its journal {path} cannot be read ({reason(error)})")
            continue
        if lost:
            said.append(
                f"{key}: {lost} of the lines in its journal {path} cannot be read; their rounds are missing here "
                "unless they were run again or MLflow has them"
            )
    if not histories:
        why = f"holds no run that can be read ({'; '.join(said)})" if said else "holds no run"
        raise ConfigError(f"{journal.folder}: {why}; give the folder of a sweep's results")
    return sorted(histories, key=lambda history: history.started_ms)


def _journalled(entries: list[dict[str, Any]]) -> History:
    """The run of these journal entries. Raises ValueError, KeyError, TypeError: they are not as they were written."""
    starts = [number for number, entry in enumerate(entries) if "start" in entry]
    if not starts:
        raise ValueError("no line of it says which run it is")
    first, last = entries[starts[0]], entries[starts[-1]]
    ends = [entry for entry in entries[starts[-1] :] if "end" in entry]
    values: dict[str, float] = {}
    for round in rounds_of(entries):
        values |= round.values
    return History(
        name=last["name"],
        status=ends[-1]["end"] if ends else "RUNNING",
        error=ends[-1]["error"] if ends else None,
        config=last["artifacts"]["config.yaml"],
        environment=json.loads(last["artifacts"]["environment.json"]),
        values=values,
        tables=Tables.of(entries),
        started_ms=first["start"],
        ended_ms=max((entry["time"] for entry in entries if "time" in entry), default=last["start"]),
    )
