"""The live metrics of a running sweep, which Ray exports, and the file through which Prometheus finds this machine.

The names of the metrics are in `hflray.support.live_metrics.LIVE`, and the panels in `dashboards/`. This module changes
no result, and it does nothing if Ray is not running.

Ray drops the gauges of an ended trial 20 s after their last report, although the process continues with the next trial.
hflray does not drop them itself. Ray 2.60 has no call that drops a label set. It does not export NaN either, so that a
gauge set to NaN before the report, which comes every 10 s, would hide the last round (both were tried). The panels show
values for longer in any case. Counters stay until the node ends; the rate of an ended trial's counter is 0.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray

from hflray import metrics
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.support import live_metrics
from hflray.support.files import write
from hflray.support.text import one_line
from hflray.training.actors import instrument
from hflray.training.hierarchy import RayHierarchy

log = logging.getLogger(__name__)

MAX_EDGES = 100  # later edges are not exported, so that a round's export takes less than a millisecond
DISCOVERY = (
    "prom_hflray_{pid}.json"  # this file is in Ray's temporary folder, beside the one that Ray's dashboard writes
)

GREEK = {"λ": "lambda", "α": "alpha", "β": "beta"}  # Greek letters of the paper in the names of trials


class LiveTrial:
    """Export the metrics of a trial's rounds as they end.

    Args:
        sweep: the sweep's name, which labels all exported metrics.
        trial: the trial's name, which labels them too.
        experiment: the trial's experiment. Its device actors also export the samples that they train.
    """

    def __init__(self, sweep: str, trial: str, experiment: Experiment) -> None:
        self._instruments: dict[live_metrics.LiveMetric, Any] = {}
        self._trains_locally = False
        if not ray.is_initialized():
            return
        labels = {"sweep": label(sweep), "trial": label(trial)}
        hierarchy = experiment.hierarchy
        self._trains_locally = not isinstance(hierarchy, RayHierarchy)
        if isinstance(hierarchy, RayHierarchy):
            hierarchy.pool.watch(labels)
        self._instruments = {metric: instrument(metric, labels) for metric in live_metrics.LIVE}

    def round(self, record: RoundRecord) -> None:
        """Export a finished round."""
        if not self._instruments:
            return
        live, cost = self._instruments, record.cost
        live[live_metrics.ROUNDS].inc()
        if record.metric == metrics.ACCURACY:
            live[live_metrics.ACCURACY].set(record.score)
        live[live_metrics.OBJECTIVE].set(float(cost.objective))
        for edge in range(min(len(cost.edge_devices), MAX_EDGES)):
            labels = {"edge": str(edge)}
            live[live_metrics.EDGE_DELAY].set(float(cost.edge_delay_s[edge]), labels)
            live[live_metrics.EDGE_ENERGY].set(float(cost.edge_energy_j[edge]), labels)
        self._world(record)
        if self._trains_locally and record.samples_trained:  # the trial's process trains without actors
            live[live_metrics.SAMPLES].inc(record.samples_trained, {"actor": "0"})

    def _world(self, record: RoundRecord) -> None:
        """Export what happened to a round whose world or clock is on."""
        live, happens, conditions = self._instruments, record.timeline, record.conditions
        if record.deviates:
            live[live_metrics.DISCARDED].set(happens.discarded)
            live[live_metrics.WASTED].set(happens.wasted_j)
        if metrics.ROUND_AVAILABLE in conditions:
            live[live_metrics.AVAILABLE].set(conditions[metrics.ROUND_AVAILABLE])
            live[live_metrics.EDGES_UP].set(len(record.cost.edge_devices) - conditions[metrics.ROUND_EDGES_DOWN])
        if metrics.ROUND_LOW_BATTERY in conditions:
            live[live_metrics.LOW_BATTERY].set(conditions[metrics.ROUND_LOW_BATTERY])
            for name, quantile in metrics.CHARGE_QUANTILES.items():
                live[live_metrics.CHARGE].set(conditions[name], {"quantile": quantile})


def label(name: str) -> str:
    """Return `name` as a label of one ASCII line, as Ray requires: λ becomes ``lambda``, other characters escapes."""
    for letter, word in GREEK.items():
        name = name.replace(letter, word)
    return one_line(name).encode("ascii", "backslashreplace").decode()


@contextmanager
def discoverable() -> Iterator[None]:
    """Let Prometheus find this machine's Ray while the sweep runs (``dashboards/prometheus.yml`` names the file).

    Ray writes such a file only if its dashboard is on. If both files exist, they name the same target, and Prometheus
    sees one.
    """
    path = _announce()
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def _announce() -> Path | None:
    """Write the file atomically, remove the files of killed sweeps, and return its path.

    The result is None if Ray runs on another machine or on several, or if the file cannot be written.
    """
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes() if node["Alive"]]
    # the socket is …/ray/session_…/sockets/plasma_store
    folders = [Path(node["ObjectStoreSocketName"]).parents[2] for node in ray.nodes() if node["Alive"]]
    if len(folders) != 1 or not folders[0].is_dir():  # in a cluster the head's dashboard lists the nodes as they join
        return None
    path = folders[0] / DISCOVERY.format(pid=os.getpid())
    try:
        for file in folders[0].glob(DISCOVERY.format(pid="*")):
            if not _alive(file.stem.rpartition("_")[2]):
                file.unlink(missing_ok=True)
        write(path, json.dumps([{"labels": {"job": "ray"}, "targets": targets}]))
    except OSError as error:
        log.warning("live metrics: %s; Prometheus will not find this sweep", error)
        return None
    return path


def _alive(pid: str) -> bool:
    """Return whether the process runs. A process of another user counts as running, as its files cannot be removed."""
    with suppress(ValueError, ProcessLookupError):
        with suppress(PermissionError):
            os.kill(int(pid), 0)
        return True
    return False
