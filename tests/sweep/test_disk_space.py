"""`hflray.sweep.disk_space`: the estimate follows from the configuration and agrees with a real sweep; too little room
is told.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from hflray.errors import NoRoomError
from hflray.support.files import MIB
from hflray.sweep import disk_space, expand, load_sweep
from hflray.sweep.disk_space import Demand, Need, Places, demand, used_bytes
from hflray.sweep.preflight import Checked, check_trials
from hflray.sweep.results import SweepFolder
from hflray.sweep.tasks import Job, find_task
from hflray.tracking import Tracker
from hflray.tune import driver
from tests.conftest import small_config
from tests.tune import test_cli
from tests.tune.test_disk_pause import LIGHT

run_in_process = test_cli.run_in_process  # a fixture
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


def sizes(
    tmp_path: Path, *overrides: str, axis: str = SEEDS, **attributes: Any
) -> tuple[Demand, dict[str, dict[str, int]]]:
    """Return what a sweep needs, and the parts by the name of their folder."""
    file = load_sweep(None, [*SMALL, axis, *overrides])
    trials = expand(file)
    folder = SweepFolder(tmp_path / "results" / "s-1", file, "sqlite:///x.db", "e", **attributes)
    checked = check_trials(trials, file.task, measure=False)
    needed = demand(folder, trials, checked)
    return needed, {need.folder.name: need.parts for need in needed.needs}


def test_checkpoints_follow_from_model_trials_and_number_kept(tmp_path) -> None:
    def checkpoints(*overrides: str, axis: str = SEEDS) -> float:
        return sizes(tmp_path, *overrides, axis=axis)[1]["results"]["checkpoints"] / MODEL

    assert checkpoints() == pytest.approx(4 * 2 + 2, rel=0.02)  # two of each trial, and one of each that runs
    assert checkpoints("tune.cpus_per_trial=2") == pytest.approx(4 * 2 + 1, rel=0.02)
    assert checkpoints("tune.max_concurrent=1") == pytest.approx(4 * 2 + 1, rel=0.02)
    assert checkpoints("checkpoint.every=10") == pytest.approx(4 * 2 + 2, rel=0.02)
    assert checkpoints("checkpoint.every=20") == pytest.approx(4 * 1 + 2, rel=0.02)
    assert checkpoints(axis="sweep.seed={grid: [1]}") == pytest.approx(2 + 1, rel=0.02)
    population = checkpoints("tune.samples=3", "tune.population={every: 5}", axis=DRAWN)
    assert population == pytest.approx(3 * 7 + 2, rel=0.02)
    assert checkpoints("tune.samples=30", "tune.search={}", axis=DRAWN) == pytest.approx(30 * 2 + 2, rel=0.02)
    assert sizes(tmp_path, "checkpoint.every=0")[1]["results"]["checkpoints"] == 0


def test_the_other_parts_grow_with_rounds_and_devices(tmp_path) -> None:
    _, few = sizes(tmp_path)
    _, many = sizes(tmp_path, "max_rounds=1000")
    assert 50 < many["results"]["journals"] / few["results"]["journals"] < 100
    assert many["results"]["artifacts"] > few["results"]["artifacts"] + 4 * 990 * 20 * disk_space.ROW
    _, wide = sizes(tmp_path, "scheduling.num_scheduled=12")
    assert wide["results"]["journals"] - few["results"]["journals"] == 4 * 11 * 8 * disk_space.SCHEDULED
    _, csv = sizes(tmp_path, sinks=("mlflow", "csv"))
    assert csv["results"]["journals"] > few["results"]["journals"]
    _, none = sizes(tmp_path, sinks=())
    assert none["results"]["artifacts"] == 0


LIVING = ("world.dropout.rate_per_s=0.001", "world.compute_jitter.sigma=0.2", "scheduling.name=fedavg")


def test_a_living_world_adds_its_timeline_and_its_metrics(tmp_path) -> None:
    _, still = sizes(tmp_path)
    _, lives = sizes(tmp_path, *LIVING)
    for part in ("journals", "artifacts"):
        assert lives["results"][part] > still["results"][part] + 4 * 10 * 4 * 5 * disk_space.TIMELINE_CELLS
    _, limited = sizes(tmp_path, "clock.edge.deadline=2")
    assert limited["results"]["journals"] == lives["results"]["journals"]


@pytest.mark.parametrize("devices, scheduled", [(12, 6), (60, 30)])
def test_the_size_of_a_timeline_is_as_measured(devices, scheduled, tmp_path) -> None:
    many = (f"fleet.num_devices={devices}", f"scheduling.num_scheduled={scheduled}", "training.edge_iterations=3")
    tracker = Tracker("unused", "e", "s", tmp_path, sinks=())
    tracker.start("t", "t", small_config(), {})
    for result in find_task("experiment").run(Job(small_config(*LIVING, *many, "max_rounds=3"))):
        assert result.timeline is not None
        assert 0.6 < len(result.timeline) / (disk_space.TIMELINE + disk_space.TIMELINE_ROW * 3 * scheduled) < 1.05
        tracker.round("t", result.step, {}, timeline=result.timeline)
    tracker.timeline("t")
    size = (tmp_path / "timelines" / "t.csv.gz").stat().st_size
    assert 0.6 < size / (disk_space.TIMELINE + 3 * 3 * scheduled * disk_space.TIMELINE_CELLS) < 1.05


def test_the_parts_lie_where_they_are_written(tmp_path, monkeypatch) -> None:
    _, parts = sizes(tmp_path, storage=str(tmp_path / "shared"))
    assert set(parts["results"]) == {"journals", "artifacts"}
    assert set(parts["shared"]) == {"checkpoints", "Tune's record"}
    assert set(parts["ray"]) == {"Ray"}
    _, parts = sizes(tmp_path, storage="s3://bucket/x")
    assert set(parts) == {"results", "ray", tmp_path.name}
    assert "checkpoints" not in parts["results"]
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert "ray" not in sizes(tmp_path)[1]  # the nodes of a cluster have their own


def test_a_sweep_that_continues_needs_only_the_rest(tmp_path) -> None:
    before, _ = sizes(tmp_path)
    (tmp_path / "results" / "s-1" / "t").mkdir(parents=True)
    (tmp_path / "results" / "s-1" / "t" / "x").write_bytes(bytes(MIB))
    assert used_bytes(tmp_path / "results" / "s-1") == MIB
    after, _ = sizes(tmp_path)
    assert sum(need.total for need in before.needs) - sum(need.total for need in after.needs) == MIB
    (tmp_path / "results" / "s-1" / "t" / "x").write_bytes(bytes(100 * MIB))
    assert sizes(tmp_path)[0].needs[0].total == 0 or sizes(tmp_path)[0].needs[0].folder.name != "results"


def test_an_assigners_training_saves_its_replay_buffer(tmp_path) -> None:
    """Measured after 60,000 steps of `tune_configs/fig5_assigner_learning.yaml`: 26.3 MB, of which the policy 2.56."""
    overrides = ["task=train_assigner", "fleet.num_edges=5", "learning.env_steps=60000", "learning.minutes=null"]
    _, parts = sizes(tmp_path, *overrides, axis="sweep.seed={grid: [1]}")
    measured = 13_449_976 + 5_124_433 + 5_121_617 + 2_563_688 + 60_000
    assert parts["results"]["checkpoints"] / 3 == pytest.approx(measured, rel=0.1)
    assert parts["results"]["artifacts"] > 2 * 2_563_688


def test_the_reserve_is_settable(tmp_path) -> None:
    assert sizes(tmp_path)[0].reserve_bytes == pytest.approx(16 * MIB + 4 * MODEL, rel=0.01)
    assert sizes(tmp_path, "tune.reserve_mb=5")[0].reserve_bytes == 5 * MIB
    assert sizes(tmp_path, "tune.reserve_mb=0")[0].reserve_bytes == 0


def needed(tmp_path: Path) -> Demand:
    """Return a sweep that needs 30 + 10 MiB on one disk, and a reserve of 20 MiB."""
    results = Need(tmp_path / "results", "give another folder with --results", {"checkpoints": 30 * MIB})
    ray = Need(tmp_path / "ray", "set RAY_TMPDIR to a folder on another disk", {"Ray": 10 * MIB})
    return Demand(Places(tmp_path / "results", tmp_path), [results, ray], 20 * MIB)


def test_too_little_room_is_one_line_with_folder_sizes_and_fix(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 59 * MIB)
    with pytest.raises(NoRoomError) as error:
        needed(tmp_path).check()
    assert str(error.value) == (
        f"disk: {tmp_path}/results and {tmp_path}/ray: 59 MiB are free, and this sweep needs about 60 MiB (checkpoints "
        "30 MiB, Ray 10 MiB, reserve 20 MiB); free 1.0 MiB there, or give another folder with --results or set "
        "RAY_TMPDIR to a folder on another disk"
    )
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 119 * MIB)
    (warning,) = needed(tmp_path).check()
    assert "119 MiB are free, less than twice the 60 MiB that this sweep needs" in warning
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 120 * MIB)
    assert needed(tmp_path).check() == []
    (line,) = needed(tmp_path).lines()
    assert line == (
        f"about 40 MiB of disk in {tmp_path}/results and {tmp_path}/ray (checkpoints 30 MiB, Ray 10 MiB), where 120 "
        "MiB are free; trials pause while less than 20 MiB are free"
    )


def test_each_disk_is_compared_with_its_own_needs(tmp_path, monkeypatch) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second file system at /dev/shm")
    sweep = needed(tmp_path)
    sweep.needs[1].folder = other / "ray"
    assert [len(disk) for disk in sweep.disks()] == [1, 1]
    monkeypatch.setattr(disk_space, "free_bytes", lambda path: 45 * MIB)
    with pytest.raises(NoRoomError) as error:
        sweep.check()
    assert len(str(error.value).splitlines()) == 1  # 45 MiB are enough for Ray
    assert "results: 45 MiB are free" in str(error.value)


def test_the_estimate_agrees_with_a_real_sweep(ray_session, run_in_process, tmp_path, monkeypatch) -> None:
    """The estimate is above what the sweep wrote, and less than half above it."""
    demands: list[Demand] = []

    def spy(folder: SweepFolder, trials: Any, checked: Checked) -> Demand:
        demands.append(demand(folder, trials, checked))
        return demands[-1]

    monkeypatch.setattr(driver, "demand", spy)
    (tmp_path / "long.yaml").write_text(LIGHT.replace("sinks: [csv]", "sinks: [mlflow, csv]"))
    code, out, err = run_in_process("long.yaml", "-q")
    assert code == 0, out + err
    results = tmp_path / "hflray_results"
    (need,) = [need for need in demands[0].needs if need.folder == results]
    (folder,) = results.glob("long-*")
    at_once = 2 * MODEL  # the sweep's end has no checkpoint that is being written
    written = {
        "checkpoints": sum(used_bytes(path) for path in folder.glob("*/checkpoint_*")) + at_once,
        "Tune's record": sum(path.stat().st_size for path in [*folder.glob("*/result.json"), *folder.glob("*state-*")]),
        "journals": used_bytes(folder / "journal") + used_bytes(folder / "csv"),
        "artifacts": used_bytes(results / "artifacts") + (results / "mlflow.db").stat().st_size,
    }
    print({use: (need.parts[use], size) for use, size in written.items()})
    for use, size in written.items():
        assert size <= need.parts[use], use
    assert sum(need.parts.values()) < 1.5 * used_bytes(results) + at_once
