"""What the tests of the trackers share: one database, and a second tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hflray import registry
from hflray.tracking import Tracker, default_uri
from tests.tracking.diary import Diary

Opener = Callable[..., Tracker]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests: making it takes MLflow seconds. Each test has a sweep of its own."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="session")
def open_tracker(results: Path) -> Opener:
    """Opens a sweep's tracker on that database."""

    def opened(sweep: str, **options: object) -> Tracker:
        return Tracker(default_uri(results), "tests", sweep, results / sweep, **options)  # type: ignore[arg-type]

    return opened


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Diary]]:
    """The diaries made; ``diary`` is a name that ``tracking.sinks`` accepts."""
    monkeypatch.setitem(registry.BUILTIN["sink"], "diary", "tests.tracking.diary:Diary")
    registry._table.cache_clear()
    Diary.made.clear()
    yield Diary.made
    monkeypatch.undo()
    registry._table.cache_clear()
