"""What a running sweep shows live: metrics that Ray exports, and the file through which Prometheus finds this machine.

The names are `hflray.metrics.LIVE`, the panels `dashboards/`. Nothing here changes a result, and nothing is done where
Ray is not running.

Gauges of a trial that has ended are left to Ray, which forgets them 20 s after their last report although the process
goes on with the next trial. It has no call that drops a label set, and NaN, which it does not export (both tried, Ray
2.60), set before the report that comes every 10 s would hide the last round; the panels hold values longer anyway.
Counters stay until the node ends; of an ended trial their rate is 0.
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
from hflray.record import RoundRecord
from hflray.training.actors import instrument
from hflray.training.hierarchy import RayHierarchy

log = logging.getLogger(__name__)

MAX_EDGES = 100  # edges beyond it are not shown live: a round's export stays under a millisecond, the labels few
DISCOVERY = "prom_hflray_{pid}.json"  # in Ray's temporary folder, beside the file that Ray's own dashboard writes

GREEK = {"λ": "lambda", "α": "alpha", "β": "beta"}  # of the paper's vocabulary, in the names of trials


class LiveTrial:
    """Exports a trial's rounds as they end.

    Args:
        sweep, trial: the names that label everything it exports.
        experiment: the trial's; a watched experiment also exports what each device actor trains.
    """

    def __init__(self, sweep: str, trial: str, experiment: Experiment) -> None:
        self._instruments: dict[metrics.LiveMetric, Any] = {}
        self._alone = False
        if not ray.is_initialized():
            return
        labels = {"sweep": label(sweep), "trial": label(trial)}
        hierarchy = experiment.hierarchy
        self._alone = not isinstance(hierarchy, RayHierarchy)
        if isinstance(hierarchy, RayHierarchy):
            hierarchy.pool.watch(labels)
        self._instruments = {metric: instrument(metric, labels) for metric in metrics.LIVE}

    def round(self, record: RoundRecord) -> None:
        """Export a finished round."""
        if not self._instruments:
            return
        live, cost = self._instruments, record.cost
        live[metrics.LIVE_ROUNDS].inc()
        live[metrics.LIVE_ACCURACY].set(record.accuracy)
        live[metrics.LIVE_OBJECTIVE].set(float(cost.objective))
        for edge in range(min(len(cost.edge_devices), MAX_EDGES)):
            which = {"edge": str(edge)}
            live[metrics.LIVE_EDGE_DELAY].set(float(cost.edge_delay_s[edge]), which)
            live[metrics.LIVE_EDGE_ENERGY].set(float(cost.edge_energy_j[edge]), which)
        if self._alone and record.samples_trained:  # no actors: the trial's process trains by itself
            live[metrics.LIVE_SAMPLES].inc(record.samples_trained, {"actor": "0"})


def label(name: str) -> str:
    """`name` as a label of a metric, of which Ray accepts only ASCII: λ becomes ``lambda``, the rest is escaped."""
    for letter, word in GREEK.items():
        name = name.replace(letter, word)
    return name.encode("ascii", "backslashreplace").decode()


@contextmanager
def discoverable() -> Iterator[None]:
    """Let Prometheus find this machine's Ray while the sweep runs (``dashboards/prometheus.yml`` names the file).

    Ray writes such a file only with its dashboard on. Of a Ray that has both, Prometheus sees one target: they agree.
    """
    path = _announce()
    try:
        yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def _announce() -> Path | None:
    """Write the file, atomically; remove those that killed sweeps left. None if this is not the machine Ray is on."""
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes() if node["Alive"]]
    # …/ray/session_…/sockets/plasma_store
    folders = [Path(node["ObjectStoreSocketName"]).parents[2] for node in ray.nodes() if node["Alive"]]
    if len(folders) != 1 or not folders[0].is_dir():  # a cluster: its head's dashboard lists the nodes as they come
        return None
    path = folders[0] / DISCOVERY.format(pid=os.getpid())
    try:
        for other in folders[0].glob(DISCOVERY.format(pid="*")):
            if not _alive(other.stem.rpartition("_")[2]):
                other.unlink(missing_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps([{"labels": {"job": "ray"}, "targets": targets}]), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.warning("live metrics: %s; Prometheus will not find this sweep", error)
        return None
    return path


def _alive(pid: str) -> bool:
    """Whether the process is there; of another's files, which cannot be removed, it does not matter."""
    with suppress(ValueError, ProcessLookupError):
        with suppress(PermissionError):
            os.kill(int(pid), 0)
        return True
    return False
