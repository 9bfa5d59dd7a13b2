"""hflray.tune.mending, on the state that a real run of Tune leaves."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from hflray import checkpoint
from hflray.tune.mending import put_back


def rounds(config: dict[str, int]) -> None:
    from ray import tune

    for index in range(3):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(Path(folder) / "state", {"round": index, "global_model": np.zeros(3, np.float32)})
            tune.report({"round": index}, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.fixture(scope="module")
def finished(ray_session, tmp_path_factory) -> Path:
    from ray import tune

    place = tmp_path_factory.mktemp("place")
    run_config = tune.RunConfig(name="sweep", storage_path=str(place), verbose=0)
    tune.Tuner(rounds, param_space={"x": 1}, run_config=run_config).fit()
    return place


def test_the_newest_whole_checkpoint_takes_the_place_of_one_that_is_gone(finished) -> None:
    assert put_back(str(finished), "sweep") == []  # all is there
    (last,) = finished.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    # As when the driver was killed two rounds after Tune saved its state, while the last checkpoint was being written.
    for old, new in (("000002", "000004"), ("000001", "000003"), ("000000", "000005")):
        (trial / f"checkpoint_{old}").rename(trial / f"checkpoint_{new}")
    (trial / "checkpoint_000005" / "state" / "state.json").write_text("{")
    assert not last.exists()
    assert put_back(str(finished), "sweep") == [trial.name]
    assert checkpoint.load(last / "state")["round"] == 2
    assert put_back(str(finished), "sweep") == []


def test_nothing_to_mend(tmp_path) -> None:
    (tmp_path / "sweep").mkdir()
    assert put_back(str(tmp_path), "sweep") == []
