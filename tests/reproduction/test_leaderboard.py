"""The leaderboards: places of assigners on the fleets of Figure 6, of schedulers on digits, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.experiment.study import run_study
from hflray.report.exports import read_exhibit
from hflray.reproduction import leaderboard as board
from hflray.reproduction.leaderboard_command import app
from tests.conftest import own_module
from tests.reproduction import leaderboard_values

FIRST = own_module("own_assigner")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "DEPLOYMENTS", range(2))
    names = (board.BEST_GAIN, "geographic", "local search", "local search, one deadline")
    monkeypatch.setattr(board, "ASSIGNERS", {name: board.ASSIGNERS[name] for name in names})
    smaller = [text.replace("num_scheduled=50", "num_scheduled=12") for text in board.FIGURE_6]
    monkeypatch.setattr(board, "FIGURE_6", tuple(smaller))


@pytest.mark.usefixtures("few")
def test_a_better_assigner_has_a_better_place_and_ones_own_is_marked(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(FIRST)
    monkeypatch.chdir(tmp_path)
    places = board.score_assigners(["mine.py:First"], fleets=2)
    names = [place.name for place in places]
    assert names.index("local search, one deadline") < names.index("local search") < names.index(board.BEST_GAIN)
    assert [place.name for place in places if place.is_own] == ["First"]
    best = next(place for place in places if place.name == board.BEST_GAIN)
    assert (best.ratio, best.time_ratio) == (1.0, 1.0)
    assert all(-1e-9 <= place.gap <= place.worst_gap < 1 for place in places)


def test_assigners_of_one_class_name_compete_apart(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(FIRST.replace("First", "HFEL"))
    names = set(board.assigners(["a.py:HFEL", "b.py:HFEL"])) - set(board.ASSIGNERS)
    assert names == {"a.py:HFEL", "b.py:HFEL"}


@pytest.mark.usefixtures("few")
def test_the_objective_is_that_of_the_study_of_figure_6() -> None:
    (place,) = [place for place in board.score_assigners((), fleets=2) if place.name == "geographic"]
    objectives = []
    for deployment in (0, 1):
        settings = [
            *board.FIGURE_6,
            "assignment.name=geographic",
            f"fleet.deployment_seed={deployment}",
            "max_rounds=2",
        ]
        objectives += [record.objective for record in run_study(load_config(None, settings))]
    assert place.objective_j == pytest.approx(sum(objectives) / 4, rel=1e-12)


@pytest.mark.parametrize("name", ["nobody", "nowhere.py:Nobody"])
def test_a_wrong_name_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(ConfigError, match=name.split(":")[0]):
        board.assigners([name])


def test_every_shipped_contestant_exists() -> None:
    assert set(board.assigners(())) == set(board.ASSIGNERS)


MINE = own_module("own_scheduler")


def test_the_shipped_values_are_those_of_the_exports() -> None:
    content = json.loads(board.FILE.read_text(encoding="utf-8"))
    assert content == json.loads(json.dumps(leaderboard_values.collect(read_exhibit(leaderboard_values.EXPORTS))))
    assert len(content["schedulers"]) == 13


def test_places_are_those_of_the_benchmark() -> None:
    places = {place.name: place for place in board.score_schedulers({})}
    assert places["ikc"].ratios == dict.fromkeys(board.SPENT, (1.0, 1.0))
    assert places["ikc"].tests == dict.fromkeys(board.SPENT, "")
    assert all(place.runs == 10 and not place.is_own for place in places.values())
    missed = places["best_channel"]
    assert missed.reached == 9
    assert missed.ratios["rounds"][0] > 1


def values(rounds: float, seconds: float, joules: float, reached: int = 10, runs: int = 10) -> board.Values:
    has = [1.0] * reached + [0.0] * (runs - reached)
    return {
        "rounds": [rounds if one else np.inf for one in has], "seconds": [seconds] * runs, "joules": [joules] * runs,
        "reached": has,
    }  # fmt: skip


def test_one_that_needs_nothing_is_first_and_the_test_says_so() -> None:
    places = board.score_schedulers({"mine": values(0.1, 1e-3, 1e-3)})
    assert (places[0].name, places[0].is_own) == ("mine", True)
    assert places[0].tests["seconds"] == "p = 0.025"  # 13 opponents, ten seeds: 13 · 2 / 2¹⁰
    assert board.score_schedulers({"mine": values(0.1, 1e3, 1e-3)}, by="joules")[0].name == "mine"


def test_one_that_misses_the_target_is_last_and_censored() -> None:
    places = board.score_schedulers({"mine": values(5, 1e-3, 1e-3, reached=2)})
    assert places[-1].name == "mine"
    assert places[-1].reached == 2
    assert places[-1].medians["seconds"] == np.inf
    low, high = places[-1].ratios["seconds"]
    assert low < 1
    assert high == np.inf


def test_few_seeds_prove_nothing() -> None:
    (mine,) = [place for place in board.score_schedulers({"mine": values(0.1, 1e-3, 1e-3, 3, 3)}) if place.is_own]
    assert mine.tests["seconds"] == "3 seeds cannot give p < 0.05"


def test_ones_own_scheduler_trains_and_is_billed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    quick = [text.replace("max_rounds=30", "max_rounds=2").replace("0.8", "0.5") for text in board.DIGITS]
    monkeypatch.setattr(board, "DIGITS", tuple(quick))
    seen: list[int] = []
    needed = board.train("mine.py:Mine", (0, 1), seen.append)
    assert seen == [0, 1]
    assert all(len(row) == 2 for row in needed.values())
    assert all(value > 0 for quantity in ("seconds", "joules") for value in needed[quantity])


RUN = CliRunner()


def invoked(*arguments: str) -> str:
    result = RUN.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_schedulers_without_ones_own_need_no_training(tmp_path: Path) -> None:
    file = tmp_path / "places.json"
    text = invoked("scheduling", "--json", str(file))
    assert "joint_cost" in text
    assert "your own" not in text
    places = json.loads(file.read_text(encoding="utf-8"))
    assert len(places) == 13
    assert "Infinity" not in file.read_text(encoding="utf-8")
    assert [place["ratios"]["seconds"][0] for place in places if place["name"] == "ikc"] == [1.0]


def test_assigners_compete_with_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(board, "DEPLOYMENTS", range(1))
    monkeypatch.setattr(board, "ASSIGNERS", {name: board.ASSIGNERS[name] for name in (board.BEST_GAIN, "geographic")})
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def assign(self, fleet, work, devices, rng):\n"
        "        return fleet.gain[devices].argmax(axis=1)\n"
    )
    text = invoked("assignment", "mine.py:Mine", "--fleets", "1")
    assert "Mine *" in text
    assert "* your own" in text


def test_a_scheduler_that_is_on_the_board_is_refused() -> None:
    with pytest.raises(ConfigError, match="which is on the board"):
        RUN.invoke(app, ["scheduling", "fedavg"], catch_exceptions=False)


def test_a_class_called_as_one_on_the_board_is_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from hflray.scheduling.simple import FedAvg\n\n\nclass ikc(FedAvg):\n    pass\n")
    monkeypatch.setattr(board, "train", lambda name, seeds, progress: board.measured()["fedavg"])
    text = invoked("scheduling", "mine.py:ikc", "--seeds", "1")
    assert "mine.py:ikc *" in text
    assert " IKC " in text


def test_the_page_has_the_present_places_of_the_schedulers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "leaderboards.md").read_text(encoding="utf-8")
    assert invoked("scheduling", "--markdown") in page
