"""The scheduler of the tests of the world."""

from __future__ import annotations

import pytest

from hflray import registry
from tests.world.living import OfTheAvailable


@pytest.fixture(autouse=True)
def _scheduler_of_the_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ADDED, ("scheduler", "of_the_available"), OfTheAvailable)
