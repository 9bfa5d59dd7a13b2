"""Exports: a sweep's runs as small files with everything that a report shows; an exhibit may consist of several.

An export is one folder per sweep. It has ``runs.json`` (names, configurations, environment, last metrics) and, for each
run, ``NAME.rounds.parquet`` and ``NAME.devices.parquet`` (`hflray.tracking.Tables`). An optional ``about.txt`` says in
a sentence what the environment does not, such as who ran the sweep on which machine. An export of more than
`MOST_DETAILED` runs has no tables of devices, and of each round only the main metrics and the totals, so that it stays
small.

All exports below the folder of an exhibit are its parts and are read as one sweep:
``fig3_fashion_scheduling/h10/runs.json`` and ``fig3_fashion_scheduling/h30/runs.json`` form one Figure 3. The parts may
come from sweeps with different names and descriptions. Where two parts have the same trial, the run that began last is
used.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from hflray import metrics
from hflray.errors import ConfigError
from hflray.files import replacing, write
from hflray.report.runs import LEFT_OUT, Run, Sweep, assemble
from hflray.text import as_file_stem
from hflray.tracking import History, Tables

VERSION = 1
MOST_DETAILED = 15  # runs; an export of more leaves out who was scheduled and what only a run's own page shows
COMPACT = re.compile(r"round|test_loss|total/.*")  # the columns that such an export has besides the main metrics
FILE = "runs.json"
ABOUT = "about.txt"


def _stem(name: str) -> str:
    """Return a run's name as a file name that is valid on any system and stays in its folder."""
    return as_file_stem(name.replace("λ", "l"))


def export(sweep: Sweep, folder: Path) -> list[Path]:
    """Write a sweep's runs into `folder`, which is created if it does not exist; return the paths of the files.

    Raises:
        ConfigError: two runs have the same name, because their parts differ in a setting that no name shows.
    """
    stems = [_stem(run.name) for run in sweep.runs]
    if duplicates := sorted({run.name for run in sweep.runs if stems.count(_stem(run.name)) > 1}):
        shared = ", ".join(duplicates)
        raise ConfigError(f"--export: two runs are called {shared}; export {sweep.title}'s parts one by one")
    folder.mkdir(parents=True, exist_ok=True)
    paths, records = [], []
    compact = len(sweep.runs) > MOST_DETAILED
    for run in sweep.runs:
        history, tables = run.history, run.history.tables
        if compact:
            names = [str(name) for name in tables.rounds]
            main = [row.name for row in metrics.main_of(names)]
            tables = Tables(tables.rounds[[name for name in names if COMPACT.fullmatch(name) or name in main]])
        config = run.config.model_dump(mode="json", exclude={"tracking"})
        config["data"]["root"] = None  # the folder of the data is private to the machine
        for kind, table in (("rounds", tables.rounds), ("devices", tables.devices)):
            if table is not None:
                paths.append(folder / f"{_stem(run.name)}.{kind}.parquet")
                with replacing(paths[-1]) as scratch:
                    table.to_parquet(scratch, compression="zstd", index=False)
        records.append(
            {
                "name": run.name,
                "status": history.status,
                "error": history.error,
                "started_ms": history.started_ms,
                "ended_ms": history.ended_ms,
                "values": history.values,
                "environment": history.environment,
                "config": config,
            }
        )
    content = {
        "version": VERSION, "name": sweep.name, "title": sweep.title, "task": sweep.task,
        "description": sweep.description, "notes": [note for note in sweep.notes if LEFT_OUT in note], "runs": records,
    }  # fmt: skip
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(folder / FILE, f"{text}\n")
    return [folder / FILE, *paths]


def read_export(folder: Path) -> Sweep:
    """Read what `export` wrote. Raises ConfigError: the export is missing, damaged or of another version."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ConfigError(f"{folder}: an export of version {content['version']}; this hflray reads {VERSION}")
        histories = []
        for record in content["runs"]:
            stem = folder / _stem(record["name"])
            devices = stem.with_name(f"{stem.name}.devices.parquet")
            tables = Tables(
                pd.read_parquet(stem.with_name(f"{stem.name}.rounds.parquet")),
                pd.read_parquet(devices) if devices.exists() else None,
            )
            fields = {key: record[key] for key in ("name", "status", "error", "environment", "values")}
            times = {key: record[key] for key in ("started_ms", "ended_ms")}
            histories.append(History(config=yaml.safe_dump(record["config"]), tables=tables, **fields, **times))
        path = folder / ABOUT
        about = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: holds no export that can be read ({str(error).splitlines()[0]}); "
            "write one with python -m hflray.report SWEEP --export FOLDER"
        ) from error
    notes = list(content["notes"])
    sweep = assemble(content["name"], content["title"], content["task"], content["description"], histories, notes)
    return replace(sweep, parts={"": about})


def exports(folder: Path) -> list[Path]:
    """Return the folders of exhibits: `folder` itself if it is an export, else its subfolders that contain one."""
    if (folder / FILE).exists():
        return [folder]
    return sorted(top for top in folder.glob("*") if top.is_dir() and any(top.rglob(FILE)))


def read_exhibit(top: Path) -> Sweep:
    """Read all exports in and below an exhibit's folder as one sweep.

    The sweep has the name of the exhibit's folder, and `Run.part` is the folder of the run's part below it. An export
    in `top` itself keeps its own name if it is the only one. A part that cannot be read or has no round yet becomes a
    note, and so does a run that a newer run of the same trial replaces.

    Raises:
        ConfigError: no part can be read, or the parts are of different tasks.
    """
    folders = sorted(path.parent for path in top.rglob(FILE)) or [top]
    if folders == [top]:
        return read_export(top)
    parts: dict[str, Sweep] = {}
    notes: list[str] = []
    for folder in folders:
        part = folder.relative_to(top).as_posix() if folder != top else ""
        try:
            parts[part] = read_export(folder)
        except ConfigError as error:
            if len(folders) == 1:
                raise
            notes.append(f"{part or top.name}{LEFT_OUT}{error}")
    if not parts:
        raise ConfigError(f"{top}: none of its {len(folders)} exports can be read; {notes[0]}")
    tasks = {sweep.task: part for part, sweep in parts.items()}
    if len(tasks) > 1:
        listing = ", ".join(f"{part or top.name} is of task {task}" for task, part in tasks.items())
        raise ConfigError(
            f"{top}: the exports of one exhibit must be of one task; {listing}; move one of them elsewhere"
        )
    runs = [replace(run, part=part) for part, sweep in parts.items() for run in sweep.runs]
    for part, sweep in parts.items():
        notes += [f"{part}/{note}" if part else note for note in sweep.notes]
    newest, replaced = _newest(runs)
    first = next(iter(parts.values()))
    about = {part: sweep.parts.get("", "") for part, sweep in parts.items()}
    return Sweep(top.name, top.name, first.task, first.description, newest, notes + replaced, about)


def _newest(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs without those that a newer run of their trial in another part replaces, and a note on each."""
    trials: dict[object, list[Run]] = {}
    for run in runs:
        trials.setdefault(run.identity, []).append(run)
    dropped: dict[int, str] = {}
    for members in trials.values():
        last = max(members, key=lambda run: run.history.started_ms)
        for run in members:
            if run.part != last.part:
                dropped[id(run)] = f"{run.full_name}{LEFT_OUT}{last.full_name} is a newer run of the same trial"
    return [run for run in runs if id(run) not in dropped], list(dropped.values())
