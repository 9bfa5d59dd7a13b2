"""A finished sweep for the report's tests: two schedulers, two seeds, two rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.experiment.record import RoundRecord
from hflray.report.runs import SweepRecord, read_sweep
from tests.report.kept import NAME, swept

AXES = ("sweep.scheduling.name={grid: [ikc, fedavg]}", "sweep.seed={grid: [0, 1]}")


@pytest.fixture(scope="session")
def records() -> dict[str, list[RoundRecord]]:
    """The records of each run's rounds, by the run's name."""
    return {}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, records: dict[str, list[RoundRecord]]) -> Path:
    """Return the folder of results with the sweep."""
    root = tmp_path_factory.mktemp("results")
    records |= swept(root, "max_rounds=2", *AXES)[1]
    return root


@pytest.fixture(scope="session")
def sweep(results: Path) -> SweepRecord:
    """Return the sweep as read from its journal."""
    return read_sweep(results, NAME)
