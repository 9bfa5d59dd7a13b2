"""What a sweep has left, compared with an unbroken run: journals, MLflow, CSV files and final models."""

from __future__ import annotations

import csv
import hashlib
import json
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as parquet
import yaml

from hflray.errors import ConfigError
from hflray.support import checkpoint
from hflray.support.arrays import deflated
from hflray.support.checkpoint import Checkpoints
from hflray.tracking import Journal
from tests.chaos.sweep import NAME

if TYPE_CHECKING:
    from hflray.sweep import Trial

ARTIFACTS = ("config.yaml", "rounds.parquet", "model/MLmodel")  # what MLflow has of every run that has ended
SHOWN = 5  # how many differences of a kind are named


@dataclass
class Reference:
    """The unbroken run.

    Attributes:
        rounds: by trial and by the round's number (as text, as JSON has it): simulated metrics, schedule and timeline.
        models: the hash of each trial's final model.
    """

    rounds: dict[str, dict[str, dict[str, Any]]]
    models: dict[str, str]

    @classmethod
    def of_results(cls, results: Path) -> Reference:
        """Return the reference of a sweep that was not broken."""
        (folder,) = sorted(path.parent for path in results.glob(f"{NAME}-*/sweep.json"))
        journal, rounds = Journal(folder), {}
        for key in journal.run_keys():
            rounds[key] = {str(entry["round"]): simulated(entry) for entry in journal.entries(key) if "round" in entry}
        return cls(rounds, {trial: final_model(folder, trial, len(rounds[trial])) for trial in rounds})

    @classmethod
    def of_file(cls, path: Path) -> Reference:
        """Return the reference of a sweep file by plain loops in this process, without Ray."""
        from hflray.sweep import expand, load_sweep

        return cls.of_trials(expand(load_sweep(path)))

    @classmethod
    def of_draws(cls, path: Path, results: Path) -> Reference:
        """Return the reference of the trials that a search has drawn, with the values that its journals name."""
        from hflray.sweep import Trial, load_sweep, make_trial

        file, (folder,) = load_sweep(path), sorted(each.parent for each in results.glob(f"{NAME}-*/sweep.json"))
        trials = []
        for key in Journal(folder).run_keys():
            values = next(entry["values"] for entry in Journal(folder).entries(key) if "draw" in entry)
            trials.append(Trial(key, values, make_trial(file, values).config))
        if len(trials) != file.tune.samples:
            raise RuntimeError(f"the search has drawn {len(trials)} trials instead of {file.tune.samples}")
        return cls.of_trials(trials)

    @classmethod
    def of_trials(cls, trials: Iterable[Trial]) -> Reference:
        """Return the reference of these trials by plain loops in this process, without Ray."""
        from hflray.experiment import Experiment

        rounds, models = {}, {}
        for trial in trials:
            training = trial.config.training.model_copy(update={"backend": "serial"})
            with Experiment(trial.config.model_copy(update={"training": training})) as experiment:
                made: dict[str, dict[str, Any]] = {}
                for record in experiment:
                    values = record.metrics() | (experiment.summary() if experiment.finished else {})
                    entry = {"round": record.round, "metrics": values, "schedule": record.schedule()}
                    if record.deviates:
                        entry["timeline"] = deflated(record.timeline.table())
                    made[str(record.round)] = simulated(json.loads(json.dumps(entry)))
                rounds[trial.name] = made
                models[trial.name] = hashlib.sha256(experiment.global_model.tobytes()).hexdigest()
        return cls(rounds, models)


def simulated(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a journal's round that is the same in every run: all but the measured seconds."""
    return timed(entry["metrics"], True) | {name: entry.get(name) for name in ("schedule", "timeline")}


def final_model(folder: Path | str, trial: str, rounds: int) -> str:
    """Return the hash of the trial's model after its last round, or why there is none."""
    checkpoints = Checkpoints(str(folder), trial)
    saved = checkpoints.rounds()
    if rounds not in saved:
        return f"no checkpoint after round {rounds}; there are {saved}"
    try:
        with checkpoints.open(rounds) as state:
            return hashlib.sha256(checkpoint.load(state / "state")["global_model"].tobytes()).hexdigest()
    except ConfigError as error:
        return str(error)


@dataclass
class LoggedRun:
    """A run in MLflow's database: its status, its metrics as (name, round, value), and its artifacts' folder."""

    status: str
    metrics: list[tuple[str, int, float]]
    artifacts: str


def logged_runs(database: Path, sweep: str) -> dict[str, list[LoggedRun]]:
    """Return the runs of a sweep in MLflow's SQLite file, by trial."""
    tagged = "SELECT run_uuid FROM tags WHERE key = 'hflray.sweep' AND value = ?"
    runs: dict[str, list[LoggedRun]] = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        query = f"SELECT run_uuid, name, status, artifact_uri FROM runs WHERE run_uuid IN ({tagged})"
        for run_id, name, status, artifacts in connection.execute(query, (sweep,)).fetchall():
            rows = connection.execute("SELECT key, step, value FROM metrics WHERE run_uuid = ?", (run_id,)).fetchall()
            runs.setdefault(name, []).append(LoggedRun(status, rows, artifacts))
    return runs


def differences(
    results: Path,
    reference: Reference,
    database: Path,
    store: Path | None = None,
    place: str | None = None,
    name: str = NAME,
    made_again: bool = False,
) -> list[str]:
    """Return a line for everything that is lost, doubled or another value; an empty list if there is nothing.

    Args:
        results: the results of the sweep that was broken and went on.
        reference: the unbroken run.
        database: MLflow's SQLite file.
        store: the folder of the artifacts of an MLflow server; None if the driver has written them itself.
        place: where the checkpoints are; None if they are among the results.
        name: the name of the sweep.
        made_again: whether rounds that were sent may have been made again, in other measured times (``wall/…``).
    """
    folders = sorted(path.parent for path in results.glob(f"{name}-*/sweep.json"))
    if len(folders) != 1:
        return [f"{len(folders)} sweeps have begun, instead of one"]
    (folder,) = folders
    if not json.loads((folder / "sweep.json").read_text(encoding="utf-8"))["finished"]:
        return ["sweep.json says that the sweep is unfinished"]
    journals = {key: Journal(folder).entries(key) for key in Journal(folder).run_keys()}
    trials = dict.fromkeys(reference.rounds, True)
    lines = [f"journal: {line}" for line in against(trials, [(key, True) for key in journals])]
    try:
        runs = logged_runs(database, folder.name)
    except sqlite3.Error as error:
        return [*lines, f"MLflow's database cannot be read: {error}"]
    lines += [f"MLflow: {line}" for line in against(trials, [(key, True) for key, of in runs.items() for _ in of])]
    for trial, expected in reference.rounds.items():
        rounds = [entry for entry in journals.get(trial, []) if "round" in entry]
        made = [pair for entry in rounds for pair in named(entry["round"], simulated(entry))]
        wanted = [pair for number, values in expected.items() for pair in named(number, values)]
        lines += [f"{trial}: journal: {line}" for line in against(dict(wanted), made)]
        if not any("end" in entry for entry in journals.get(trial, [])[-1:]):
            lines.append(f"{trial}: journal: the last line is not the end")
        values = {entry["round"]: timed(entry["metrics"], made_again) for entry in rounds}
        for run in runs.get(trial, []):
            lines += [f"{trial}: MLflow: {line}" for line in _against_journal(run, values, store, made_again)]
        lines += [f"{trial}: CSV: {line}" for line in _csv(folder / "csv" / f"{trial}.csv", values, made_again)]
        model = final_model(place or folder, trial, len(expected))
        if model != reference.models[trial]:
            lines.append(f"{trial}: the final model is {model}, not {reference.models[trial]}")
    return lines


def timed(values: Mapping[str, float], made_again: bool) -> dict[str, float]:
    """Return values, without those that are measured where rounds may have been made again."""
    return {name: value for name, value in values.items() if not (made_again and name.startswith("wall/"))}


def named(number: object, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what a round has, by name."""
    return [(f"round {number}", True), *((f"{name} of round {number}", value) for name, value in values.items())]


def against(expected: Mapping[str, Any], made: Sequence[tuple[str, Any]]) -> list[str]:
    """Return a line for each name that is lost, doubled, not expected, has another value, or stands elsewhere."""
    count, values = Counter(name for name, _ in made), dict(made)
    lines = [f"{name} is lost" for name in expected if name not in count]
    lines += [f"{name} is there {times} times" for name, times in count.items() if times > 1]
    lines += [f"{name} should not be there" for name in count if name not in expected]
    lines += [
        f"{name} is {value!s:.200}, not {expected[name]!s:.200}"
        for name, value in values.items()
        if name in expected and value != expected[name]
    ]
    if not lines and [name for name in values if "round " in name[:6]] != [n for n in expected if "round " in n[:6]]:
        lines.append("the rounds are in another order")
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more} more"] if more > 0 else lines


def _against_journal(
    run: LoggedRun, journal: Mapping[int, Mapping[str, float]], store: Path | None, made_again: bool
) -> list[str]:
    lines = [] if run.status == "FINISHED" else [f"the run is {run.status}"]
    expected = {f"{name} of round {number}": value for number, of in journal.items() for name, value in of.items()}
    made = [(f"{name} of round {step}", value) for name, step, value in run.metrics if timed({name: value}, made_again)]
    lines += against(expected, made)
    folder = Path(run.artifacts.removeprefix("file://"))
    if store is not None:
        folder = store / run.artifacts.removeprefix("mlflow-artifacts:/")
    lines += [f"the artifact {name} is lost" for name in ARTIFACTS if not (folder / name).is_file()]
    return lines or _cut_artifacts(folder, len(journal))


def _cut_artifacts(folder: Path, rounds: int) -> list[str]:
    """Return a line for each artifact that is there in part."""
    lines = []
    try:
        yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["max_rounds"]
        if (count := parquet.read_table(folder / "rounds.parquet").num_rows) != rounds:
            lines.append(f"the artifact rounds.parquet has {count} rounds")
        for path in (folder / "model").glob("data/*.pt2"):
            if not zipfile.is_zipfile(path) or zipfile.ZipFile(path).testzip():
                lines.append(f"the artifact {path.relative_to(folder)} is cut off")
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        lines.append(f"an artifact is cut off: {error}")
    return lines


def _csv(path: Path, journal: Mapping[int, Mapping[str, float]], made_again: bool) -> list[str]:
    if not path.exists():
        return ["there is no file"]
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    made: list[tuple[str, Any]] = []
    for row in rows:
        values = {name: float(text) for name, text in row.items() if name != "round" and text}
        made += named(row["round"], timed(values, made_again))
    return against(dict(pair for number, values in journal.items() for pair in named(number, values)), made)
