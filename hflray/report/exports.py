"""Exports: a sweep's runs as small files that hold all that a report shows, and several of them read as one exhibit.

An export is one folder per sweep: ``runs.json`` (names, configurations, environment, last metrics) and per run
``NAME.rounds.parquet`` and ``NAME.devices.parquet``, see `hflray.tracking.Tables`. An ``about.txt`` beside them, if
there is one, says in a sentence what the environment does not, such as who ran it where.

All exports below the folder of an exhibit are its parts and are read as one sweep:
``fig3_fashion_scheduling/h10/runs.json`` and ``fig3_fashion_scheduling/h30/runs.json`` are one Figure 3. Names and
descriptions of the parts' sweeps may differ. Where two parts have the same trial, the run begun last is taken.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml

from hflray.errors import ConfigError
from hflray.report.runs import LEFT_OUT, Run, Sweep, put_together
from hflray.tracking import History, Tables

VERSION = 1
FILE = "runs.json"
ABOUT = "about.txt"


def _stem(name: str) -> str:
    """A run's name as file name on any system."""
    return name.replace("λ", "l").replace("=", "_")


def export(sweep: Sweep, folder: Path) -> list[Path]:
    """Write a sweep's runs into `folder`, made if need be; return what was written.

    Raises:
        ConfigError: two runs have one name (of two parts that differ in a setting that no name shows).
    """
    names = [run.name for run in sweep.runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--export: two runs are called {', '.join(twice)}; export {sweep.title}'s parts one by one")
    folder.mkdir(parents=True, exist_ok=True)
    paths, about = [], []
    for run in sweep.runs:
        history, tables = run.history, run.history.tables
        config = run.config.model_dump(mode="json", exclude={"tracking"})
        config["data"]["root"] = None  # where the data lay is nobody else's business
        for kind, table in (("rounds", tables.rounds), ("devices", tables.devices)):
            if table is not None:
                paths.append(folder / f"{_stem(run.name)}.{kind}.parquet")
                table.to_parquet(paths[-1], compression="zstd", index=False)
        about.append(
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
        "description": sweep.description, "notes": [note for note in sweep.notes if LEFT_OUT in note], "runs": about,
    }  # fmt: skip
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / FILE).write_text(f"{text}\n", encoding="utf-8")
    return [folder / FILE, *paths]


def read_export(folder: Path) -> Sweep:
    """Read what `export` wrote. Raises ConfigError: it holds no export, a damaged one, or one of another version."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            raise ConfigError(f"{folder}: an export of version {content['version']}; this hflray reads {VERSION}")
        histories = []
        for about in content["runs"]:
            stem = folder / _stem(about["name"])
            devices = stem.with_name(f"{stem.name}.devices.parquet")
            tables = Tables(
                pd.read_parquet(stem.with_name(f"{stem.name}.rounds.parquet")),
                pd.read_parquet(devices) if devices.exists() else None,
            )
            given = {key: about[key] for key in ("name", "status", "error", "environment", "values")}
            times = {key: about[key] for key in ("started_ms", "ended_ms")}
            histories.append(History(config=yaml.safe_dump(about["config"]), tables=tables, **given, **times))
        known = folder / ABOUT
        said = known.read_text(encoding="utf-8").strip() if known.exists() else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: holds no export that can be read ({str(error).splitlines()[0]}); "
            "write one with python -m hflray.report SWEEP --export FOLDER"
        ) from error
    notes = list(content["notes"])
    sweep = put_together(content["name"], content["title"], content["task"], content["description"], histories, notes)
    return replace(sweep, parts={"": said})


def exports(folder: Path) -> list[Path]:
    """The folders of exhibits in a folder: itself, or those in it that hold an export or parts."""
    if (folder / FILE).exists():
        return [folder]
    return sorted(top for top in folder.glob("*") if top.is_dir() and any(top.rglob(FILE)))


def read_exhibit(top: Path) -> Sweep:
    """Read all exports in and below an exhibit's folder as one sweep.

    The exhibit's folder names the sweep, and each run says as `Run.part` in which folder below it was; an export that
    lies in `top` itself and is the only one keeps its own name. A part that cannot be read or has no round yet is a
    note, and so is a run that gave way to a newer one of the same trial.

    Raises:
        ConfigError: nothing can be read, or the parts are of different tasks.
    """
    folders = sorted(path.parent for path in top.rglob(FILE)) or [top]
    if folders == [top]:
        return read_export(top)
    read: dict[str, Sweep] = {}
    notes: list[str] = []
    for folder in folders:
        part = folder.relative_to(top).as_posix() if folder != top else ""
        try:
            read[part] = read_export(folder)
        except ConfigError as error:
            if len(folders) == 1:
                raise
            notes.append(f"{part or top.name}{LEFT_OUT}{error}")
    if not read:
        raise ConfigError(f"{top}: none of its {len(folders)} exports can be read; {notes[0]}")
    tasks = {sweep.task: part for part, sweep in read.items()}
    if len(tasks) > 1:
        found = ", ".join(f"{part or top.name} is of task {task}" for task, part in tasks.items())
        raise ConfigError(f"{top}: the exports of one exhibit must be of one task; {found}; move one of them elsewhere")
    runs = [replace(run, part=part) for part, sweep in read.items() for run in sweep.runs]
    for part, sweep in read.items():
        notes += [f"{part}/{note}" if part else note for note in sweep.notes]
    kept, gave_way = _newest(runs)
    first = next(iter(read.values()))
    about = {part: sweep.parts.get("", "") for part, sweep in read.items()}
    return Sweep(top.name, top.name, first.task, first.description, kept, notes + gave_way, about)


def _newest(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Of the runs of one trial in several parts the one begun last; and a note on each of the others."""
    trials: dict[object, list[Run]] = {}
    for run in runs:
        trials.setdefault(run.telling, []).append(run)
    dropped: dict[int, str] = {}
    for same in trials.values():
        last = max(same, key=lambda run: run.history.started_ms)
        for run in same:
            if run.part != last.part:
                dropped[id(run)] = f"{run.said}{LEFT_OUT}{last.said} is a newer run of the same trial"
    return [run for run in runs if id(run) not in dropped], list(dropped.values())
