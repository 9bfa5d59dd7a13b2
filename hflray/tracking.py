"""What is logged where: MLflow for comparing, a local journal so that nothing depends on MLflow.

One flat run per trial (nested runs hide their curves), one batch per round with the round as the step, parameters
under the configuration's own dotted names. The journal, one JSON line per round in ``<sweep>/journal/<trial>.jsonl``,
is written first and holds all that a run needs; a thread sends it on. A tracking server that is away, slow or full
costs warnings, never a trial: what it missed follows when it is back, or with ``python -m hflray.tracking sync``.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hflray import __version__, checkpoint
from hflray.config import ExperimentConfig, flatten, to_yaml
from hflray.data import Dataset
from hflray.errors import ConfigError, HflrayError
from hflray.metrics import ROUND_OBJECTIVE
from hflray.models import build_model, load_vector
from hflray.provenance import environment
from hflray.provenance import git_commit as git_commit

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0  # how long a failing server is left alone
CLOSE_WITHIN_S = 20.0  # how long the end of a sweep waits for a server that does not answer
EXTRA_ATTEMPTS = 3
BATCH = 1000  # metrics in one request, MLflow's limit
TAG_LENGTH = 5000  # of a tag's text, MLflow's limit

# Set before mlflow is imported: its own five retries with backoff take minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # a bar for every small file it fetches


@cache
def _environment_text() -> str:
    return json.dumps(environment(), indent=1)


def default_uri(results: Path) -> str:
    """SQLite in the results folder: one file, no server."""
    return f"sqlite:///{results.resolve() / 'mlflow.db'}"


@dataclass
class _Run:
    """A run as the journal has it, and what MLflow has not got yet.

    Attributes:
        pending: rounds to be sent: (round, time in ms, metrics).
        behind: rounds to be sent are in the journal, those after `sent`; of them not all need be in `pending`.
        sent: the last round that MLflow has; -1: none.
        made: how many rounds were given to this process.
    """

    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    artifacts: dict[str, str]
    dataset: dict[str, str] | None = None
    run_id: str | None = None
    pending: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    behind: bool = False
    sent: int = -1
    made: int = 0
    status: str | None = None
    end_tags: dict[str, str] = field(default_factory=dict)
    extras: list[Callable[[Any, str], None]] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        return self.run_id is None or bool(self.pending or self.behind or self.extras) or self.status is not None

    def settle(self) -> None:
        """It has ended and all of it is in MLflow: a sweep of thousands of trials must not fill the driver's memory."""
        self.params, self.tags, self.artifacts, self.dataset, self.end_tags = {}, {}, {}, None, {}


class Tracker:
    """Writes a sweep's runs to the journal, and from there to MLflow in a thread of its own.

    Args:
        uri: MLflow tracking URI.
        experiment: name of the MLflow experiment; made if it is new.
        sweep: tag ``hflray.sweep`` of all runs.
        folder: of this sweep's results.
        required: raise if the store cannot be opened now; else warn and keep trying.

    Raises:
        ConfigError: `required`, and the store cannot be opened.
    """

    def __init__(self, uri: str, experiment: str, sweep: str, folder: Path, required: bool = False) -> None:
        self.uri, self.sweep, self.folder = uri, sweep, folder
        self.experiment_id: str | None = None
        self._experiment, self._journal = experiment, folder / "journal"
        self._client: Any = None
        self._runs: dict[str, _Run] = {}
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._closing = self._warned = self._journal_broken = False
        self._attempts_at_close = 0
        try:
            self._open()
        except ConfigError:
            raise
        except Exception as error:  # whatever a server, a proxy, a driver or a full disk raises
            reason = _first_line(error)
            if required:
                raise ConfigError(
                    f"tracking.uri: cannot open '{uri}' ({reason}); start that server, or leave --require-tracking out"
                ) from error
            self._complain(reason)
        self._thread = threading.Thread(target=self._work, name="hflray-tracking", daemon=True)
        self._thread.start()

    def start(
        self,
        key: str,
        name: str,
        config: ExperimentConfig,
        tags: Mapping[str, str],
        dataset: Mapping[str, str] | None = None,
    ) -> None:
        """Open a run, or find it again after a restart by its tags ``hflray.sweep`` and ``hflray.trial``."""
        # `learning` is not this run's unless it says otherwise: forty settings that no comparison needs.
        learns = tags.get("hflray.task") == "train_assigner" or config.learning.model_fields_set
        unused = ("tracking.",) if learns else ("tracking.", "learning.")
        run = _Run(
            name=name,
            params={k: v for k, v in flatten(config.model_dump(mode="json")).items() if not k.startswith(unused)},
            tags={
                "hflray.sweep": self.sweep,
                "hflray.trial": key,
                "hflray.dataset": config.data.name,
                "hflray.scheduler": config.scheduling.name,
                "hflray.assigner": config.assignment.name,
                **tags,
            },
            artifacts={"config.yaml": to_yaml(config), "environment.json": _environment_text()},
            dataset=dict(dataset) if dataset else None,
        )
        # Rounds of an earlier process may not have reached MLflow.
        run.behind = (self._journal / f"{key}.jsonl").exists()
        self._write(key, {"start": _now_ms(), "name": name, **_described(run)})
        with self._lock:
            self._runs[key] = run
        self._wake.set()

    def round(
        self,
        key: str,
        step: int,
        values: Mapping[str, float],
        schedule: Mapping[str, Any] | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> None:
        """Log one round's metrics with the round as the step; values that are not finite are left out.

        `schedule` (who took part and what each was given) and `devices` (what is true of all rounds) go to the journal,
        and from there into the run's tables, see `tables`.
        """
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        stamp = _now_ms()
        if devices is not None:
            self._write(key, {"devices": devices})
        entry = {"round": step, "time": stamp, "metrics": finite}
        with self._lock:
            run = self._runs[key]
            written = self._write(key, entry if schedule is None else entry | {"schedule": schedule})
            run.made += 1
            if written and (self._warned or run.behind):
                run.behind = True  # MLflow may be away for long: the journal remembers, the driver's memory does not
            else:
                run.pending.append((step, stamp, finite))
        self._wake.set()

    def extra(self, key: str, send: Callable[[Any, str], None]) -> None:
        """Have ``send(client, run_id)`` called once the run is there: artifacts, the model. Tried three times."""
        attempts = 0

        def patiently(client: Any, run_id: str) -> None:
            nonlocal attempts
            attempts += 1
            try:
                send(client, run_id)
            except Exception as error:
                if attempts < EXTRA_ATTEMPTS:
                    raise
                log.warning("%s: an artifact could not be logged: %s", self._runs[key].name, _first_line(error))

        with self._lock:
            self._runs[key].extras.append(patiently)
        self._wake.set()

    def finish(self, key: str, error: str | None = None, tags: Mapping[str, str] | None = None) -> None:
        """Close a run: FINISHED, or FAILED with the reason as the tag ``hflray.error``; `tags` are set as well."""
        tags = {**(tags or {}), **({"hflray.error": error} if error else {})}
        with self._lock:
            run = self._runs.get(key)
            if run is None:
                return
            run.status, run.end_tags = "FAILED" if error else "FINISHED", tags
        self._write(key, {"end": "FAILED" if error else "FINISHED", "error": error, "tags": tags})
        self._wake.set()

    def history(self, key: str) -> list[tuple[int, dict[str, float]]]:
        """The journal's rounds of a run, each once, in order."""
        return [(index, values) for index, _, values in _unsent(_entries(self._journal / f"{key}.jsonl"))]

    def tables(self, key: str) -> Tables:
        """The journal of a run as tables."""
        return _tables(_entries(self._journal / f"{key}.jsonl"))

    def ended(self, key: str) -> tuple[bool, str | None]:
        """Whether the journal says that a run ended, and why if it failed."""
        for entry in reversed(_entries(self._journal / f"{key}.jsonl")):
            if "end" in entry:
                return True, entry["error"]
            if "start" in entry:
                break
        return False, None

    def end_tags(self, key: str) -> dict[str, str]:
        """The tags that an ended run was closed with; empty of one that has not ended."""
        for entry in reversed(_entries(self._journal / f"{key}.jsonl")):
            if "end" in entry:
                return dict(entry.get("tags", {}))
            if "start" in entry:
                break
        return {}

    def run_ids(self, keys: Iterable[str] | None = None) -> list[str]:
        """MLflow's ids of the runs, in the order of `keys`, or else as they were opened; those it knows of."""
        with self._lock:
            runs = [self._runs[key] for key in (self._runs if keys is None else keys) if key in self._runs]
            return [run.run_id for run in runs if run.run_id is not None]

    def close(self, within_s: float = CLOSE_WITHIN_S) -> bool:
        """Send what is left; True if everything arrived.

        A server that answers is given the time it needs, one that does not at most `within_s`. Ctrl-C ends the wait.
        """
        self._closing = True
        self._wake.set()
        deadline = time.monotonic() + within_s
        with suppress(KeyboardInterrupt):
            while self._thread.is_alive() and (not self._warned or time.monotonic() < deadline):
                self._thread.join(timeout=0.2)
        with self._lock:
            lost = [run.name for run in self._runs.values() if run.waiting]
        if lost:
            log.warning(
                "MLflow has not received everything of %s. It is all in %s; when the server is back: "
                "python -m hflray.tracking sync %s",
                ", ".join(lost), self._journal, self.folder,
            )  # fmt: skip
        return not lost

    def adopt(self, key: str) -> None:
        """Take over a run from the journal, to send what MLflow does not have of it."""
        entries = _entries(self._journal / f"{key}.jsonl")
        starts = [entry for entry in entries if "start" in entry]
        if not starts:
            return
        first = starts[-1]
        run = _Run(first["name"], first["params"], first["tags"], first["artifacts"], first["dataset"])
        run.behind = True
        over, error = self.ended(key)
        if over:
            run.status, run.end_tags = "FAILED" if error else "FINISHED", self.end_tags(key)
        with self._lock:
            self._runs[key] = run
        self._wake.set()

    def adopt_all(self) -> None:
        """Take over every run of the journal."""
        for path in sorted(self._journal.glob("*.jsonl")):
            self.adopt(path.stem)

    # ---- the sending thread

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                waiting = [(key, run) for key, run in self._runs.items() if run.waiting]
            try:
                if self._client is None or self.experiment_id is None or (self._warned and waiting):
                    self._open()  # or asks whether it is back, before anything is gathered for it
                for key, run in waiting:
                    self._send(key, run)
                if self._warned and waiting:
                    log.warning("MLflow at %s answers again", self.uri)
                    self._warned = False
            except Exception as error:
                self._complain(_first_line(error))
                if self._closing and not self._retry_at_close():
                    return
                threading.Event().wait(min(RETRY_AFTER_S, 1.0) if self._closing else RETRY_AFTER_S)
                self._wake.set()
                continue
            with self._lock:
                done = not any(run.waiting for run in self._runs.values())
            if self._closing and done:
                return
            if not done:
                self._wake.set()

    def _retry_at_close(self) -> bool:
        self._attempts_at_close += 1
        return self._attempts_at_close <= CLOSE_WITHIN_S

    def _open(self) -> None:
        client = _client(self.uri)
        known = client.get_experiment_by_name(self._experiment)
        if known is None:
            # Beside the database, not in whatever folder the command happened to run.
            place = str((self.folder.parent / "artifacts").resolve()) if self.uri.startswith("sqlite") else None
            try:
                client.create_experiment(self._experiment, artifact_location=place)
            except Exception:  # somebody made it in the meantime, or the answer was lost: look again
                log.debug("create_experiment failed", exc_info=True)
            known = client.get_experiment_by_name(self._experiment)
            if known is None:
                raise HflrayError(f"experiment '{self._experiment}' cannot be created")
        if known.lifecycle_stage != "active":
            raise ConfigError(
                f"tracking.experiment: '{self._experiment}' was deleted in MLflow; restore it, or use another name"
            )
        self._client, self.experiment_id = client, str(known.experiment_id)

    def _send(self, key: str, run: _Run) -> None:
        from mlflow.entities import Metric

        client = self._client
        if run.run_id is None:
            self._attach(run)
        run_id = run.run_id
        assert run_id is not None
        path = self._journal / f"{key}.jsonl"
        with self._lock:
            batch, behind, made, run_over = list(run.pending), run.behind, run.made, run.status
            size = path.stat().st_size if behind else 0
        if behind:
            missed = {entry[0]: entry for entry in [*_unsent(_entries(path, size)), *batch]}
            batch = [missed[step] for step in sorted(missed) if step > run.sent]
        while batch:  # whole rounds only: what arrived of a run is then known by its last step
            count = size = 0
            while count < len(batch) and (not count or size + len(batch[count][2]) <= BATCH):
                size += len(batch[count][2])
                count += 1
            part, batch = batch[:count], batch[count:]
            metrics = [Metric(name, v, stamp, step) for step, stamp, values in part for name, v in values.items()]
            client.log_batch(run_id, metrics=metrics)
            steps = {step for step, _, _ in part}
            with self._lock:
                run.pending = [entry for entry in run.pending if entry[0] not in steps]
                run.sent = max(run.sent, *steps)
        if behind:
            with self._lock:
                run.behind = run.made > made
        while run.extras:
            run.extras[0](client, run_id)
            with self._lock:
                del run.extras[0]
        if run_over is not None:
            for name, value in run.end_tags.items():
                client.set_tag(run_id, name, value[:TAG_LENGTH])
            client.set_terminated(run_id, run_over)
            with self._lock:
                run.status = None if run.status == run_over else run.status
                if not run.waiting:
                    run.settle()

    def _attach(self, run: _Run) -> None:
        """Find the run by its tags, and drop the rounds it has already; or make it."""
        from mlflow.entities import Param

        client, tags = self._client, run.tags
        query = f"tags.`hflray.sweep` = '{tags['hflray.sweep']}' and tags.`hflray.trial` = '{tags['hflray.trial']}'"
        found = client.search_runs([self.experiment_id], query)
        if found:
            run_id = found[0].info.run_id
            client.update_run(run_id, status="RUNNING")
            every = sorted(found[0].data.metrics, key=lambda name: name != ROUND_OBJECTIVE)[:1]
            last = max((m.step for name in every for m in client.get_metric_history(run_id, name)), default=-1)
            with self._lock:
                run.sent = last
                run.pending = [entry for entry in run.pending if entry[0] > last]
        else:
            run_id = client.create_run(self.experiment_id, run_name=run.name, tags=tags).info.run_id
        if "config.yaml" not in {artifact.path for artifact in client.list_artifacts(run_id)}:
            client.log_batch(run_id, params=[Param(name, str(value)) for name, value in run.params.items()])
            if run.dataset is not None:
                _log_input(client, run_id, run.dataset)
            for name in sorted(run.artifacts, reverse=True):  # config.yaml last: it says that all this is done
                client.log_text(run_id, run.artifacts[name], name)
        run.run_id = run_id

    def _complain(self, reason: str) -> None:
        if not self._warned:
            log.warning("MLflow at %s does not answer; keeping the rounds for later: %s", self.uri, reason)
        self._warned = True

    def _write(self, key: str, entry: Mapping[str, Any]) -> bool:
        """Append a line to a run's journal; False if that cannot be written."""
        try:
            self._journal.mkdir(parents=True, exist_ok=True)
            with (self._journal / f"{key}.jsonl").open("ab+") as file:
                text = json.dumps(entry, ensure_ascii=False) + "\n"
                if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    text = "\n" + text  # a line that a kill or a full disk cut off takes no other with it
                file.write(text.encode())
            return True
        except OSError as error:
            if not self._journal_broken:
                log.warning("%s cannot be written (%s); rounds go to MLflow only", self._journal, error.strerror)
            self._journal_broken = True
            return False


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    for chatty in ("mlflow", "alembic", "urllib3"):  # after the import, which sets their levels itself
        logging.getLogger(chatty).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _first_line(error: Exception) -> str:
    """What went wrong, in a line; of what a connection raises, which is long, the end."""
    text = str(error).strip() or type(error).__name__
    if known := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return known[1].strip().lower()
    if "timed out" in text:
        return "no answer in time"
    return text.splitlines()[0][:200]


def _described(run: _Run) -> dict[str, Any]:
    return {"params": run.params, "tags": run.tags, "artifacts": run.artifacts, "dataset": run.dataset}


def _entries(path: Path, size: int = -1) -> list[dict[str, Any]]:
    """The journal's whole lines, or those of its first `size` bytes; a line cut off by a kill is left out."""
    entries = []
    if path.exists():
        with path.open("rb") as file:
            text = file.read(size).decode(errors="replace")
        for line in text.split("\n"):
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
    return entries


def _unsent(entries: list[dict[str, Any]]) -> list[tuple[int, int, dict[str, float]]]:
    """The rounds among journal entries, each once, in order: (round, time in ms, metrics)."""
    rounds = {
        entry["round"]: (entry["round"], entry["time"], entry["metrics"]) for entry in entries if "round" in entry
    }
    return [rounds[index] for index in sorted(rounds)]


def _log_input(client: Any, run_id: str, dataset: Mapping[str, str]) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    entity = Dataset(
        name=dataset["name"],
        digest=dataset["digest"],
        source_type="hflray",
        source=dataset["source"],
        profile=dataset["profile"],
    )
    client.log_inputs(run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", "training")])])


@dataclass(frozen=True)
class Tables:
    """A run's rounds, and its devices if they are known.

    Attributes:
        rounds: a row per round: ``round``, the glossary's metrics by name, and of small fleets (H,) lists: ``devices``
            (indices), ``edges``, ``bandwidth_hz``, ``cpu_hz``.
        devices: a row per device: ``device``, ``samples``, ``cluster`` (if there are any), ``class/<c>``: its samples
            of class c. None where the run kept none.
    """

    rounds: pd.DataFrame
    devices: pd.DataFrame | None = None

    def write(self, folder: Path) -> list[Path]:
        """Write ``rounds.parquet`` and, if there are any, ``devices.parquet``; return their paths."""
        named = {"rounds.parquet": self.rounds, "devices.parquet": self.devices}
        paths = []
        for name, table in named.items():
            if table is not None:
                table.to_parquet(folder / name, compression="zstd")
                paths.append(folder / name)
        return paths


def _tables(entries: list[dict[str, Any]]) -> Tables:
    import pandas as pd

    rows = {e["round"]: {"round": e["round"], **e["metrics"], **e.get("schedule", {})} for e in entries if "round" in e}
    rounds = pd.DataFrame([rows[index] for index in sorted(rows)])
    known = [entry["devices"] for entry in entries if "devices" in entry]
    if not known:
        return Tables(rounds)
    last = known[-1]
    devices = pd.DataFrame({"device": range(len(last["samples"])), "samples": last["samples"]})
    if "clusters" in last:
        devices["cluster"] = last["clusters"]
    counts = np.asarray(last["class_counts"])
    return Tables(rounds, devices.join(pd.DataFrame(counts, columns=[f"class/{c}" for c in range(counts.shape[1])])))


def log_tables(client: Any, run_id: str, tables: Tables) -> None:
    """Log a run's tables as ``rounds.parquet`` and ``devices.parquet``."""
    with tempfile.TemporaryDirectory() as folder:
        for path in tables.write(Path(folder)):
            client.log_artifact(run_id, str(path))


@dataclass
class _ModelFiles:
    """An MLflow model of one architecture and data set, to be written again with other weights.

    Made once for all trials alike: tracing a model takes MLflow 0.2 s of CPU, and torch some memory that it never gives
    back. `program` is the trace, `folder` holds what MLflow made of the first.
    """

    program: Any
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def make(cls, module: Any, example: np.ndarray[Any, Any]) -> _ModelFiles:
        import mlflow.pytorch
        import torch
        from mlflow.models import infer_signature

        with torch.no_grad():
            answer = module(torch.from_numpy(example)).numpy()
        folder = tempfile.TemporaryDirectory(prefix="hflray-model-")
        mlflow.pytorch.save_model(
            module,
            str(Path(folder.name) / "model"),
            signature=infer_signature(example, answer),
            input_example=example,
            pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}", f"hflray=={__version__}"],
        )
        return cls(torch.export.load(cls._trace(Path(folder.name) / "model")), folder)

    @staticmethod
    def _trace(folder: Path) -> Path:
        (path,) = folder.glob("data/*.pt2")
        return path

    def write(self, folder: Path, module: Any) -> None:
        """Write the model with the weights of `module`."""
        import torch
        from mlflow.models import Model

        shutil.copytree(Path(self.folder.name) / "model", folder)
        weights = module.state_dict()
        with torch.no_grad():
            for name, value in self.program.state_dict.items():
                value.copy_(weights[name])
        torch.export.save(self.program, self._trace(folder))
        about = Model.load(str(folder))
        about.model_uuid, about.utc_time_created = uuid.uuid4().hex, str(datetime.now(UTC).replace(tzinfo=None))
        about.save(str(folder / "MLmodel"))


_model_files: dict[tuple[Any, ...], _ModelFiles] = {}


def log_final_model(client: Any, run_id: str, state: Path, dataset: Dataset) -> None:
    """Log the global model of a checkpoint as an MLflow model ``model``, with signature and an input example.

    It takes images as the trained network saw them: float32, scaled to [0, 1] and normalised by channel.
    """
    module = build_model("hfl", dataset.image_shape, dataset.num_classes)
    load_vector(module, checkpoint.load(state)["global_model"])
    module.eval()
    mean, std = (v.reshape(1, -1, 1, 1) for v in (dataset.channel_mean, dataset.channel_std))
    example = ((dataset.x_test[:2] / np.float32(255)) - mean) / std
    key = (dataset.image_shape, dataset.num_classes, example.tobytes())
    if key not in _model_files:
        _model_files[key] = _ModelFiles.make(module, example)
    with tempfile.TemporaryDirectory() as folder:
        _model_files[key].write(Path(folder) / "model", module)
        client.log_artifacts(run_id, str(Path(folder) / "model"), "model")


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
        client = _client(uri)
        known = client.get_experiment_by_name(experiment)
        query = f"tags.`hflray.sweep` = '{sweep}'"
        found = client.search_runs([known.experiment_id], query, order_by=["start_time"]) if known else []
    except Exception as error:
        raise ConfigError(f"MLflow at {uri} does not answer ({_first_line(error)}); start that server") from error
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
        environment: see `environment`.
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
            raise ConfigError(f"MLflow at {uri} does not answer ({_first_line(error)}); start that server") from error
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


def read_journal(folder: Path) -> list[History]:
    """The runs of a sweep as its journal has them, in the order they were begun. Raises ConfigError: there is none."""
    histories = []
    for path in sorted((folder / "journal").glob("*.jsonl")):
        entries = _entries(path)
        starts = [number for number, entry in enumerate(entries) if "start" in entry]
        if not starts:
            continue
        first, last = entries[starts[0]], entries[starts[-1]]
        ends = [entry for entry in entries[starts[-1] :] if "end" in entry]
        values: dict[str, float] = {}
        for _, _, of_round in _unsent(entries):
            values |= of_round
        histories.append(
            History(
                name=last["name"],
                status=ends[-1]["end"] if ends else "RUNNING",
                error=ends[-1]["error"] if ends else None,
                config=last["artifacts"]["config.yaml"],
                environment=json.loads(last["artifacts"]["environment.json"]),
                values=values,
                tables=_tables(entries),
                started_ms=first["start"],
                ended_ms=max((entry["time"] for entry in entries if "time" in entry), default=last["start"]),
            )
        )
    if not histories:
        raise ConfigError(f"{folder / 'journal'}: holds no run; give the folder of a sweep's results")
    return sorted(histories, key=lambda history: history.started_ms)


def sync(folder: Path, uri: str | None = None) -> bool:
    """Send to MLflow whatever of a sweep's journal it does not have; True if all of it arrived.

    Args:
        folder: of the sweep's results.
        uri: None: the URI the sweep was logged to.

    Raises:
        ConfigError: the folder holds no journal, or the server does not answer.
    """
    try:
        about = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder}: holds no sweep ({_first_line(error)}); give the folder of a sweep's results"
        ) from error
    tracker = Tracker(uri or about["uri"], about["experiment"], folder.name, folder, required=True)
    tracker.adopt_all()
    return tracker.close()


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.tracking sync FOLDER``."""
    parser = argparse.ArgumentParser(prog="python -m hflray.tracking", description="Send what MLflow has missed.")
    parser.add_argument("command", choices=["sync"])
    parser.add_argument("folder", type=Path, help="the sweep's results, hflray_results/NAME-…")
    parser.add_argument("--tracking-uri", help="the MLflow server; default: the one of the sweep")
    given = parser.parse_args(arguments)
    try:
        complete = sync(given.folder, given.tracking_uri)
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("everything is in MLflow" if complete else "not everything arrived; try again")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
