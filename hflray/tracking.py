"""What is logged where: MLflow for comparing, a local journal so that nothing depends on MLflow.

One flat run per trial (nested runs hide their curves), one batch per round with the round as the step, parameters
under the configuration's own dotted names, the resolved configuration and the environment as artifacts. A tracking
server that fails costs a warning and a line in the journal, never a trial.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hflray.config import ExperimentConfig, flatten, to_yaml
from hflray.errors import ConfigError

log = logging.getLogger(__name__)

LIBRARIES = (
    "hflray",
    "ray",
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "cvxpy",
    "clarabel",
    "numba",
    "scikit-learn",
    "mlflow",
)
RETRY_AFTER_S = 10.0  # how long a failing server is left alone

# Set before mlflow is imported: its own five retries with backoff would stop the sweep for minutes.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")


def environment() -> dict[str, str]:
    """Git commit of the working tree, versions of the libraries that decide results, Python and CPU."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return {"git_commit": git_commit(), "python": platform.python_version(), "cpu": _cpu(), **found}


def git_commit(folder: Path | None = None) -> str:
    """The commit hflray runs from, with ``-dirty`` if there are changes; ``unknown`` outside a checkout."""
    command = ["git", "-C", str(folder or Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({os.cpu_count()} cores)"


def default_uri(results: Path) -> str:
    """SQLite in the results folder: one file, no server."""
    return f"sqlite:///{results.resolve() / 'mlflow.db'}"


@dataclass
class _Run:
    name: str
    params: dict[str, Any]
    tags: dict[str, str]
    artifacts: dict[str, str]
    run_id: str | None = None
    pending: list[tuple[int, int, dict[str, float]]] = field(default_factory=list)
    status: str | None = None


class Tracker:
    """Writes a sweep's runs to MLflow and to ``<folder>/journal/<run>.jsonl``.

    Args:
        uri: MLflow tracking URI.
        experiment: name of the MLflow experiment; made if it is new.
        sweep: tag ``hflray.sweep`` of all runs.
        folder: of this sweep's results.

    Raises:
        ConfigError: the tracking store cannot be opened at the start; later failures only warn.
    """

    def __init__(self, uri: str, experiment: str, sweep: str, folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        for chatty in ("mlflow", "alembic"):  # after the import, which sets their levels itself
            logging.getLogger(chatty).setLevel(logging.ERROR)

        self.uri, self.sweep = uri, sweep
        self.folder, self._folder = folder, folder / "journal"
        self._runs: dict[str, _Run] = {}
        self._down_until = 0.0
        try:
            self._client = MlflowClient(tracking_uri=uri)
            self.experiment_id = self._experiment(experiment, folder.parent)
        except (MlflowException, OSError, ImportError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"tracking.uri: cannot open '{uri}' ({reason}); start that server, or leave the key out"
            ) from error
        self._folder.mkdir(parents=True, exist_ok=True)

    def _experiment(self, name: str, results: Path) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            # Beside the database, not in whatever folder the command happened to run.
            place = str(results.resolve() / "artifacts") if self.uri.startswith("sqlite") else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # somebody made it in the meantime
                known = self._client.get_experiment_by_name(name)
                if known is None:
                    raise
        if known.lifecycle_stage != "active":
            raise ConfigError(
                f"tracking.experiment: '{name}' was deleted in MLflow; restore it there, or use another name"
            )
        return str(known.experiment_id)

    def start(self, key: str, name: str, config: ExperimentConfig, tags: Mapping[str, str]) -> None:
        """Open a run: parameters, tags, and the resolved configuration and environment as artifacts."""
        self._runs[key] = _Run(
            name=name,
            params={k: v for k, v in flatten(config.model_dump(mode="json")).items() if not k.startswith("tracking.")},
            tags={
                "hflray.sweep": self.sweep,
                "hflray.dataset": config.data.name,
                "hflray.scheduler": config.scheduling.name,
                "hflray.assigner": config.assignment.name,
                **tags,
            },
            artifacts={"config.yaml": to_yaml(config), "environment.json": json.dumps(environment(), indent=1)},
        )
        self._write(key, {"start": name, "params": self._runs[key].params})
        self._flush(key)

    def round(self, key: str, step: int, values: Mapping[str, float]) -> None:
        """Log one round's metrics with the round as the step; values that are not finite are left out."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._runs[key].pending.append((step, int(time.time() * 1000), finite))
        self._write(key, {"round": step, "metrics": finite})
        self._flush(key)

    def finish(self, key: str, error: str | None = None) -> None:
        """Close a run: FINISHED, or FAILED with the reason as the tag ``hflray.error``."""
        run = self._runs.get(key)
        if run is None or run.status is not None:
            return
        run.status = "FAILED" if error else "FINISHED"
        if error:
            run.tags["hflray.error"] = error
        self._write(key, {"end": run.status, "error": error})
        self._flush(key)

    def run_ids(self) -> list[str]:
        """MLflow's ids of the runs opened so far, in order."""
        return [run.run_id for run in self._runs.values() if run.run_id is not None]

    def close(self) -> None:
        """Send what is pending, once more for each run that failed to."""
        self._down_until = 0.0
        for key, run in self._runs.items():
            if run.run_id is None or run.pending:
                self._flush(key)
        lost = [run.name for run in self._runs.values() if run.run_id is None or run.pending]
        if lost:
            log.warning("MLflow has not received everything of %s; it is all in %s", ", ".join(lost), self._folder)

    def _flush(self, key: str) -> None:
        if time.monotonic() < self._down_until:
            return
        try:
            self._send(self._runs[key])
        except Exception as error:  # whatever a server, a proxy or a full disk raises, the sweep goes on
            self._down_until = time.monotonic() + RETRY_AFTER_S
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("MLflow at %s does not answer; keeping the rounds for later: %s", self.uri, reason)

    def _send(self, run: _Run) -> None:
        from mlflow.entities import Metric, Param

        if run.run_id is None:
            made = self._client.create_run(self.experiment_id, run_name=run.name, tags=run.tags)
            run.run_id = made.info.run_id
            params = [Param(name, str(value)) for name, value in run.params.items()]
            self._client.log_batch(run.run_id, params=params)
            for name, text in run.artifacts.items():
                self._client.log_text(run.run_id, text, name)
        if run.pending:
            batch = [Metric(name, v, stamp, step) for step, stamp, values in run.pending for name, v in values.items()]
            for start in range(0, len(batch), 1000):  # MLflow's limit for one request
                self._client.log_batch(run.run_id, metrics=batch[start : start + 1000])
            run.pending.clear()
        if run.status is not None:
            if "hflray.error" in run.tags:
                self._client.set_tag(run.run_id, "hflray.error", run.tags["hflray.error"])
            self._client.set_terminated(run.run_id, run.status)

    def _write(self, key: str, entry: Mapping[str, Any]) -> None:
        with (self._folder / f"{self._runs[key].name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
