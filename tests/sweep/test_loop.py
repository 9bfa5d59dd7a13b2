"""hflray.sweep.loop and hflray.report.frame: a loop in Python is kept like a sweep, and read as one table."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import hflray
from hflray.command import export
from hflray.experiment.scenario import Scenario
from hflray.report.detail import explain
from hflray.support.terminal.app import exit_code
from hflray.tune.cli import saved

TINY = [
    "fleet.num_devices=6", "fleet.num_edges=2", "scheduling.name=fedavg", "scheduling.num_scheduled=3",
    "assignment.name=geographic", "training.backend=serial", "model.name=logistic", "max_rounds=3",
    "tracking.sinks=[]",
]  # fmt: skip


def test_a_loop_is_kept_also_where_it_ends_early_and_exported(tmp_path, capsys) -> None:
    with hflray.Experiment(hflray.load_config(None, TINY)) as experiment:
        hashes = []
        for record in hflray.keep(experiment, "mine", tmp_path):
            hashes.append(record.model_hash)
            if record.round == 2:
                break
        rest = [record.model_hash for record in hflray.keep(experiment, "rest", tmp_path)]
    with hflray.Experiment(hflray.load_config(None, TINY)) as experiment:
        assert [record.model_hash for record in experiment] == [*hashes, *rest]
    table = hflray.read("mine", tmp_path)
    assert table["round"].tolist() == [1, 2]
    assert {"run", "seed", "accuracy", "total/energy_j"} <= set(table)
    (run,) = hflray.read_sweep(tmp_path, "mine").runs
    assert run.ended
    assert run.history.stopped == "the loop ended"
    assert hflray.read_sweep(tmp_path, "rest").runs[0].history.stopped is None
    with Console(width=100, file=io.StringIO(), record=True) as console:
        console.print(explain(run, 2))
    assert "round 2: 3 of 6 devices" in console.export_text()
    for form, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        out = tmp_path / f"table.{form}"
        arguments = ["mine", "--to", form, "-o", str(out), "--results", str(tmp_path)]
        assert exit_code(export.app, arguments, "hflray export") == 0
        pd.testing.assert_frame_equal(read(out), table)
    assert exit_code(export.app, ["mine", "--to", "xls"], "hflray export") == 2
    assert "--to: got 'xls'; accepted: csv, parquet" in capsys.readouterr().err


def test_ctrl_c_in_a_round_leaves_a_run_that_was_stopped(tmp_path: Path) -> None:
    with hflray.Experiment(hflray.load_config(None, TINY)) as experiment:
        rounds = hflray.keep(experiment, "mine", tmp_path)
        next(rounds)
        with pytest.raises(KeyboardInterrupt):
            rounds.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert hflray.read_sweep(tmp_path, "mine").runs[0].history.stopped == "the loop ended"


def test_a_scenario_of_the_callers_own_keeps_no_schedules_and_an_error_is_kept(tmp_path: Path) -> None:
    config = hflray.load_config(None, TINY)
    with hflray.Experiment(config, Scenario.build(config)) as experiment:
        for _ in hflray.keep(experiment, "given", tmp_path):
            pass
    (run,) = hflray.read_sweep(tmp_path, "given").runs
    assert run.devices is None
    assert "devices" not in run.rounds
    with hflray.Experiment(config) as experiment:

        def failing(*_: object) -> None:
            raise hflray.HflrayError("it broke")

        experiment.run_round = failing  # type: ignore[method-assign,assignment]
        with pytest.raises(hflray.HflrayError, match="it broke"):
            list(hflray.keep(experiment, "failed", tmp_path))
    with pytest.raises(hflray.ConfigError, match="no run of it has a round yet"):
        hflray.read("failed", tmp_path)


def test_no_resume_appends_rounds_to_those_of_a_loop(tmp_path: Path) -> None:
    """It would make them of the scenario of the configuration, which need not be the loop's."""
    config = hflray.load_config(None, TINY)
    with hflray.Experiment(config, Scenario.build(hflray.load_config(None, [*TINY, "seed=7"]))) as experiment:
        for _ in hflray.keep(experiment, "mine", tmp_path):
            pass
    with pytest.raises(hflray.ConfigError, match=r"--resume mine: a loop in Python has made its rounds"):
        saved("mine", tmp_path, overrides=["max_rounds=9"])
