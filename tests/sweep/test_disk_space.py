"""`hflray.sweep.disk_space`: the reserve holds the running trials' checkpoints, and a sweep needs it to start."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from hflray.errors import NoRoomError
from hflray.support.files import MIB
from hflray.sweep import disk_space, expand, load_sweep
from hflray.sweep.disk_space import MIN_RESERVE_BYTES, Places, Reserve
from hflray.sweep.preflight import check_trials
from hflray.sweep.results import SweepFolder

MODEL = 4 * 114_664  # bytes of the model for digits
SMALL = ["max_rounds=10", "fleet.num_devices=12", "scheduling.num_scheduled=4"]
SEEDS = "sweep.seed={grid: [1, 2, 3, 4]}"
DRAWN = "sweep.training.learning_rate={uniform: [0.1, 0.2]}"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch) -> None:
    """Let Ray's and the system's temporary folder lie on one disk with the results."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(disk_space.os, "cpu_count", lambda: 2)


def reserve(tmp_path: Path, *overrides: str, axis: str = SEEDS, **attributes: Any) -> Reserve:
    """Return the reserve of a small sweep."""
    file = load_sweep(None, [*SMALL, axis, *overrides])
    trials = expand(file)
    folder = SweepFolder(tmp_path / "results" / "s-1", file, "sqlite:///x.db", "e", **attributes)
    return Reserve.of(folder, trials, check_trials(trials, file.task, measure=False))


def test_the_reserve_has_two_checkpoints_of_each_trial_that_runs(tmp_path) -> None:
    def states(*overrides: str, axis: str = SEEDS) -> float:
        return (reserve(tmp_path, *overrides, axis=axis).size - MIN_RESERVE_BYTES) / (2 * MODEL)

    assert states() == pytest.approx(2, rel=0.02)  # on two CPUs
    assert states("tune.cpus_per_trial=2") == pytest.approx(1, rel=0.02)
    assert states("tune.max_concurrent=1") == pytest.approx(1, rel=0.02)
    assert states(axis="sweep.seed={grid: [1]}") == pytest.approx(1, rel=0.02)
    assert states("tune.samples=30", "tune.search={}", axis=DRAWN) == pytest.approx(2, rel=0.02)
    assert states("checkpoint.every=0") == 0


def test_the_reserve_is_settable(tmp_path) -> None:
    assert reserve(tmp_path, "tune.reserve_mb=5").size == 5 * MIB
    assert reserve(tmp_path, "tune.reserve_mb=0").size == 0


def test_an_assigners_training_saves_its_replay_buffer(tmp_path) -> None:
    """Measured after 60,000 steps of `tune_configs/fig5_assigner_learning.yaml`: 26.3 MB, of which the policy 2.56."""
    overrides = ["task=train_assigner", "fleet.num_edges=5", "learning.env_steps=60000", "learning.minutes=null"]
    measured = 13_449_976 + 5_124_433 + 5_121_617 + 2_563_688 + 60_000
    size = reserve(tmp_path, *overrides, axis="sweep.seed={grid: [1]}").size - MIN_RESERVE_BYTES
    assert size / 2 == pytest.approx(measured, rel=0.1)


def test_the_places_are_those_where_a_sweep_writes(tmp_path, monkeypatch) -> None:
    shared = tmp_path / "shared"
    assert reserve(tmp_path, storage=str(shared)).places == Places(
        tmp_path / "results", tmp_path, tmp_path / "ray", shared
    )
    assert reserve(tmp_path, storage="s3://bucket/x").places.storage is None
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert reserve(tmp_path).places.ray is None  # the nodes of a cluster have their own


def test_too_little_room_is_a_line_with_the_folders_and_both_sizes_and_the_fix(tmp_path, monkeypatch) -> None:
    needed = Reserve(Places(tmp_path / "results", tmp_path / "t", tmp_path / "ray"), 20 * MIB)
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 20 * MIB)
    needed.check()
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 19 * MIB)
    with pytest.raises(NoRoomError) as error:
        needed.check()
    (line,) = str(error.value).splitlines()
    for part in (f"{tmp_path}/results and {tmp_path}/t and {tmp_path}/ray", "19 MiB are free", "20 MiB",
                 "tune.reserve_mb", "free 1.0 MiB", "--results", "TMPDIR", "RAY_TMPDIR"):  # fmt: skip
        assert part in line
    Reserve(needed.places, 0).check()  # a reserve of nothing refuses nothing


def test_each_disk_is_looked_at(tmp_path, monkeypatch) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second file system at /dev/shm")
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 5 * MIB if "shm" in str(path) else 50 * MIB)
    with pytest.raises(NoRoomError) as error:
        Reserve(Places(tmp_path, tmp_path, other / "ray"), 20 * MIB).check()
    (line,) = str(error.value).splitlines()
    assert line.startswith("disk: /dev/shm/ray: 5.0 MiB are free")
    assert "--results" not in line
