"""hflray.reproduction.leaderboard.scheduling: what schedulers need to a target, and the test against IKC."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.report.exports import read_exhibit
from hflray.reproduction.leaderboard import scheduling as board

EXPORTS = Path(__file__).parents[2] / "data" / "results" / "benchmark_scheduling"
MINE = """
import numpy as np
from hflray import Scheduler


class Mine(Scheduler):
    def schedule(self, rng):
        return np.sort(rng.choice(self.num_devices, self.num_scheduled, replace=False))
"""


def test_the_shipped_values_are_those_of_the_exports() -> None:
    content = json.loads(board.FILE.read_text(encoding="utf-8"))
    assert content == json.loads(json.dumps(board.collect(read_exhibit(EXPORTS))))
    assert len(content["schedulers"]) == 13


def test_places_are_those_of_the_benchmark() -> None:
    places = {place.name: place for place in board.compete({})}
    assert places["ikc"].ratios == dict.fromkeys(board.SPENT, (1.0, 1.0))
    assert places["ikc"].tests == dict.fromkeys(board.SPENT, "")
    assert all(place.runs == 10 and not place.own for place in places.values())
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
    places = board.compete({"mine": values(0.1, 1e-3, 1e-3)})
    assert (places[0].name, places[0].own) == ("mine", True)
    assert places[0].tests["seconds"] == "p = 0.025"  # 13 opponents, ten seeds: 13 · 2 / 2¹⁰
    assert board.compete({"mine": values(0.1, 1e3, 1e-3)}, by="joules")[0].name == "mine"


def test_one_that_misses_the_target_is_last_and_censored() -> None:
    places = board.compete({"mine": values(5, 1e-3, 1e-3, reached=2)})
    assert places[-1].name == "mine"
    assert places[-1].reached == 2
    assert places[-1].medians["seconds"] == np.inf
    low, high = places[-1].ratios["seconds"]
    assert low < 1
    assert high == np.inf


def test_few_seeds_prove_nothing() -> None:
    (mine,) = [place for place in board.compete({"mine": values(0.1, 1e-3, 1e-3, 3, 3)}) if place.own]
    assert mine.tests["seconds"] == "3 seeds cannot give p < 0.05"


def test_ones_own_scheduler_trains_and_is_billed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    quick = [text.replace("max_rounds=30", "max_rounds=2").replace("0.8", "0.5") for text in board.SETTINGS]
    monkeypatch.setattr(board, "SETTINGS", tuple(quick))
    seen: list[int] = []
    needed = board.run("mine.py:Mine", (0, 1), seen.append)
    assert seen == [0, 1]
    assert all(len(row) == 2 for row in needed.values())
    assert all(value > 0 for quantity in ("seconds", "joules") for value in needed[quantity])


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        board.config_of("nobody", 0)
