"""Exports: a sweep's runs as small files with everything that a report shows; an exhibit may consist of several.

An export is one folder per sweep. It has ``runs.json`` (names, configurations, environment, last metrics), and the
tables of all runs (`hflray.tracking.Tables`) in ``rounds.parquet`` and ``devices.parquet``, whose column ``run`` is the
run's name. Settings that all runs share stand once in ``runs.json``. An optional ``about.txt`` says in a sentence what
the environment does not, such as who ran the sweep on which machine. An export of more than `MOST_DETAILED` runs has no
table of devices, and of each round only the main metrics and the totals, so that it stays small.

Exports of version 1, with ``NAME.rounds.parquet`` and ``NAME.devices.parquet`` for each run and whole configurations,
are read as well; `convert` (``hflray report convert DIR``) writes them again as one export of this version.

All exports below the folder of an exhibit are its parts and are read as one sweep:
``fig3_fashion_scheduling/h10/runs.json`` and ``fig3_fashion_scheduling/h30/runs.json`` form one Figure 3. The parts may
come from sweeps with different names and descriptions. Where two parts have the same trial, the run that began last is
used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.compute
import yaml
from pyarrow import parquet

from hflray import metrics
from hflray.errors import ConfigError
from hflray.report.runs import LEFT_OUT, Run, Sweep, assemble
from hflray.support.files import replacing, write
from hflray.support.text import as_file_stem
from hflray.tracking import History, Tables

VERSION = 2
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml writes the same text four times as fast
TABLES = ("rounds", "devices")
RUN = "run"  # the column of the tables that holds the run's name
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
        names = ", ".join(duplicates)
        raise ConfigError(f"--export: two runs are called {names}; export {sweep.title}'s parts one by one")
    folder.mkdir(parents=True, exist_ok=True)
    tables = [_shown_tables(run, compact=len(sweep.runs) > MOST_DETAILED) for run in sweep.runs]
    records: list[dict[str, Any]] = []
    configs: list[dict[str, Any]] = []
    for run in sweep.runs:
        history = run.history
        tree = run.config.model_dump(mode="json", exclude={"tracking"})
        tree["data"]["root"] = None  # the folder of the data is private to the machine
        configs.append(tree)
        records.append(
            {
                "name": run.name,
                "status": history.status,
                "error": history.error,
                "started_ms": history.started_ms,
                "ended_ms": history.ended_ms,
                "values": history.values,
                "environment": history.environment,
            }
        )
    shared = _shared(configs)
    for record, tree in zip(records, configs, strict=True):
        record["config"] = _without(tree, shared)
    content = {
        "version": VERSION, "name": sweep.name, "title": sweep.title, "task": sweep.task,
        "description": sweep.description, "notes": [note for note in sweep.notes if LEFT_OUT in note],
        "config": shared, "runs": records,
    }  # fmt: skip
    return _write(folder, content, {run.name: table for run, table in zip(sweep.runs, tables, strict=True)})


def _write(folder: Path, content: Mapping[str, Any], tables: Mapping[str, Tables]) -> list[Path]:
    """Write an export's files and return their paths; the list of the runs is written last."""
    paths = []
    for kind in TABLES:
        frames = {name: table for name, each in tables.items() if (table := getattr(each, kind)) is not None}
        if frames:
            paths.append(folder / f"{kind}.parquet")
            with replacing(paths[-1]) as scratch:
                parquet.write_table(_joined(frames), scratch, compression="zstd", compression_level=19)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(folder / FILE, f"{text}\n")
    return [folder / FILE, *paths]


def _shown_tables(run: Run, compact: bool) -> Tables:
    """Return a run's tables; a compact export has the main metrics and the totals of each round only."""
    tables = run.history.tables
    if not compact:
        return tables
    names = [str(name) for name in tables.rounds]
    main = [row.name for row in metrics.main_of(names)]
    return Tables(tables.rounds[[name for name in names if COMPACT.fullmatch(name) or name in main]])


def _joined(frames: Mapping[str, pd.DataFrame]) -> pyarrow.Table:
    """Return tables as one, with the run's name in its first column; a column that a run does not have is null."""
    tables = []
    for name, frame in frames.items():
        # `from_pandas` is off so that a NaN stays a NaN, and a null only says that a run has no such column.
        columns = {str(key): pyarrow.array(list(frame[key]), from_pandas=False) for key in frame}
        names = pyarrow.array([name] * len(frame)).dictionary_encode()
        tables.append(pyarrow.table({RUN: names, **columns}))
    return pyarrow.concat_tables(tables, promote_options="permissive").unify_dictionaries()


def _separate(path: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of a file that `_joined` made, by the run's name; none if there is no such file."""
    if not path.exists():
        return {}
    table = parquet.read_table(path)
    frames = {}
    for name in pyarrow.compute.unique(table[RUN]).to_pylist():
        own = table.filter(pyarrow.compute.equal(table[RUN], name)).drop_columns([RUN])
        frames[name] = own.select([key for key in own.column_names if own[key].null_count < len(own)]).to_pandas()
    return frames


def _shared(trees: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of the trees of settings in which all agree."""
    first, *rest = trees
    shared: dict[str, Any] = {}
    for key, value in first.items():
        if not all(key in tree for tree in rest):
            continue
        if isinstance(value, dict) and all(isinstance(tree[key], dict) for tree in rest):
            inner = _shared([tree[key] for tree in trees])
            if inner or not any(tree[key] for tree in trees):
                shared[key] = inner
        elif all(type(tree[key]) is type(value) and tree[key] == value for tree in rest):
            shared[key] = value
    return shared


def _without(tree: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a tree that are not among the shared ones; `_merged` is the inverse."""
    rest: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in shared:
            rest[key] = value
        elif isinstance(value, dict) and (inner := _without(value, shared[key])):
            rest[key] = inner
    return rest


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared settings with a run's own ones."""
    both = dict(shared)
    for key, value in own.items():
        both[key] = _merged(both[key], value) if isinstance(both.get(key), dict) else value
    return both


def read_export(folder: Path) -> Sweep:
    """Read what `export` wrote. Raises ConfigError: the export is missing, damaged or of another version."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        tables = _read_tables(folder, content)
        histories = []
        for record in records_of(content):
            fields = {key: record[key] for key in ("name", "status", "error", "environment", "values")}
            times = {key: record[key] for key in ("started_ms", "ended_ms")}
            histories.append(
                History(
                    config=yaml.dump(record["config"], Dumper=DUMPER), tables=tables[record["name"]], **fields, **times
                )
            )
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


def records_of(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the runs in the content of ``runs.json``, each with its whole configuration."""
    shared = content.get("config", {})
    return [record | {"config": _merged(shared, record["config"])} for record in content["runs"]]


def _read_tables(folder: Path, content: Mapping[str, Any]) -> dict[str, Tables]:
    """Return the tables of an export of version 1 or 2 by the run's name. Raises ConfigError: it is of another."""
    names = [record["name"] for record in content["runs"]]
    if content["version"] == VERSION:
        rounds, devices = (_separate(folder / f"{kind}.parquet") for kind in TABLES)
        return {name: Tables(rounds[name], devices.get(name)) for name in names}
    if content["version"] != 1:
        raise ConfigError(f"{folder}: an export of version {content['version']}; this hflray reads 1 and {VERSION}")
    tables = {}
    for name in names:
        frames = {kind: folder / f"{_stem(name)}.{kind}.parquet" for kind in TABLES}
        own = pd.read_parquet(frames["devices"]) if frames["devices"].exists() else None
        tables[name] = Tables(pd.read_parquet(frames["rounds"]), own)
    return tables


def convert(folder: Path) -> list[Path]:
    """Write every export of version 1 in and below a folder again as one of this version; return their folders.

    Nothing but the form changes, and the files of the old form are deleted.

    Raises:
        ConfigError: an export is damaged.
    """
    converted = []
    for path in sorted(folder.rglob(FILE)):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("version") != 1:
            continue
        tables = _read_tables(path.parent, content)
        shared = _shared([record["config"] for record in content["runs"]])
        for record in content["runs"]:
            record["config"] = _without(record["config"], shared)
        runs = content.pop("runs")
        _write(path.parent, content | {"version": VERSION, "config": shared, "runs": runs}, tables)
        for name in tables:
            for kind in TABLES:
                (path.parent / f"{_stem(name)}.{kind}.parquet").unlink(missing_ok=True)
        converted.append(path.parent)
    return converted


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
