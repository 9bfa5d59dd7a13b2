"""``hflray leaderboard``: tables, Markdown, JSON and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hflray.errors import ConfigError
from hflray.reproduction.leaderboard import assignment as assigners
from hflray.reproduction.leaderboard import scheduling as schedulers
from hflray.reproduction.leaderboard.command import app

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


def test_markdown_is_a_table_alone() -> None:
    lines = invoked("scheduling", "--markdown", "--by", "joules").splitlines()
    assert len(lines) == 2 + 13
    assert all(line.startswith("|") and line.count("|") == lines[0].count("|") for line in lines)


def test_assigners_compete_with_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assigners, "DEPLOYMENTS", range(1))
    monkeypatch.setattr(
        assigners, "SHIPPED", {name: assigners.SHIPPED[name] for name in (assigners.BEST_GAIN, "geographic")}
    )
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
    (tmp_path / "mine.py").write_text("from hflray.scheduling.fedavg import FedAvg\n\n\nclass ikc(FedAvg):\n    pass\n")
    monkeypatch.setattr(schedulers, "run", lambda name, seeds, progress: schedulers.shipped()["fedavg"])
    text = invoked("scheduling", "mine.py:ikc", "--seeds", "1")
    assert "mine.py:ikc *" in text
    assert " IKC " in text


def test_a_mistake_comes_before_any_run() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        RUN.invoke(app, ["assignment", "nobody"], catch_exceptions=False)


def test_the_page_has_the_present_places_of_the_schedulers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "results" / "leaderboards.md").read_text(encoding="utf-8")
    assert invoked("scheduling", "--markdown") in page
