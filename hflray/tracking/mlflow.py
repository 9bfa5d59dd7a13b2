"""MLflow as a tracker: one flat run per trial, the round as the step, the final model with signature and example.

MLflow is imported in this file only, and only when it is needed, because the import takes seconds. The final model has
MLflow's own format (`mlflow.pytorch.save_model`, without pickle). Its files are made once for all trials of an
architecture and data set, and then written again with other weights. Calling `mlflow.pytorch.log_model` for each trial
would be simpler. On Fashion-MNIST's model, beside other work, it took 5.5 s a trial on a local server instead of 0.4 s,
0.26 s of CPU on SQLite instead of 0.03 s, and left 260 kB in the driver's memory instead of 15.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from hflray import __version__
from hflray.errors import ConfigError, HflrayError
from hflray.metrics import ROUND_OBJECTIVE
from hflray.support.text import one_line, shown_address
from hflray.tracking.addresses import ARTIFACTS, database_path, refuse_elsewhere, with_credentials
from hflray.tracking.artifacts import FinalModel
from hflray.tracking.sink import Artifact, Ending, Place, Round, Run, Sink

log = logging.getLogger(__name__)

TAG_LENGTH = 5000  # MLflow's limit on the length of a tag's value

# These are set before mlflow is imported, because its default of five retries with backoff takes minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")  # else every small download shows a bar
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # else a server's runs print two lines each


def import_soon() -> None:
    """Import MLflow in a thread of its own, so that the driver can wait for Ray's processes meanwhile."""
    threading.Thread(target=__import__, args=("mlflow",), name="hflray-import-mlflow", daemon=True).start()


def client_of(uri: str) -> Any:
    """Return MLflow's client for a tracking URI."""
    from mlflow import MlflowClient

    # This comes after the import, which sets levels itself. They log tracebacks of errors that they also raise.
    for name in ("mlflow", "alembic", "urllib3", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return MlflowClient(tracking_uri=with_credentials(uri))


def database_uri(path: Path) -> str:
    """Return the tracking URI of an SQLite file, which needs no server.

    SQLAlchemy ends the path of a URI at ``?`` and decodes it. MLflow makes the folder that it reads in a URI of
    ``sqlite:///`` without decoding it, and none where the driver is named too.
    """
    text = str(path)
    if not set(text) & set("#%?"):
        return f"sqlite:///{text}"
    return "sqlite+pysqlite:///" + re.sub("[#%?]", lambda mark: quote(mark[0]), text)


def quoted(text: str) -> str:
    """Return a text as a string of MLflow's search language, which has two kinds of quotes.

    Raises:
        ConfigError: the text has both kinds, or it ends with a backslash, which would escape the quote.
    """
    for mark in ("'", '"'):
        if mark not in text and not text.endswith("\\"):
            return f"{mark}{text}{mark}"
    raise ConfigError(
        f"{one_line(text)}: MLflow cannot search a name with both kinds of quotes or with a backslash at its end; "
        "rename its folder"
    )


def make_database(path: Path) -> None:
    """Make MLflow's SQLite database at `path`, whole or not at all.

    MLflow makes it in some hundred steps, which take seconds. It could never open a database that a kill in between has
    left. So the database is made under another name and then linked to `path`. A database that another process has made
    meanwhile stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        scratch = Path(folder) / path.name
        client_of(database_uri(scratch)).search_experiments(max_results=1)
        try:
            os.link(scratch, path)
        except FileExistsError:
            pass
        except OSError:  # this file system has no links
            scratch.replace(path)


def check_database(path: Path) -> None:
    """Raise HflrayError if the structure of MLflow's SQLite database at `path` is damaged.

    SQLite keeps no checksums, so a flipped bit inside a value is not noticed here.
    """
    problem = ""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            answer = " ".join(str(database.execute("PRAGMA quick_check(1)").fetchone()[0]).split())  # one line
            problem = "" if answer == "ok" else answer
    except sqlite3.OperationalError:  # it is locked or cannot be read, which MLflow reports itself
        return
    except sqlite3.DatabaseError as error:
        problem = str(error)
    if problem:
        raise HflrayError(f"{path} is damaged ({problem}); move it away: the journals have all rounds")


class MLflowSink(Sink):
    """Sends runs to MLflow.

    Attributes:
        experiment_id: MLflow's id of the experiment; None before the first connection.
        run_ids: MLflow's ids of the runs, by key.
    """

    title = "MLflow"
    setting = "tracking.uri"
    batch = 1000  # MLflow's limit

    def __init__(self, place: Place) -> None:
        self.where = shown_address(place.uri)
        self.experiment_id: str | None = None
        self.run_ids: dict[str, str] = {}
        self._place = place
        self._client: Any = None
        self._ended: set[str] = set()  # keys of the runs that had finished before they were opened

    def may_wait(self) -> bool:
        """Return whether the database is still to be made, which takes some CPU seconds, as MLflow's import does."""
        path = database_path(self._place.uri)
        return path is not None and not path.exists()

    def connect(self) -> None:
        """Find or create the experiment.

        Raises:
            ConfigError: the experiment was deleted in MLflow, or its files lie elsewhere (`refuse_elsewhere`).
            Exception: any error of MLflow, for example of a server that does not answer.
        """
        uri, experiment = self._place.uri, self._place.experiment
        if (path := database_path(uri)) is not None:
            if path.exists():
                check_database(path)
            else:
                make_database(path)
        client = client_of(uri)
        stored = client.get_experiment_by_name(experiment)
        if stored is None:
            # With SQLite, artifacts lie beside the database and not in the current folder.
            beside = (self._place.folder.parent / ARTIFACTS).resolve()
            local = beside.as_uri() if "%" in str(beside) else str(beside)  # MLflow decodes a path
            location = local if uri.startswith("sqlite") else None
            try:
                client.create_experiment(experiment, artifact_location=location)
            except Exception:  # another process may have created it, or the answer was lost, so look it up again
                log.debug("create_experiment failed", exc_info=True)
            stored = client.get_experiment_by_name(experiment)
            if stored is None:
                raise HflrayError(f"experiment '{experiment}' cannot be created")
        if stored.lifecycle_stage != "active":
            raise ConfigError(
                f"tracking.experiment: '{experiment}' was deleted in MLflow; restore it, or use another name"
            )
        refuse_elsewhere(uri, stored.artifact_location, self._place.folder.parent)
        self._client, self.experiment_id = client, str(stored.experiment_id)

    def open(self, run: Run) -> int:
        """Find the run by its tags, or create it; return its last round, or -1 if it has none."""
        from mlflow.entities import Param

        client, tags, last = self._client, run.tags, -1
        query = " and ".join(f"tags.`{name}` = {quoted(tags[name])}" for name in ("hflray.sweep", "hflray.trial"))
        runs = client.search_runs([self.experiment_id], query)
        if runs:
            run_id = runs[0].info.run_id
            refuse_elsewhere(self._place.uri, runs[0].info.artifact_uri, self._place.folder.parent)
            if runs[0].info.status == "FINISHED":  # this is set last, after all artifacts
                self._ended.add(run.key)
            client.update_run(run_id, status="RUNNING")
            last = last_step(client, runs[0], -1)
        else:
            run_id = client.create_run(self.experiment_id, run_name=run.name, tags=dict(tags)).info.run_id
        if _lacks(client, run_id, "config.yaml", run.artifacts.get("config.yaml", "")):
            client.log_batch(run_id, params=[Param(name, str(value)) for name, value in run.params.items()])
            if run.dataset is not None:
                _log_input(client, run_id, run.dataset)
            for name in sorted(run.artifacts, reverse=True):  # config.yaml comes last and marks completion
                client.log_text(run_id, run.artifacts[name], name)
        self.run_ids[run.key] = run_id
        return last

    def has_all(self, run: Run) -> bool:
        """See `Sink.has_all`."""
        return run.key in self._ended

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        """Log the rounds in one request."""
        from mlflow.entities import Metric

        metrics = [Metric(name, v, r.time_ms, r.number) for r in rounds for name, v in r.values.items()]
        self._client.log_batch(self.run_ids[run.key], metrics=metrics)

    def artifact(self, run: Run, artifact: Artifact) -> None:
        """Log files as artifacts, and the final model as the MLflow model ``model``."""
        run_id = self.run_ids[run.key]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if isinstance(artifact, FinalModel):
                _write_model(artifact, folder / "model")
                self._client.log_artifacts(run_id, str(folder / "model"), "model")
                return
            for path in artifact.write(folder):
                self._client.log_artifact(run_id, str(path))

    def end(self, run: Run, ending: Ending) -> None:
        """Set the final tags and the status."""
        run_id = self.run_ids[run.key]
        for name, value in ending.tags.items():
            self._client.set_tag(run_id, name, value[:TAG_LENGTH])
        self._client.set_terminated(run_id, ending.status)


def last_step(client: Any, run: Any, default: int) -> int:
    """Return the last step of a run of MLflow, or `default` if it has none."""
    first = sorted(run.data.metrics, key=lambda name: name != ROUND_OBJECTIVE)[:1]
    return max((m.step for name in first for m in client.get_metric_history(run.info.run_id, name)), default=default)


def _lacks(client: Any, run_id: str, name: str, text: str) -> bool:
    """Return whether MLflow lacks a text of a run, or has only its beginning, because a kill cut the file off."""
    stored = {artifact.path: artifact.file_size for artifact in client.list_artifacts(run_id)}
    if name not in stored:
        return True
    if stored[name] in (None, len(text.encode())):
        return False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(client.download_artifacts(run_id, name, folder))
        return text.encode().startswith(path.read_bytes())  # else it is another text, such as of another machine


def _log_input(client: Any, run_id: str, dataset: Mapping[str, str]) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    entity = Dataset(source_type="hflray", **{key: dataset[key] for key in ("name", "digest", "source", "profile")})
    client.log_inputs(run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", "training")])])


@dataclass
class _ModelFiles:
    """The files of an MLflow model of one architecture and data set, which can be written with any weights.

    They are made once for all trials with this architecture and data set. Tracing a model costs MLflow 0.2 s of CPU,
    and torch some memory that it never releases.

    Attributes:
        program: the trace.
        folder: MLflow's files of the first model.
    """

    program: Any
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def make(cls, module: Any, example: np.ndarray[Any, Any]) -> _ModelFiles:
        import mlflow.pytorch
        import torch
        from mlflow.models import infer_signature

        with torch.no_grad():
            scores = module(torch.from_numpy(example)).numpy()
        folder = tempfile.TemporaryDirectory(prefix="hflray-model-")
        mlflow.pytorch.save_model(
            module,
            str(Path(folder.name) / "model"),
            signature=infer_signature(example, scores),
            input_example=example,
            serialization_format="pt2",  # contains no pickle, whatever MLflow's default is
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
        metadata = Model.load(str(folder))
        metadata.model_uuid, metadata.utc_time_created = uuid.uuid4().hex, str(datetime.now(UTC).replace(tzinfo=None))
        metadata.save(str(folder / "MLmodel"))


_model_files: dict[tuple[Any, ...], _ModelFiles] = {}


def _write_model(model: FinalModel, folder: Path) -> None:
    """Write an MLflow model into the new folder `folder`."""
    module, example = model.module(), model.example()
    key = (model.problem, example.tobytes())
    if key not in _model_files:
        _model_files[key] = _ModelFiles.make(module, example)
    _model_files[key].write(folder, module)
