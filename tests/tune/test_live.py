"""`hflray.tune.live`: the metrics that a trial exports, and the file through which Prometheus finds the sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hflray import metrics
from hflray.experiment import Experiment
from hflray.support import live_metrics
from hflray.training import actors
from hflray.training.actors import DeviceWorker
from hflray.training.exchange import Version
from hflray.tune import live
from tests.conftest import small_config
from tests.hostile import BREAKING, NAMES
from tests.training.rounds import task_of


class Recorder:
    """A stand-in for Ray's counters and gauges, with the exported values by metric and labels."""

    def __init__(self) -> None:
        self.values: dict[tuple[Any, ...], list[float]] = defaultdict(list)

    def instrument(self, metric: live_metrics.LiveMetric, labels: dict[str, str]) -> Any:
        fixed = {name: value for name, value in labels.items() if name in metric.labels}

        def record(value: float = 1, more: dict[str, str] | None = None) -> None:
            full = fixed | (more or {})
            assert tuple(full) == metric.labels  # Ray refuses missing and additional labels
            assert all(text.isascii() for text in full.values())
            self.values[metric, tuple(full.values())].append(value)

        return SimpleNamespace(inc=record) if metric.kind == "counter" else SimpleNamespace(set=record)

    def select(self, metric: live_metrics.LiveMetric) -> dict[tuple[str, ...], list[float]]:
        return {labels: values for (key, labels), values in self.values.items() if key is metric}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(live, "instrument", recorder.instrument)
    monkeypatch.setattr(actors, "instrument", recorder.instrument)
    return recorder


def test_a_round_is_exported_with_its_labels(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.ray, "is_initialized", lambda: True)
    experiment = Experiment(small_config("max_rounds=2"))
    watched = live.LiveTrial("über", "digits-λ1", experiment)
    records = []
    for record in experiment:
        watched.round(record)
        records.append(record)
    names = ("\\xfcber", "digits-lambda1")
    assert recorder.select(live_metrics.ROUNDS) == {names: [1, 1]}
    assert recorder.select(live_metrics.ACCURACY) == {names: [record.accuracy for record in records]}
    assert recorder.select(live_metrics.OBJECTIVE) == {names: [float(record.cost.objective) for record in records]}
    for metric, name in ((live_metrics.EDGE_DELAY, "edge_delay_s"), (live_metrics.EDGE_ENERGY, "edge_energy_j")):
        values = {(*names, str(m)): [float(getattr(record.cost, name)[m]) for record in records] for m in range(3)}
        assert recorder.select(metric) == values
    assert recorder.select(live_metrics.SAMPLES) == {(*names, "0"): [record.samples_trained for record in records]}


LIVING = (
    "max_rounds=3", "scheduling.name=fedavg", "world.wait_s=1",
    "world.availability={name: bernoulli, options: {probability: 0.6}}", "world.dropout.rate_per_s=0.05",
    "world.edge_failure={mtbf_s: 20, mttr_s: 20}", "world.battery={capacity_j: [0.1, 0.9], reserve_j: 0.2}",
)  # fmt: skip
OF_A_WORLD = (live_metrics.AVAILABLE, live_metrics.EDGES_UP, live_metrics.DISCARDED, live_metrics.WASTED)
OF_BATTERIES = (live_metrics.LOW_BATTERY, live_metrics.CHARGE)


def test_a_living_world_is_exported_with_its_batteries(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.ray, "is_initialized", lambda: True)
    experiment = Experiment(small_config(*LIVING))
    watched, expected, charges = live.LiveTrial("s", "t", experiment), defaultdict(list), []
    while not experiment.finished:
        outlook = experiment.world.outlook(experiment.round + 1, experiment.scenario.fleet)
        record = experiment.run_round()
        watched.round(record)
        lost = ~record.timeline.participates
        expected[live_metrics.AVAILABLE].append(outlook.available.sum())
        expected[live_metrics.EDGES_UP].append(outlook.edges_up.sum())
        expected[live_metrics.DISCARDED].append(record.timeline.discarded)
        expected[live_metrics.WASTED].append(record.timeline.energy_j[lost].sum())
        expected[live_metrics.LOW_BATTERY].append((outlook.battery_j < 0.2).sum())
        charges.append(np.quantile(outlook.battery_j, [0, 0.1, 0.5, 0.9]))
    for metric in (*OF_A_WORLD, live_metrics.LOW_BATTERY):
        assert recorder.select(metric) == {("s", "t"): pytest.approx(expected[metric])}, metric.name
    assert all(sum(expected[metric]) > 0 for metric in OF_A_WORLD)
    assert recorder.select(live_metrics.CHARGE) == {
        ("s", "t", name): pytest.approx(column)
        for name, column in zip(("0", "0.1", "0.5", "0.9"), np.array(charges).T, strict=True)
    }


@pytest.mark.parametrize("settings, exported", [((), ()), (("clock.edge.deadline=0.9",), OF_A_WORLD[2:])])
def test_what_is_off_is_not_exported(settings, exported, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.ray, "is_initialized", lambda: True)
    experiment = Experiment(small_config("max_rounds=1", "scheduling.name=fedavg", *settings))
    live.LiveTrial("s", "t", experiment).round(experiment.run_round())
    assert {metric for metric in (*OF_A_WORLD, *OF_BATTERIES) if recorder.select(metric)} == set(exported)


@pytest.mark.parametrize("name", [*NAMES, *BREAKING])
def test_a_label_is_one_line_that_prometheus_reads_back(name: str) -> None:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    label = live.label(name)
    assert label.isascii()
    assert len(label.splitlines()) == 1
    registry = CollectorRegistry()
    Gauge("accuracy", "x", ["trial"], registry=registry).labels(label).set(1)
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert [sample.labels for sample in family.samples] == [{"trial": label}]


def test_only_the_first_of_many_edges_are_exported(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.ray, "is_initialized", lambda: True)
    many = live.MAX_EDGES + 50
    record: Any = SimpleNamespace(
        score=0.5,
        metric=metrics.ACCURACY,
        samples_trained=0,
        timeline=None,
        deviates=False,
        conditions={},
        cost=SimpleNamespace(
            objective=1.0, edge_devices=np.ones(many), edge_delay_s=np.ones(many), edge_energy_j=np.ones(many)
        ),
    )
    live.LiveTrial("s", "t", Experiment(small_config())).round(record)
    assert set(recorder.select(live_metrics.EDGE_DELAY)) == {("s", "t", str(m)) for m in range(live.MAX_EDGES)}
    assert recorder.select(live_metrics.SAMPLES) == {}  # Ray refuses an increment of 0


def test_an_actor_counts_the_samples_of_the_record(recorder: Recorder) -> None:
    experiment = Experiment(small_config("training.local_iteration=step", "training.local_iterations=3"))
    record = experiment.run_round()
    worker = DeviceWorker(experiment.job(), experiment.scenario.device_data())
    worker.watch({"sweep": "s", "trial": "t", "actor": "4"})
    vector = experiment.global_model
    half = len(record.devices) // 2
    for q in range(experiment.config.training.edge_iterations):
        shares = tuple(record.devices[:half].tolist()), tuple(record.devices[half:].tolist())
        worker.train(task_of(1, q, 20, shares), None, Version(vector), Version(vector))
    (counted,) = recorder.select(live_metrics.SAMPLES).items()
    assert counted[0] == ("s", "t", "4")
    assert sum(counted[1]) == record.samples_trained


def test_watching_changes_no_bit_and_losses_are_counted(ray_session: None, recorder: Recorder) -> None:
    import ray

    expected = [record.model_hash for record in Experiment(small_config("max_rounds=2"))]
    with Experiment(small_config("max_rounds=2", "training.backend=ray", "training.num_actors=2"), cpus=2) as watched:
        exported = live.LiveTrial("s", "t", watched)
        assert recorder.select(live_metrics.RESTARTS) == {}
        hashes = []
        for record in watched:
            exported.round(record)
            hashes.append(record.model_hash)
            if record.round == 1:
                ray.kill(watched.hierarchy.pool.devices[0])  # type: ignore[attr-defined]
    assert hashes == expected
    assert recorder.select(live_metrics.RESTARTS) == {("s", "t"): [2]}
    assert recorder.select(live_metrics.SAMPLES) == {}  # the actors count in their own processes


# The file that Prometheus reads.


def node(folder: Any, address: str = "10.0.0.1", alive: bool = True) -> dict[str, Any]:
    return {
        "Alive": alive,
        "NodeManagerAddress": address,
        "MetricsExportPort": 4321,
        "ObjectStoreSocketName": f"{folder}/session_x/sockets/plasma_store",
    }


def test_a_sweep_is_discoverable_while_it_runs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.ray, "nodes", lambda: [node(tmp_path), node(tmp_path, "10.0.0.2", alive=False)])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale, running = tmp_path / f"prom_hflray_{ended.pid}.json", tmp_path / f"prom_hflray_{os.getppid()}.json"
    for path in (stale, running):
        path.write_text("[]")
    with live.discoverable():
        (path,) = set(tmp_path.iterdir()) - {running}  # the stale file of a killed sweep was removed
        assert path.name == f"prom_hflray_{os.getpid()}.json"
        assert json.loads(path.read_text()) == [{"labels": {"job": "ray"}, "targets": ["10.0.0.1:4321"]}]
    assert list(tmp_path.iterdir()) == [running]


def test_no_file_is_written_for_a_cluster_or_another_machine(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes in ([node(tmp_path), node(tmp_path, "10.0.0.2")], [node(tmp_path / "elsewhere")]):
        monkeypatch.setattr(live.ray, "nodes", lambda nodes=nodes: nodes)
        with live.discoverable():
            assert list(tmp_path.rglob("*.json")) == []


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(live.ray, "nodes", lambda: [node(tmp_path)])
    (tmp_path / live.DISCOVERY.format(pid=os.getpid()) / "in the way").mkdir(parents=True)
    with live.discoverable():
        pass
    assert "Prometheus will not find this sweep" in caplog.text
