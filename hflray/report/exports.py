"""Exports: a sweep's runs as one small file with everything that a report shows; an exhibit may consist of several.

An export is one zip file per sweep. It has ``runs.json`` (names, configurations, environment, last metrics), and the
tables of all runs (`RunTables`) in ``rounds.parquet`` and ``devices.parquet``, whose column ``run`` is the
run's name. Settings that all runs share stand once in ``runs.json``. An optional ``about.txt`` says in a sentence what
the environment does not, such as who ran the sweep on which machine. A *brief* export of experiments has no table of
devices, and of each round only the main metrics and the totals, so that it stays small; ``brief`` in ``runs.json`` says
so. Older versions wrote each export of more than `MOST_DETAILED` experiments so, without saying it. The same runs give
the same bytes, with the same versions of PyArrow and zlib.

Before hflray 0.1.0 an export was a folder. Such a one is refused.

An export is named by its place, a path without ``.zip``. The export at the place of an exhibit and all exports below it
are its parts and are read as one sweep: ``fig3_fashion_scheduling/h10.zip`` and ``fig3_fashion_scheduling/h30.zip``
form one Figure 3. The parts may come from sweeps with different names and descriptions. Where two parts have the same
trial, the run that began last is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

import pandas as pd
import pyarrow
import pyarrow.compute
from pyarrow import parquet
from pydantic import BaseModel

from hflray import metrics
from hflray.errors import ConfigError, nearest
from hflray.experiment.fleets import FOLDER as FLEETS
from hflray.experiment.fleets import key_of
from hflray.report.runs import LEFT_OUT, RunRecord, SweepRecord, assemble
from hflray.support.files import write
from hflray.support.reader import UnfitError, fit, parse_json, read_bytes, read_parquet, unzip
from hflray.support.text import as_file_stem, one_line
from hflray.tracking import History, RunTables
from hflray.tracking.schema import RunContent

VERSION = 2
TABLES = ("rounds", "devices")
RUN = "run"  # the column of the tables that holds the run's name
EXPERIMENT = "experiment"  # the task
MOST_DETAILED = 15  # runs; an older export of more may be brief (`is_brief`)
# The columns that a brief export has besides the main metrics.
BRIEF = re.compile(rf"round|test_loss|total/.*|{metrics.on_validation('.*')}")
FILE = "runs.json"
ABOUT = "about.txt"
# What there is of a run, see `RunContent`; older exports do not say why it was stopped.
LOGGED = ("name", "status", "error", "started_ms", "ended_ms", "values", "environment", "stopped")
SUFFIX = ".zip"
OLDER = "hflray report convert of hflray 0.2.0 writes it as one file, which this hflray reads"


class Record(RunContent):
    """A run in ``runs.json``."""

    config: dict[str, Any]


class Content(BaseModel):
    """``runs.json``; older versions lack the last three keys."""

    version: int
    name: str
    title: str
    task: str
    description: str
    notes: list[str]
    runs: list[Record]
    brief: bool = False
    config: dict[str, Any] = {}
    labels: dict[str, str] = {}


def _stem(name: str) -> str:
    """Return a run's name as a file name that is valid on any system and stays in its folder."""
    return as_file_stem(name.replace("λ", "l"))


def export(sweep: SweepRecord, place: Path, brief: bool = False) -> Path:
    """Write a sweep's runs into the file ``place.zip``, as `pack` does; return its path.

    Args:
        sweep: the runs.
        place: the path of the file, with or without ``.zip``.
        brief: whether to leave out the devices, the schedules and what only a run's own page shows.

    Raises:
        ConfigError: two runs have the same name, because their parts differ in a setting that no name shows.
    """
    stems = [_stem(run.name) for run in sweep.runs]
    if duplicates := sorted({run.name for run in sweep.runs if stems.count(_stem(run.name)) > 1}):
        names = ", ".join(duplicates)
        raise ConfigError(f"--export: two runs are called {names}; export {sweep.title}'s parts one by one")
    brief = brief and sweep.task == EXPERIMENT  # other tasks log no totals and few columns
    tables = [_brief(run.history.tables) if brief else run.history.tables for run in sweep.runs]
    records: list[dict[str, Any]] = []
    for run in sweep.runs:
        tree = run.config.model_dump(mode="json", exclude={"tracking"})
        tree["data"]["root"] = None  # the folder of the data is private to the machine
        records.append({name: getattr(run.history, name) for name in LOGGED} | {"config": tree})
    shared = _shared([record["config"] for record in records])
    for record in records:
        record["config"] = _without(record["config"], shared)
    content = {
        "version": VERSION, "name": sweep.name, "title": sweep.title, "task": sweep.task,
        "description": sweep.description, "notes": [note for note in sweep.notes if LEFT_OUT in note],
        "brief": brief or any(run.brief for run in sweep.runs), "config": shared, "runs": records,
    }  # fmt: skip
    if labels := {value: label for run in reversed(sweep.runs) for value, label in run.labels.items()}:
        content["labels"] = labels
    files = _files(content, {run.name: table for run, table in zip(sweep.runs, tables, strict=True)})
    if not brief:
        files |= {f"{FLEETS}/{key_of(run.config)}": run.fleet for run in sweep.runs if run.fleet is not None}
    return pack(place, files)


def lacking(sweep: SweepRecord, brief: bool) -> list[str]:
    """Return a sentence that says what an export of a sweep lacks, if it lacks anything that a report shows."""
    if not sweep.shown.explorable:
        return []
    if brief:
        return ["the export is brief: devices, schedules and most metrics of a round; leave --brief out for all"]
    reasons = [reason for run in sweep.runs if (reason := run.without_schedules)]
    runs = f"{len(reasons)} of {len(sweep.runs)} runs"
    return [f"devices and schedules of {runs} in the export: {reasons[0]}"] if reasons else []


def _files(content: Mapping[str, Any], tables: Mapping[str, RunTables]) -> dict[str, bytes]:
    """Return the files of an export by name."""
    files = {FILE: f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()}
    for kind in TABLES:
        frames = {
            name: table for name, run_tables in tables.items() if (table := getattr(run_tables, kind)) is not None
        }
        if frames:
            stream = BytesIO()
            # Measured numbers seldom repeat, so that dictionaries of their values only make the file larger.
            parquet.write_table(_joined(frames), stream, compression="zstd", compression_level=19, use_dictionary=False)
            files[f"{kind}.parquet"] = stream.getvalue()
    return files


def zip_of(place: Path) -> Path:
    """Return the path of the export at a place; a place may also be this path itself, or ``.``, which has no name."""
    place = place if place.name else place.absolute()
    return place if place.suffix == SUFFIX else place.parent / f"{place.name}{SUFFIX}"


def pack(place: Path, files: Mapping[str, bytes]) -> Path:
    """Write an export with these files, whole or not at all, in place of an earlier one; return its path.

    An earlier export's ``about.txt`` stays, unless `files` has one.
    """
    try:
        earlier = files_of(place)
    except (OSError, ValueError):
        earlier = {}
    origin = {ABOUT: earlier[ABOUT]} if ABOUT in earlier else {}
    stream = BytesIO()
    with ZipFile(stream, "w") as archive:
        for name, content in sorted((origin | dict(files)).items()):
            entry = ZipInfo(name)  # its time is 1980, so that the same runs give the same file
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # the rights of a file on Unix, on any system
            archive.writestr(entry, content, ZIP_DEFLATED, compresslevel=9)
    return write(zip_of(place), stream.getvalue())


def files_of(place: Path) -> dict[str, bytes]:
    """Return the files of an export by name.

    Raises:
        OSError: there is no export, or it cannot be read.
        ValueError: the zip file is damaged, or the export is a folder.
    """
    path = zip_of(place)
    if not path.exists() and (place / FILE).exists():
        raise ValueError(f"it is a folder, as before hflray 0.1.0; {OLDER}")
    try:
        return unzip(read_bytes(path, inside=path.parent))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _brief(tables: RunTables) -> RunTables:
    """Return the main metrics and the totals of each round only."""
    names = [str(name) for name in tables.rounds]
    main = [row.name for row in metrics.main_of(names)]
    return RunTables(tables.rounds[[name for name in names if BRIEF.fullmatch(name) or name in main]])


def is_brief(files: Mapping[str, bytes], content: Mapping[str, Any]) -> bool:
    """Return whether an export is brief; older versions did not write it down."""
    many = content["task"] == EXPERIMENT and len(content["runs"]) > MOST_DETAILED
    return bool(content.get("brief", many and f"{TABLES[1]}.parquet" not in files))


def _joined(frames: Mapping[str, pd.DataFrame]) -> pyarrow.Table:
    """Return tables as one, with the run's name in its first column; a column that a run does not have is null."""
    tables = []
    for name, frame in frames.items():
        # `from_pandas` is off so that a NaN stays a NaN, and a null only says that a run has no such column.
        columns = {str(key): pyarrow.array(list(frame[key]), from_pandas=False) for key in frame}
        names = pyarrow.array([name] * len(frame)).dictionary_encode()
        tables.append(pyarrow.table({RUN: names, **columns}))
    return pyarrow.concat_tables(tables, promote_options="permissive").unify_dictionaries()


def _separate(content: bytes | None) -> dict[str, pd.DataFrame]:
    """Return the tables of a file that `_joined` made, by the run's name; none if there is no such file."""
    if content is None:
        return {}
    table = read_parquet(content)
    kinds = dict(zip(table.column_names, table.schema.types, strict=True))
    if not pyarrow.types.is_dictionary(kinds.get(RUN, pyarrow.null())) or len(kinds) < table.num_columns:
        raise ValueError(f"a table lacks the names of the runs in the column '{RUN}', or has a column twice")
    frames = {}
    for name in pyarrow.compute.unique(table[RUN]).to_pylist():
        rows = table.filter(pyarrow.compute.equal(table[RUN], name)).drop_columns([RUN])
        frames[name] = rows.select([key for key in rows.column_names if rows[key].null_count < len(rows)]).to_pandas()
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


def _merged(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared settings with a run's own ones."""
    both = dict(shared)
    for key, value in settings.items():
        both[key] = _merged(both[key], value) if isinstance(both.get(key), dict) else value
    return both


def read_export(place: Path) -> SweepRecord:
    """Read what `export` wrote. Raises ConfigError: the export is missing, damaged or of another version."""
    try:
        files = files_of(place)
        content = content_of(files)
        if content["version"] != VERSION:
            raise ValueError(f"it is of version {content['version']}, and this hflray reads {VERSION}; {OLDER}")
        rounds, devices = (_separate(files.get(f"{kind}.parquet")) for kind in TABLES)
        histories = []
        for record in content["runs"]:
            logged: dict[str, Any] = {name: record.get(name) for name in LOGGED}
            config = json.dumps(_merged(content.get("config", {}), record["config"]))
            tables = RunTables(rounds[record["name"]], devices.get(record["name"]))
            histories.append(History(config=config, tables=tables, **logged))
        about = files.get(ABOUT, b"").decode().strip()
        brief = is_brief(files, content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{place}: holds no export that can be read ({str(error).splitlines()[0]}); "
            "write one with python -m hflray.report SWEEP --export FOLDER"
        ) from error
    notes = list(content["notes"])
    head = content["name"], content["title"], content["task"], content["description"]
    labels = {value: one_line(label) for value, label in content.get("labels", {}).items()}
    sweep = assemble(*head, histories, notes, lambda config: files.get(f"{FLEETS}/{key_of(config)}"), labels)
    return replace(sweep, parts={"": about}, runs=[replace(run, brief=brief) for run in sweep.runs])


def content_of(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the content of ``runs.json``. Raises KeyError or ValueError: it is missing or damaged."""
    content: dict[str, Any] = parse_json(files[FILE])
    try:
        fit(Content, content)
    except UnfitError as error:
        raise ValueError(f"{FILE}: {error}") from None
    return content


def _is_export(path: Path) -> bool:
    """Return whether a zip file is an export; a damaged one is taken for one, so that its reader says so."""
    try:
        with ZipFile(BytesIO(read_bytes(path, inside=path.parent))) as archive:
            return FILE in archive.namelist()
    except (BadZipFile, ValueError):
        return True
    except OSError:
        return False


def _place(path: Path) -> Path:
    """Return the place of an export from its path, or from its place; ``.`` has no name and becomes absolute."""
    path = path if path.name else path.absolute()
    return path.with_suffix("") if path.suffix == SUFFIX else path


def _places(top: Path) -> list[Path]:
    """Return the places of the exports at and below a place."""
    folders = {path.parent for path in top.rglob(FILE)}
    return sorted(folders | {_place(path) for path in [zip_of(top), *top.rglob(f"*{SUFFIX}")] if _is_export(path)})


def exports(folder: Path) -> list[Path]:
    """Return the places of exhibits: `folder` itself if it is an export, else all in it that are or contain one."""
    if _is_export(zip_of(folder)) or (folder / FILE).exists():
        return [_place(folder)]
    return sorted(top for top in {_place(path) for path in folder.glob("*")} if _places(top))


def named_exports(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """Return the places of the exhibits in a folder, all or of these names. Raises ConfigError: there is none."""
    places = {place.name: place for place in exports(folder)}
    chosen = [place for name, place in places.items() if not names or name in names]
    if not chosen:
        of_names = f" of {', '.join(names)}{nearest(names[0], places)}" if names else ""
        held = f"; accepted: {', '.join(places)}" if names and places else ""
        raise ConfigError(
            f"--from {folder}: holds no export{of_names}{held}; write one with python -m hflray.report SWEEP --export "
            f"{folder}, or name the folder that has one"
        )
    return chosen


def read_exhibit(top: Path) -> SweepRecord:
    """Read all exports at and below an exhibit's place as one sweep.

    The sweep has the name of the exhibit's place, and `RunRecord.part` is the place of a run's part below it. An export
    at `top` itself keeps its own name if it is the only one. A part that cannot be read or has no round yet becomes a
    note, and so does a run that a newer run of the same trial replaces.

    Raises:
        ConfigError: no part can be read, or the parts are of different tasks.
    """
    top = _place(top)
    places = _places(top) or [top]
    if places == [top]:
        return read_export(top)
    parts: dict[str, SweepRecord] = {}
    notes: list[str] = []
    for place in places:
        part = place.relative_to(top).as_posix() if place != top else ""
        try:
            parts[part] = read_export(place)
        except ConfigError as error:
            if len(places) == 1:
                raise
            notes.append(f"{part or top.name}{LEFT_OUT}{error}")
    if not parts:
        raise ConfigError(f"{top}: none of its {len(places)} exports can be read; {notes[0]}")
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
    return SweepRecord(top.name, top.name, first.task, first.description, newest, notes + replaced, about)


def _newest(runs: list[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """Return the runs without those that a newer run of their trial in another part replaces, and a note on each."""
    trials: dict[object, list[RunRecord]] = {}
    for run in runs:
        trials.setdefault(run.identity, []).append(run)
    dropped: dict[int, str] = {}
    for members in trials.values():
        last = max(members, key=lambda run: run.history.started_ms)
        for run in members:
            if run.part != last.part:
                dropped[id(run)] = f"{run.full_name}{LEFT_OUT}{last.full_name} is a newer run of the same trial"
    return [run for run in runs if id(run) not in dropped], list(dropped.values())
