"""hflray.report.detail: a rebuilt round is the round that was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hflray import metrics
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.report.detail import Replay
from hflray.report.runs import Run


def test_every_round_is_rebuilt_as_it_was(sweep, records) -> None:
    for run in sweep.runs:
        replay = Replay(run)
        assert replay.numbers == [1, 2]
        for record in records[run.name]:
            taken = replay.round(record.round)
            table = taken.devices
            np.testing.assert_array_equal(table["device"], record.devices)
            np.testing.assert_allclose(table["compute_s"], record.cost.compute_delay_s, rtol=1e-9)
            np.testing.assert_allclose(table["upload_s"], record.cost.upload_delay_s, rtol=1e-9)
            assert taken.cost.objective == pytest.approx(record.cost.objective, rel=1e-9)
            np.testing.assert_allclose(taken.edges["delay_s"], record.cost.edge_delay_s, rtol=1e-9)
            spent = taken.edge_iterations * table["joules"].sum()
            assert 0 < spent < record.cost.energy_j  # the cloud hop is the rest
            assert set(table.loc[table["straggler"], "device"]) == set(taken.edges["straggler"]) - {-1}
            slow = taken.edges.loc[taken.edges["slowest"]].iloc[0]
            assert slow["delay_s"] == pytest.approx(record.cost.delay_s)
            last = table[table["device"] == slow["straggler"]].iloc[0]
            assert taken.edge_iterations * last["seconds"] + slow["cloud_s"] == pytest.approx(
                record.cost.delay_s, rel=1e-3
            )


def test_why_a_device_was_taken(sweep) -> None:
    run = next(run for run in sweep.runs if run.config.scheduling.name == "ikc")
    replay = Replay(run)
    first, second = replay.round(1).devices, replay.round(2).devices
    assert (first["times"] == 1).all()
    again = set(first["device"]) & set(second["device"])
    assert all((row.times == 2) == (row.device in again) for row in second.itertuples())
    assert (first["cluster"] >= 0).all()
    assert (first["nearest"] == 1).all()  # the geographic assigner
    fedavg = next(run for run in sweep.runs if run.config.scheduling.name == "fedavg")
    assert (Replay(fedavg).round(1).devices["cluster"] == -1).all()


def test_the_workload_is_that_of_the_run(sweep, records) -> None:
    """Bit for bit: from the configuration where it says z, else from the logged messages."""
    run = sweep.runs[0]
    work, config = Replay(run).work, run.config
    models = config.scheduling.num_scheduled * config.training.edge_iterations + config.fleet.num_edges
    assert config.cost.model_kb is None
    assert work.model_bits * models == records[run.name][0].metrics()[metrics.ROUND_MESSAGE_BITS]
    assert work == Workload.of(config, work.model_bits)
    told = config.model_copy(update={"cost": config.cost.model_copy(update={"model_kb": 447.9})})
    assert Replay(Run(run.history, told)).work.model_bits == told.cost.model_bits


def test_another_fleet_is_noticed(sweep) -> None:
    run = sweep.runs[0]
    other = Run(run.history, run.config.model_copy(update={"seed": 5}))
    with pytest.raises(ConfigError, match="draws another fleet"):
        Replay(other).round(1)


def test_a_run_without_schedules_says_so(sweep) -> None:
    run = sweep.runs[0]
    bare = replace(run.history.tables, rounds=run.rounds.drop(columns="devices"))
    with pytest.raises(ConfigError, match="without schedules"):
        Replay(Run(replace(run.history, tables=bare), run.config))
    with pytest.raises(ConfigError, match="has no round 3; accepted: 1 to 2"):
        Replay(run).round(3)
