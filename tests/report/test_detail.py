"""hflray.report.detail: a recomputed round equals the round that was run, and its explanation has its numbers."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from hflray import metrics
from hflray.config import AllocationConfig, load_config
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.report import page
from hflray.report.detail import Replay, allocation_texts, explain, inside, sentences
from hflray.report.runs import RunRecord
from tests.conftest import cases, says
from tests.report import fabricated
from tests.report.kept import swept


def test_every_recomputed_round_equals_its_record(sweep, records) -> None:
    for run in sweep.runs:
        replay = Replay(run)
        assert replay.numbers == [1, 2]
        for record in records[run.name]:
            detail = replay.round(record.round)
            table = detail.devices
            np.testing.assert_array_equal(table["device"], record.devices)
            np.testing.assert_allclose(table["compute_s"], record.cost.compute_delay_s, rtol=1e-9)
            np.testing.assert_allclose(table["upload_s"], record.cost.upload_delay_s, rtol=1e-9)
            assert detail.cost.objective == pytest.approx(record.cost.objective, rel=1e-9)
            np.testing.assert_allclose(detail.edges["delay_s"], record.cost.edge_delay_s, rtol=1e-9)
            assert 0 < table["joules"].sum() < record.cost.energy_j  # the remainder is the cloud hop
            assert set(table.loc[table["straggler"], "device"]) == set(detail.edges["straggler"]) - {-1}
            slowest = detail.edges.loc[detail.edges["slowest"]].iloc[0]
            assert slowest["delay_s"] == pytest.approx(record.cost.delay_s)
            last = table[table["device"] == slowest["straggler"]].iloc[0]
            assert run.config.round_iterations * last["seconds"] + slowest["cloud_s"] == pytest.approx(
                record.cost.delay_s, rel=1e-3
            )


def test_a_devices_row_says_its_cluster_its_edges_rank_and_how_often_it_was_scheduled(sweep) -> None:
    run = next(run for run in sweep.runs if run.config.scheduling.name == "ikc")
    replay = Replay(run)
    first, second = replay.round(1).devices, replay.round(2).devices
    assert (first["times"] == 1).all()
    repeated = set(first["device"]) & set(second["device"])
    assert all((row.times == 2) == (row.device in repeated) for row in second.itertuples())
    assert (first["cluster"] >= 0).all()
    assert (first["nearest"] == 1).all()  # the geographic assigner
    fedavg = next(run for run in sweep.runs if run.config.scheduling.name == "fedavg")
    assert (Replay(fedavg).round(1).devices["cluster"] == -1).all()


def test_the_workload_equals_that_of_the_run_bit_for_bit(sweep, records) -> None:
    """z comes from the configuration where it is set, else from the logged messages."""
    run = sweep.runs[0]
    work, config = Replay(run).work, run.config
    models = config.scheduling.num_scheduled * config.training.edge_iterations + config.fleet.num_edges
    assert config.cost.model_kb is None
    assert work.model_bits * models == records[run.name][0].metrics()[metrics.ROUND_MESSAGE_BITS]
    assert work == Workload.of(config, work.model_bits)
    configured = config.model_copy(update={"cost": config.cost.model_copy(update={"model_kb": 447.9})})
    assert Replay(RunRecord(run.history, configured)).work.model_bits == configured.cost.model_bits


def test_logged_sizes_of_both_hops_are_those_of_the_workload(sweep) -> None:
    run = sweep.runs[0]
    tables = replace(run.history.tables, rounds=run.history.tables.rounds.assign(device_bits=3e5, edge_bits=7e5))
    work = Replay(RunRecord(replace(run.history, tables=tables), run.config)).work
    assert (work.device_bits, work.edge_bits) == (3e5, 7e5)
    assert replace(work, device_bits=1.0, edge_bits=1.0) == Workload.of(run.config, 1.0)


OPTIMUM, EQUAL = "Bandwidth and frequency minimise E + λT", "Every device has an equal share of its edge's bandwidth"
FIXED = "Every device computes at its largest frequency, and bandwidth minimises E + λT"


@pytest.mark.parametrize("method, coupling, start, end", cases("report/texts"))
def test_the_texts_say_what_the_allocation_did(method: str, coupling: str, start: str, end: str) -> None:
    allocated, stragglers = allocation_texts(AllocationConfig(method=method, coupling=coupling))
    assert allocated.startswith(start)
    assert allocated.endswith(end)
    assert ("finish together" in stragglers) == (method in ("newton", "cvxpy"))


def test_a_round_of_another_fleet_is_refused(sweep) -> None:
    run = sweep.runs[0]
    other = RunRecord(run.history, run.config.model_copy(update={"seed": 5}))
    with pytest.raises(ConfigError, match="draws another fleet"):
        Replay(other).round(1)


def test_a_run_without_schedules_or_without_the_round_is_refused(sweep) -> None:
    run = sweep.runs[0]
    bare = replace(run.history.tables, rounds=run.rounds.drop(columns="devices"))
    with pytest.raises(ConfigError, match="without schedules"):
        Replay(RunRecord(replace(run.history, tables=bare), run.config))
    with pytest.raises(ConfigError, match="has no round 3; accepted: 1 to 2"):
        Replay(run).round(3)


def test_a_round_with_a_poll_is_recomputed_with_its_bill(sweep) -> None:
    run = sweep.runs[0]
    weight, rounds = run.config.cost.delay_weight, run.rounds.copy()
    rounds[metrics.ROUND_POLL_DELAY_S], rounds[metrics.ROUND_POLL_ENERGY_J] = 2.0, 300.0
    rounds[metrics.ROUND_OBJECTIVE] += 300.0 + weight * 2.0
    polled = RunRecord(replace(run.history, tables=replace(run.history.tables, rounds=rounds)), run.config)
    cost, before = Replay(polled).round(1).cost, Replay(run).round(1).cost
    assert cost.delay_s == pytest.approx(before.delay_s + 2.0)
    assert cost.energy_j == pytest.approx(before.energy_j + 300.0)


@pytest.mark.parametrize("scheduler, words", [("ikc", "of cluster"), ("fedavg", "which knows no clusters")])
def test_the_explanation_has_costs_clusters_and_devices_of_the_round(scheduler, words, sweep, records) -> None:
    run = next(run for run in sweep.runs if run.config.scheduling.name == scheduler)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(explain(run, 2))
    text, record = console.export_text(), records[run.name][1]
    assert f"T = {record.cost.delay_s:,.2f} s, E = {record.cost.energy_j:,.2f} J" in text
    assert f"accuracy {record.accuracy:.1%}" in text
    assert words in text
    slowest = int(record.cost.edge_delay_s.argmax())
    assert f"waited for edge {slowest}" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    table = Replay(run).round(2).devices.sort_values(["edge", "device"])
    shown = [[row[0], row[1] if row[1] != "⚑" else row[2]] for row in rows[-len(table) :]]
    assert shown == [[str(row.device), str(row.edge)] for row in table.itertuples()]
    assert text.count("⚑") == table["straggler"].sum() + 1  # the legend has one more


def test_small_numbers_of_a_round_are_not_zero(tmp_path: Path) -> None:
    sweep, _ = swept(tmp_path, "scheduling.name=fedavg", "max_rounds=1", "fleet.cycles_per_sample=[1, 2]",
                     "allocation.method=equal")  # fmt: skip
    with Console(width=200, record=True, file=io.StringIO()) as console:
        console.print(explain(sweep.runs[0], 1))
    rows = [line.split() for line in console.export_text().splitlines() if line.strip()[:1].isdigit()]
    assert all(0 < float(row[-3]) < 0.0005 for row in rows[-6:])  # seconds of computing


def test_the_parts_inside_the_round_are_named_with_their_bits_and_the_cost_of_privacy() -> None:
    assert inside(load_config(None, []), pd.Series({"round": 1})) == []
    parts = ["training.rule.name=fedprox", "aggregation.cloud.name=fedadam", "compression.device.name=sign"]
    private = ["privacy={clip: 0.5, delta: 1e-4}", "aggregation.weights=uniform"]
    row = pd.Series({"device_bits": 114_000.0, "edge_bits": 3_600_000.0, metrics.PRIVACY_EPSILON: 7.1234})
    trained, sent, spent = inside(load_config(None, [*parts, *private]), row)
    assert says(trained, "fedprox", "mean", "edges", "fedadam", "cloud")
    assert says(sent, "114.0 kbit", "sign", "3,600.0 kbit", "none")
    assert says(spent, "ε = 7.12", "δ = 0.0001")


@pytest.mark.parametrize("setting, joules, ended", [
    ("clock.cloud={semi_synchronous: {period_s: 30}}", "joules of all edge", "waited for the cloud's period"),
    ("clock.cloud={semi_synchronous: {period_s: 0.01}}", "joules of all edge iterations", "waited for edge"),
    ("clock.cloud=asynchronous", "joules of a turn as planned", "ended with the update of edge"),
    ("clock.edge=asynchronous", "seconds of a pass as planned, joules of a pass", "ended with the update of edge"),
    ("world.dropout.rate_per_s=0.5", "seconds of one edge iteration as planned, joules of all 2", "waited for edge"),
    ("allocation.limits={device_delay_s: 0.0001, drop: true}", "", "nobody was left"),
])  # fmt: skip
def test_a_round_is_explained_as_it_happened(setting: str, joules: str, ended: str, tmp_path: Path) -> None:
    sweep, records = swept(tmp_path, "scheduling.name=fedavg", setting)
    (run,), (rounds,), has_turns = sweep.runs, records.values(), "=asynchronous" in setting
    data = page._run_data(run, "", 3)
    with Console(width=200, record=True, file=io.StringIO()) as console:
        console.print(explain(run, 2))
    text = console.export_text()
    assert joules in text
    assert joules.rpartition("joules of ")[2] in data["joulesOf"]
    assert ended in text
    assert ("(slowest)" in text) == (data["rounds"][1]["slowest"] >= 0) == (ended == "waited for edge")
    for record, shown in zip(rounds, data["rounds"], strict=True):
        assert (shown["dropped"] > 0) == ("drop:" in setting)
        if not has_turns:
            assert shown["joules"] == pytest.approx(record.timeline.spent_j, rel=1e-3)
            assert np.all(np.array(shown["cloud"]) <= record.cost.edge_delay_s * 1.001)
        if "start" in shown:
            np.testing.assert_allclose(np.array(shown["start"], dtype=float), record.timeline.start_s, rtol=1e-4)
    if has_turns:
        edge = int(rounds[1].timeline.updates[-1, 0])  # type: ignore[index]
        assert data["rounds"][1]["ended"] == ("ended with", f"the update of edge {edge}")
        assert "of each update" in text
        replay = Replay(run)
        nobody = replace(replay.round(2), devices=replay.round(2).devices.iloc[:0])  # beside turns under way
        assert says(sentences(run, nobody, replay.names)[-1], "nobody was available", f"the update of edge {edge}")


def test_what_decides_is_named_beside_the_accuracy() -> None:
    run = fabricated.explorable(2, "scheduling.num_scheduled=10")
    replay = Replay(run)
    assert says(sentences(run, replay.round(1), replay.names)[1], "accuracy", "class balance")
    assert "validation" not in sentences(run, replay.round(1), replay.names)[1]
    run.rounds[metrics.on_validation(metrics.ACCURACY)] = [0.25, 0.5]
    assert says(sentences(run, replay.round(2), replay.names)[1], "accuracy", "validation part", "decides, 50.0%")
