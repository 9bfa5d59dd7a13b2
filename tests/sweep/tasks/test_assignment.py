"""Task ``assignment`` yields a result for each fleet, needs no data, and gives assigners distinct names."""

from __future__ import annotations

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.experiment.study import run_study
from hflray.sweep.tasks import Job
from hflray.sweep.tasks.studies import AssignmentTask, assigner_label

TASK = AssignmentTask()


def test_it_yields_the_results_of_the_study() -> None:
    config = load_config(None, ["max_rounds=3", "assignment.name=geographic"])
    results = list(TASK.run(Job(config)))
    assert [result.step for result in results] == [1, 2, 3]
    assert [result.last for result in results] == [False, False, True]
    bills = [{**result.metrics, "wall/assign_s": 0.0} for result in results]
    assert bills == [{**fleet.metrics(), "wall/assign_s": 0.0} for fleet in run_study(config)]


def test_it_bills_the_named_data_set_and_checks_the_assigner() -> None:
    cifar = TASK.complete(load_config(None, ["data.name=cifar10"]))
    assert cifar.cost.model_kb == 882.0
    with pytest.raises(ConfigError, match="for a task that loads no data"):
        TASK.complete(load_config(None, ["data.name=synthetic"]))
    with pytest.raises(ConfigError, match="speed"):
        TASK.check(load_config(None, ["assignment.options={speed: 9}"]))


@pytest.mark.parametrize(
    "settings, label",
    [
        (["assignment.name=hfel", "assignment.exchanges=300"], "hfel-300"),
        (["assignment.name=hfel", "assignment.start=best_gain"], "hfel-300 best_gain"),
        (["assignment.name=hfel", "allocation.coupling=joint"], "hfel-300 joint"),
        (["assignment.name=d3qn"], "d3qn"),
        (["assignment.name=d3qn", "assignment.policy=paper_db", "assignment.polish_ms=2"], "d3qn paper_db 2 ms"),
        (["assignment.name=d3qn", "assignment.polish_ms=optimum"], "d3qn optimum"),
    ],
)
def test_an_assigners_label_shows_every_setting_that_distinguishes_it(settings: list[str], label: str) -> None:
    config = load_config(None, settings)
    assert assigner_label(config) == label
    parts = [part for part in TASK.label(config).values() if part]
    assert parts == ["H50", "λ1", label, "s0"]
