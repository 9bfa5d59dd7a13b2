"""One interrupted sweep for all cells of the matrix: one trial has ended, and one was stopped in round 3."""

from __future__ import annotations

import itertools
import logging
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hflray.sweep.results import SweepFolder
from hflray.tracking.addresses import named
from hflray.tune import cli
from hflray.tune.callback import SweepCallback
from tests.chaos.comparison import Reference, differences
from tests.damage.cells import ENDED, OPEN
from tests.foreign.conftest import root, whole  # noqa: F401

numbers = itertools.count()
Answer = tuple[int, str, str]  # exit code, output, error output


@dataclass
class Interrupted:
    """The interrupted sweep.

    Attributes:
        place: the folder with its sweep file and ``hflray_results``; every test begins with the same contents.
        kept: a copy of `place`, never changed.
        reference: the rounds and the final models without an interruption.
    """

    place: Path
    kept: Path
    reference: Reference

    @property
    def results(self) -> Path:
        """The folder of results."""
        return self.place / "hflray_results"

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        (path,) = self.kept.glob("hflray_results/mended-*")
        return self.results / path.name

    def check(self, tracked: bool = True) -> None:
        """Assert that each trial has ended with every round once, as without an interruption, in journal and model.

        `tracked` says whether MLflow is checked as well. The CSV files and the checkpoints of the trial that had ended
        are not, because nothing needs them any more.
        """
        database = Path(SweepFolder.load(self.folder).uri.removeprefix("sqlite:///"))
        lines = differences(self.results, self.reference, database, name="mended", made_again=True)
        without = (": CSV:", f"{ENDED}: the final model", *(() if tracked else ("MLflow",)))
        assert [line for line in lines if not any(words in line for words in without)] == []


@pytest.fixture
def call(monkeypatch, capsys, caplog) -> Callable[..., Answer]:
    """Return a function that runs ``python -m hflray.tune`` in this process; warnings count as output."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments])
        capsys.readouterr()
        caplog.clear()
        code, (out, err) = _main(), capsys.readouterr()
        return code, "\n".join([out, *(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)]), err

    return run


def _main() -> int:
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="session")
def _interrupted(ray_session, tmp_path_factory) -> Interrupted:
    top = tmp_path_factory.mktemp("mended")
    place, kept = top / "place", top / "kept"
    place.mkdir()
    shutil.copy(Path(__file__).with_name("mended.yaml"), place)
    on_result = SweepCallback.on_trial_result

    def interrupt(self: SweepCallback, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        on_result(self, iteration, trials, trial, result, **info)
        if trial.config["trial"]["name"].endswith(OPEN) and result["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(SweepCallback, "on_trial_result", interrupt)
        patch.setattr(sys, "argv", ["hflray.tune", "mended.yaml", "-q"])
        assert _main() == 130
    shutil.copytree(place, kept)
    return Interrupted(place, kept, Reference.of_file(place / "mended.yaml"))


@pytest.fixture
def interrupted(_interrupted, monkeypatch) -> Interrupted:
    """Return the interrupted sweep in the current folder, as it was when it was interrupted."""
    while _interrupted.place.exists():  # a thread of the sweep before may still write into it
        shutil.rmtree(_interrupted.place, ignore_errors=True)
    shutil.copytree(_interrupted.kept, _interrupted.place)
    # MLflow keeps its connections to a path, so each test has a database at a path of its own.
    database = _interrupted.results / f"mlflow-{next(numbers)}.db"
    (_interrupted.results / "mlflow.db").rename(database)
    folder = SweepFolder.load(_interrupted.folder)
    folder.uri = named(f"sqlite:///{database}")
    folder.save()
    monkeypatch.chdir(_interrupted.place)
    return _interrupted
