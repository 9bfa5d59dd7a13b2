"""What a sweep has left, compared with an unbroken run: journals, MLflow, CSV files and final models."""

from __future__ import annotations

import csv
import hashlib
import json
import sqlite3
import zipfile
from collections import Counter
from collections.abc import Iterable
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
        rounds: by trial and by the round's number (as text, as JSON has it): ``metrics``, the simulated ones, and
            ``schedule``.
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
    values = {name: value for name, value in entry["metrics"].items() if not name.startswith("wall/")}
    return {"metrics": values, **{name: entry.get(name) for name in ("schedule", "timeline")}}


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
    lines = []
    journals = {key: Journal(folder).entries(key) for key in Journal(folder).run_keys()}
    lines += _missing("journal", set(journals), set(reference.rounds))
    try:
        runs = logged_runs(database, folder.name)
    except sqlite3.Error as error:
        return [*lines, f"MLflow's database cannot be read: {error}"]
    lines += _missing("MLflow", set(runs), set(reference.rounds))
    for trial, expected in reference.rounds.items():
        rounds = [entry for entry in journals.get(trial, []) if "round" in entry]
        lines += [f"{trial}: journal: {line}" for line in _against_reference(rounds, expected)]
        if not any("end" in entry for entry in journals.get(trial, [])[-1:]):
            lines.append(f"{trial}: journal: the last line is not the end")
        values = {int(entry["round"]): entry["metrics"] for entry in rounds}
        if made_again:
            values = {number: _without_times(of_round) for number, of_round in values.items()}
        if trial in runs:
            lines += [f"{trial}: MLflow: {line}" for line in _against_journal(runs[trial], values, store, made_again)]
        lines += [f"{trial}: CSV: {line}" for line in _csv(folder / "csv" / f"{trial}.csv", values, made_again)]
        model = final_model(place or folder, trial, len(expected))
        if model != reference.models[trial]:
            lines.append(f"{trial}: the final model is {model}, not {reference.models[trial]}")
    return lines


def _missing(place: str, names: set[str], expected: set[str]) -> list[str]:
    lines = [f"{place}: nothing of {name}" for name in sorted(expected - names)]
    return lines + [f"{place}: an unknown run {name}" for name in sorted(names - expected)]


def _against_reference(rounds: list[dict[str, Any]], expected: dict[str, dict[str, Any]]) -> list[str]:
    numbers = [str(entry["round"]) for entry in rounds]
    lines = _counts(numbers, list(expected))
    for entry in rounds:
        other, own = expected.get(str(entry["round"])), simulated(entry)
        if other is not None and own != other:
            names = [name for name in {**own["metrics"], **other["metrics"]}
                     if own["metrics"].get(name) != other["metrics"].get(name)]  # fmt: skip
            named = ", ".join(f"{name} {own['metrics'].get(name)} not {other['metrics'].get(name)}" for name in names)
            lines.append(f"round {entry['round']}: {named or 'another schedule or timeline'}")
    return _shortened(lines)


def _counts(numbers: list[str], expected: list[str]) -> list[str]:
    count = Counter(numbers)
    lines = [f"round {number} is lost" for number in expected if number not in count]
    lines += [f"round {number} is there {times} times" for number, times in count.items() if times > 1]
    lines += [f"round {number} should not be there" for number in count if number not in expected]
    if not lines and numbers != expected:
        lines.append(f"the rounds are in another order: {', '.join(numbers)}")
    return lines


def _without_times(values: dict[str, float]) -> dict[str, float]:
    """Return values without those that are measured."""
    return {name: value for name, value in values.items() if not name.startswith("wall/")}


def _against_journal(
    runs: list[LoggedRun], journal: dict[int, dict[str, float]], store: Path | None, made_again: bool
) -> list[str]:
    if len(runs) > 1:
        return [f"{len(runs)} runs instead of one"]
    (run,) = runs
    lines = [] if run.status == "FINISHED" else [f"the run is {run.status}"]
    expected = {(name, number): value for number, values in journal.items() for name, value in values.items()}
    logged = [row for row in run.metrics if not (made_again and row[0].startswith("wall/"))]
    count = Counter((name, step) for name, step, _ in logged)
    lines += [f"{name} of round {step} is there {times} times" for (name, step), times in count.items() if times > 1]
    lines += [f"{name} of round {step} is lost" for name, step in expected if (name, step) not in count]
    lines += [f"{name} of round {step} is not in the journal" for name, step in count if (name, step) not in expected]
    for name, step, value in logged:
        if (name, step) in expected and value != expected[name, step]:
            lines.append(f"{name} of round {step} is {value}, not {expected[name, step]}")
    folder = Path(run.artifacts.removeprefix("file://"))
    if store is not None:
        folder = store / run.artifacts.removeprefix("mlflow-artifacts:/")
    lines += [f"the artifact {name} is lost" for name in ARTIFACTS if not (folder / name).is_file()]
    return _shortened(lines or _cut_artifacts(folder, len(journal)))


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


def _csv(path: Path, journal: dict[int, dict[str, float]], made_again: bool) -> list[str]:
    if not path.exists():
        return ["there is no file"]
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = _counts([row["round"] for row in rows], [str(number) for number in journal])
    for row in rows if not lines else []:
        logged = {name: float(text) for name, text in row.items() if name != "round" and text}
        if (_without_times(logged) if made_again else logged) != journal[int(row["round"])]:
            lines.append(f"round {row['round']} has other values than the journal")
    return _shortened(lines)


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more} more"] if more > 0 else lines
