"""`hflray.tune.disk_pause`: trials pause while a disk is too full, and a sweep whose disk was full continues bit for
bit.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.experimental import internal_kv
from rich.console import Console

from hflray.support.files import MIB, Failure
from hflray.sweep.progress import SweepProgress
from hflray.tracking import journal
from hflray.tune import disk_pause as module
from hflray.tune import stopping
from hflray.tune.disk_pause import Room, RoomWatch
from tests.conftest import says
from tests.disks import small_disk_at
from tests.tune import test_cli, test_driver
from tests.tune.test_cli import call
from tests.tune.test_driver import ROUNDS, SWEEP, reference_rounds, start

LIGHT = (
    SWEEP.replace(f"max_rounds: {ROUNDS}", "max_rounds: 3")
    .replace("sinks: [mlflow, csv]", "sinks: [csv]")
    .replace("local_iterations: 5, edge_iterations: 5, batch_size: 4", "local_iterations: 1, edge_iterations: 1")
    .replace("backend: serial", "batch_size: 16, kernel: channels_last, threads: 1, autotune: false, backend: serial")
)

run_in_process, _no_sweep_outlives_its_test = test_cli.run_in_process, test_driver._no_sweep_outlives_its_test


class Disks:
    """The free bytes of each folder, in place of the machine's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: dict[str, int] = {}
        monkeypatch.setattr(module, "free_bytes", lambda folder: self.free.get(str(folder), 10**12))
        monkeypatch.setattr(module, "CHECK_S", 0.05)


@pytest.fixture
def disks(monkeypatch) -> Disks:
    return Disks(monkeypatch)


@pytest.fixture
def sweep_room(ray_session) -> Room:
    return Room("a-sweep", module.platform.node(), "/results", "/shared", 20 * MIB)


def watching(room: Room) -> tuple[RoomWatch, io.StringIO]:
    output = io.StringIO()
    return RoomWatch(room, SweepProgress(Console(file=output, width=300), trials=1, quiet=True)), output


def step(watch: RoomWatch) -> Failure | None:
    watch._checked_s = float("-inf")
    return watch.step()


@pytest.mark.parametrize("folder", ["/results", "/shared"])
def test_a_trial_waits_at_the_end_of_its_round_until_there_is_room(disks, sweep_room, folder: str) -> None:
    sweep_room.wait("t1")  # there is room, so it does not wait
    disks.free[folder] = 20 * MIB - 1
    short = sweep_room.shortage()
    assert short is not None
    assert says(short.text, folder, "20 MiB", "0.0 MiB", "20 MiB", "tune.reserve_mb")
    trial = threading.Thread(target=sweep_room.wait, args=("t1",))
    trial.start()
    trial.join(0.3)
    assert trial.is_alive()
    disks.free[folder] = 20 * MIB
    trial.join(10)
    assert not trial.is_alive()


def test_a_pause_ends_when_the_sweep_is_stopped(disks, sweep_room) -> None:
    """The first Ctrl-C lets a waiting trial save its round within the reserve."""
    disks.free["/results"] = 0
    trial = threading.Thread(target=sweep_room.wait, args=("t1",))
    trial.start()
    trial.join(0.2)
    assert trial.is_alive()
    internal_kv._internal_kv_put(stopping._key("a-sweep"), b"1")
    trial.join(10)
    internal_kv._internal_kv_del(stopping._key("a-sweep"))
    assert not trial.is_alive()


def test_a_reserve_of_nothing_never_pauses(disks, sweep_room) -> None:
    disks.free["/results"] = 0
    Room("a-sweep", sweep_room.host, "/results", None, 0).wait("t1")


def test_the_driver_says_each_thing_once(disks, sweep_room) -> None:
    watch, output = watching(sweep_room)
    with watch:
        for free in (10**9, 8 * MIB, 5 * MIB, 0, 10**9, 10**9):
            disks.free["/results"] = free
            assert step(watch) is None
    paused, going_on = output.getvalue().splitlines()
    assert says(paused, "paused: /results", "8.0 MiB", "12 MiB", "20 MiB", "tune.reserve_mb")
    assert "go on" in going_on


def test_the_driver_does_not_look_more_often_than_each_second(sweep_room, monkeypatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(module, "free_bytes", lambda folder: looks.append(folder) or 10**12)
    monkeypatch.setattr(module, "CHECK_S", 1000.0)
    watch, _ = watching(sweep_room)
    with watch:
        for _ in range(100):
            watch.step()
    assert len(looks) == 4  # each folder once


def test_trials_of_another_machine_wait_for_the_drivers_disk(disks, sweep_room, monkeypatch) -> None:
    """The results folder is the driver's alone, so that another machine does not look at its own folder of the name."""
    watch, _ = watching(sweep_room)
    elsewhere = Room("a-sweep", "another machine", "/results", None, 20 * MIB)
    with watch:
        disks.free["/results"] = 0
        assert elsewhere.shortage() is None
        step(watch)
        trial = threading.Thread(target=elsewhere.wait, args=("t1",))
        trial.start()
        trial.join(0.3)
        assert trial.is_alive()
        disks.free["/results"] = 10**9
        step(watch)
        trial.join(10)
        assert not trial.is_alive()


def test_the_driver_names_the_machine_of_a_trial_that_waits_and_forgets_a_lost_one(
    disks, sweep_room, monkeypatch
) -> None:
    watch, output = watching(sweep_room)
    with watch:
        note = json.dumps([1, ["node7", "/tmp", 4 * MIB, 20 * MIB]]).encode()
        internal_kv._internal_kv_put(module._key("a-sweep", "t1"), note)
        step(watch)
        step(watch)
        monkeypatch.setattr(module, "FORGET_S", 0.0)  # the trial has not renewed its note
        step(watch)
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("paused: /tmp of node7 has 4.0 MiB free, 16 MiB less than the reserve of 20 MiB")
    assert lines[1:] == ["there is room again; trials go on"]
    assert internal_kv._internal_kv_list(module._key("a-sweep", "")) == []


def test_a_failed_write_of_a_trial_reaches_the_driver(disks, sweep_room, monkeypatch) -> None:
    monkeypatch.setattr(module, "END_WITHIN_S", 0.1)
    watch, _ = watching(sweep_room)
    with watch:
        assert step(watch) is None
        sweep_room.fail(Failure(errno.ENOSPC, Path("/results/x")))
        assert step(watch) == Failure(errno.ENOSPC, Path("/results/x"))
        monkeypatch.setattr(module, "fullest", lambda folders: Path(min(folders, key=disks.free.get)))
        disks.free |= {"/results": 2, "/shared": 1, str(module.ray_folder()): 3, tempfile.gettempdir(): 3}
        sweep_room.fail(Failure(errno.ENOSPC, None))  # the library did not name the file
        assert step(watch) == Failure(errno.ENOSPC, Path("/shared"))
    with watch:  # the next start has forgotten it
        assert step(watch) is None


def check_journals(results: Path, text: str) -> None:
    """Check that the journals have each round once, with every simulated metric of an unbroken run to the last bit."""
    for name, records in reference_rounds(text).items():
        (path,) = results.glob(f"*/journal/{name}.jsonl")
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rounds = [entry for entry in entries if "round" in entry]
        assert [entry["round"] for entry in rounds] == [record.round for record in records], name
        assert [entry["end"] for entry in entries if "end" in entry][-1] == "FINISHED"
        for entry, record in zip(rounds, records, strict=True):
            simulated = {key: value for key, value in record.metrics().items() if not key.startswith("wall/")}
            assert {key: entry["metrics"][key] for key in simulated} == simulated
            assert entry["schedule"] == record.schedule()


@pytest.mark.parametrize("fails_at", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_journal_that_cannot_be_written_ends_the_sweep_in_one_line(
    ray_session, run_in_process, tmp_path, monkeypatch, fails_at: int
) -> None:
    (tmp_path / "long.yaml").write_text(LIGHT)
    append_line, calls = journal.append_line, []

    def full(path: Path, text: str) -> None:
        calls.append(path)
        if len(calls) >= fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        append_line(path, text)

    with monkeypatch.context() as patched:
        patched.setattr(journal, "append_line", full)
        code, out, err = run_in_process("long.yaml")
    assert code == 1
    assert len(err.splitlines()) == 1, err
    (folder,) = tmp_path.glob("hflray_results/long-*")
    assert err.startswith(f"error: {calls[-1]}: cannot be written (No space left on device; ")
    assert err.endswith(f"; free space there, then go on with: python -m hflray.tune --resume {folder.name}\n")
    assert "Traceback" not in out
    code, out, err = run_in_process("--resume", folder.name)
    assert code == 0, out + err
    check_journals(tmp_path / "hflray_results", LIGHT)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """Mount a file system of 60 MiB and return its folder."""
    with small_disk_at(tmp_path / "disk", "60m") as place:
        yield place


def fill(place: Path, leave_bytes: int = 0) -> None:
    """Fill a disk but for `leave_bytes`."""
    with (place / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while module.free_bytes(place) > leave_bytes:
            file.write(bytes(min(2**16, module.free_bytes(place) - leave_bytes)))


def wait_for(path: Path, words: str, process: subprocess.Popen[str], within_s: float = 300) -> None:
    deadline = time.monotonic() + within_s
    while words not in path.read_text(encoding="utf-8"):
        assert process.poll() is None, path.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, f"'{words}' did not come within {within_s:g} s"
        time.sleep(0.05)


def begin(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a sweep whose output goes to a file, because nobody reads a pipe meanwhile."""
    log = folder / "log.txt"
    with log.open("w", encoding="utf-8") as file:
        return start(folder, *arguments, stdout=file), log


def lines(log: Path) -> list[str]:
    return [line.rstrip() for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", ["round 1/8", "round 4/8", "done"])
def test_trials_pause_on_a_full_disk_and_go_on_when_there_is_room(tmp_path, small_disk, words: str) -> None:
    (tmp_path / "long.yaml").write_text(SWEEP)
    process, log = begin(tmp_path, "long.yaml", "--results", str(small_disk), "--set", "tune.max_concurrent=1")
    wait_for(log, words, process)
    fill(small_disk, 4 * MIB)  # below the reserve, and enough for what is being written now
    wait_for(log, "paused: ", process)
    time.sleep(3)  # rounds that had been reported arrive
    before = lines(log)
    time.sleep(5)
    assert lines(log) == before
    assert process.poll() is None
    (small_disk / "ballast").unlink()
    assert process.wait(400) == 0, log.read_text()
    assert sum(line.startswith("paused: ") for line in lines(log)) == 1
    assert sum("there is room again" in line for line in lines(log)) == 1
    check_journals(small_disk, SWEEP)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ctrl_c_ends_a_pause(tmp_path, small_disk) -> None:
    (tmp_path / "long.yaml").write_text(SWEEP)
    process, log = begin(tmp_path, "long.yaml", "--results", str(small_disk))
    wait_for(log, "round 2/8", process)
    fill(small_disk, 4 * MIB)
    wait_for(log, "paused: ", process)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130, log.read_text()
    assert "Traceback" not in log.read_text()
    (small_disk / "ballast").unlink()
    done = call("--resume", "long", "--results", str(small_disk), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_journals(small_disk, SWEEP)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", ["starting Ray", "opening", "started", "round 1/8", "round 4/8", "done"])
def test_a_disk_that_fills_up_at_once_ends_the_sweep_in_one_line_and_it_can_be_resumed(
    tmp_path, small_disk, words: str
) -> None:
    """Without a reserve nothing pauses, so that a write fails: in a trial, in the driver, or in Tune."""
    (tmp_path / "long.yaml").write_text(SWEEP)
    process, log = begin(tmp_path, "long.yaml", "--results", str(small_disk), "--set", "tune.reserve_mb=0")
    wait_for(log, words, process)
    fill(small_disk)
    code = process.wait(400)
    text = log.read_text(encoding="utf-8")
    assert code == 1, text
    assert "Traceback" not in text
    errors = [line for line in lines(log) if line.startswith("error: ")]
    assert len(errors) == 1, text
    assert str(small_disk) in errors[0]
    assert "No space left on device; 0.0 MiB free" in errors[0]
    (small_disk / "ballast").unlink()
    folders = [path.name for path in small_disk.glob("long-*/sweep.json")]
    if not folders:  # the disk was full before the sweep had a record
        arguments = ["long.yaml", "--fresh"]
    else:
        arguments = ["--resume", "long"]
        assert "go on with: python -m hflray.tune --resume long-" in errors[0]
    done = call(*arguments, "--results", str(small_disk), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_journals(small_disk, SWEEP)


@pytest.mark.slow
def test_too_little_room_at_the_start_is_an_error_before_anything_starts(tmp_path, small_disk) -> None:
    (tmp_path / "long.yaml").write_text(SWEEP)
    fill(small_disk, 12 * MIB)
    done = call("long.yaml", "--results", str(small_disk), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: disk: {small_disk}: 12 MiB are free; accepted: at least the reserve of ")
    assert "--results" in line
    assert os.listdir(small_disk) == ["ballast"]
