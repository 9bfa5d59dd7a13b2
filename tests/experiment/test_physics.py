"""Experiments with another physics: a class of one's own from end to end, clocks, the world and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hflray import metrics
from hflray.config import load_config
from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep
from hflray.sweep.preflight import check_trials
from tests.conftest import SMALL, own_module, says

QUICK = (*SMALL, "model.name=logistic", "scheduling.name=fedavg", "assignment.name=best_gain")
TOY = own_module("access")


def test_an_access_of_one_s_own_costs_more_and_changes_no_model(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    toy, plain = (
        Experiment(load_config(None, [*QUICK, *more])) for more in ((f"cost.access.name={tmp_path}/toy.py:Half",), ())
    )
    assert [record.model_hash for record in toy] == [record.model_hash for record in plain]  # no clock of seconds
    assert "@sha256:" in toy.config.cost.access.name  # pinned
    assert toy.totals["objective"] > plain.totals["objective"]


def test_what_devices_receive_is_logged_and_billed() -> None:
    experiment = Experiment(load_config(None, [*QUICK, "cost.download.name=unicast", "training.rule.name=scaffold"]))
    record = experiment.run_round()
    values, cost = record.metrics(), record.cost
    assert experiment.work.download_bits == 2 * 32 * len(experiment.global_model)  # the model, and c
    assert values[metrics.ROUND_DOWNLOAD_BITS] == 6 * 2 * experiment.work.download_bits
    assert cost.download_energy_j is not None
    assert cost.download_delay_s is not None
    assert values[metrics.ROUND_DOWNLOAD_J] == pytest.approx(2 * cost.download_energy_j.sum())
    assert values[metrics.ROUND_DOWNLOAD_S] == pytest.approx(2 * cost.download_delay_s.max())
    received = record.timeline.received_s
    assert received is not None
    np.testing.assert_allclose((record.timeline.computed_s - received)[0], cost.compute_delay_s)
    assert record.timeline.spent_j.sum() == pytest.approx(
        2 * (cost.compute_energy_j + cost.upload_energy_j).sum()
    )  # the devices' own
    table = record.timeline.table()
    assert sum(table["download_j"]) == pytest.approx(values[metrics.ROUND_DOWNLOAD_J])


def test_an_edge_has_sent_whatever_becomes_of_a_device() -> None:
    lost = ("cost.download.name=broadcast", "world.dropout.rate_per_s=2", "world.dropout.noticed_after_s=0.1")
    experiment = Experiment(load_config(None, [*QUICK, *lost]))
    record = experiment.run_round()
    happened, cost = record.timeline, record.cost
    assert happened.vanished.any()
    assert happened.download_j is not None
    assert cost.download_energy_j is not None
    first = happened.download_j[0]
    np.testing.assert_allclose(first, cost.download_energy_j)  # in the first iteration all were awaited
    assert cost.energy_j == pytest.approx(float(cost.edge_energy_j.sum()))
    assert cost.edge_energy_j.sum() > happened.energy_j.sum() + happened.download_j.sum()  # the hops


def test_settings_that_say_nothing_are_not_written() -> None:
    tree = load_config(None, []).model_dump(mode="json")
    assert set(tree["cost"]) == {"delay_weight", "model_kb", "secure_aggregation"}
    assert set(tree["allocation"]) == {"method", "coupling"}
    said = load_config(None, ["cost.download.name=unicast", "allocation.limits.device_delay_s=9"])
    assert said.model_dump(mode="json")["cost"]["download"] == {"name": "unicast", "options": {}}
    assert load_config(None, []).model_validate(said.model_dump(mode="json")) == said


@pytest.mark.parametrize("seconds, is_noted", [(1e-6, True), (1e6, False)])
def test_limits_that_leave_out_everybody_are_a_note(seconds: float, is_noted: bool) -> None:
    limits = f"allocation.limits={{device_delay_s: {seconds}, drop: true}}"
    file = load_sweep(None, [*QUICK, limits])
    notes = [note for note in check_trials(expand(file), "experiment", measure=False).notes if "allocation" in note]
    assert bool(notes) == is_noted
    assert not is_noted or says(notes[0], "device_delay_s = 1e-06", "every device of round 1", "wait_s = 60 s")
