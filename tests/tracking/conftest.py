"""Fixtures of the tracking tests: one database, and a second tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hflray import registry
from hflray.tracking import Tracker, default_uri, sender
from tests.tracking.diary import Diary

Opener = Callable[..., Tracker]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one database for all tests, because MLflow takes seconds to create one.

    Each test has a sweep of its own, and the database is not put off until a first round.
    """
    sender.PATIENCE_S = 0.1
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="session")
def open_tracker(results: Path) -> Opener:
    """Return a function that opens a sweep's tracker with that database."""

    def opened(sweep: str, **options: object) -> Tracker:
        return Tracker(default_uri(results), "tests", sweep, results / sweep, **options)  # type: ignore[arg-type]

    return opened


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Diary]]:
    """Make ``diary`` a name that ``tracking.sinks`` accepts; yield the list of all diaries that are made."""
    monkeypatch.setitem(registry.BUILTIN["sink"], "diary", "tests.tracking.diary:Diary")
    registry._table.cache_clear()
    Diary.made.clear()
    Diary.pages = {}
    yield Diary.made
    monkeypatch.undo()
    registry._table.cache_clear()
