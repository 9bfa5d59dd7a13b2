"""hflray.reproduction.leaderboard.assignment: places of assigners on the fleets of Figure 6."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.allocation import allocate_round
from hflray.config import load_config
from hflray.cost import round_cost
from hflray.errors import ConfigError
from hflray.experiment.study import Instance, run_study
from hflray.reproduction.leaderboard import assignment as board

FIRST = """
import numpy as np


class First:
    def assign(self, fleet, work, devices, rng):
        return np.zeros(len(devices), dtype=np.intp)
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "DEPLOYMENTS", range(2))
    names = (board.BEST_GAIN, "geographic", "local search", "local search, one deadline")
    monkeypatch.setattr(board, "SHIPPED", {name: board.SHIPPED[name] for name in names})
    smaller = [text.replace("num_scheduled=50", "num_scheduled=12") for text in board.SETTINGS]
    monkeypatch.setattr(board, "SETTINGS", tuple(smaller))


@pytest.mark.usefixtures("few")
def test_a_better_assigner_has_a_better_place_and_ones_own_is_marked(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(FIRST)
    monkeypatch.chdir(tmp_path)
    done: list[tuple[int, int]] = []
    places = board.compete(["mine.py:First"], fleets=2, progress=lambda *counts: done.append(counts))
    names = [place.name for place in places]
    assert names.index("local search, one deadline") < names.index("local search") < names.index(board.BEST_GAIN)
    assert [place.name for place in places if place.own] == ["First"]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    best = next(place for place in places if place.name == board.BEST_GAIN)
    assert (best.ratio, best.time_ratio) == (1.0, 1.0)
    assert all(-1e-9 <= place.gap <= place.worst_gap < 1 for place in places)


def test_assigners_of_one_class_name_compete_apart(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(FIRST.replace("First", "HFEL"))
    names = set(board.contestants(["a.py:HFEL", "b.py:HFEL"])) - set(board.SHIPPED)
    assert names == {"a.py:HFEL", "b.py:HFEL"}


@pytest.mark.usefixtures("few")
def test_the_objective_is_that_of_the_study_of_figure_6() -> None:
    (place,) = [place for place in board.compete((), fleets=2) if place.name == "geographic"]
    objectives = []
    for deployment in (0, 1):
        settings = [
            *board.SETTINGS,
            "assignment.name=geographic",
            f"fleet.deployment_seed={deployment}",
            "max_rounds=2",
        ]
        objectives += [record.objective for record in run_study(load_config(None, settings))]
    assert place.objective_j == pytest.approx(sum(objectives) / 4, rel=1e-12)


@pytest.mark.usefixtures("few")
def test_an_instance_is_billed_as_an_experiment_bills_a_round() -> None:
    config = board.contestants(())["geographic"]
    instance = Instance.of(config, 1)
    assignment, spent_s = instance.assigned(board.configured_assigner(config), config.seed)
    allocation = allocate_round(instance.fleet, instance.work, instance.devices, assignment)
    expected = round_cost(instance.fleet, instance.work, instance.devices, assignment, allocation)
    cost = instance.bill(assignment, config.allocation)
    assert (cost.objective, cost.delay_s) == (expected.objective, expected.delay_s)
    assert instance.bound() <= cost.objective
    assert spent_s > 0


@pytest.mark.parametrize("name", ["nobody", "nowhere.py:Nobody"])
def test_a_wrong_name_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(ConfigError, match=name.split(":")[0]):
        board.contestants([name])


def test_every_shipped_contestant_exists() -> None:
    assert set(board.contestants(())) == set(board.SHIPPED)
