"""`hflray.sweep.results`: a sweep's folder is written atomically and located by name."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.support import references
from hflray.sweep import load_sweep
from hflray.sweep.results import SweepFolder, changed_texts, claimed, find, locate, new_folder, unfinished


def make_folder(results: Path, stamp: str, finished: bool, name: str = "mine") -> SweepFolder:
    file = load_sweep(None, [f"name={name}", "sweep.seed={grid: [1, 2]}", "max_rounds=3"])
    folder = SweepFolder(results / f"{name}-{stamp}", file, "sqlite:///x.db", "hflray", finished)
    folder.save()
    return folder


def test_a_folder_loads_as_it_was_saved(tmp_path) -> None:
    folder = make_folder(tmp_path, "20260101-000000", finished=False)
    assert SweepFolder.load(folder.path) == folder
    folder.finished = True
    folder.save()
    assert SweepFolder.load(folder.path).finished
    assert os.listdir(folder.path) == ["sweep.json"]


def test_resume_takes_the_latest_unfinished_sweep_of_a_name(tmp_path) -> None:
    make_folder(tmp_path, "20260101-000000", finished=False)
    latest = make_folder(tmp_path, "20260102-000000", finished=False)
    make_folder(tmp_path, "20260103-000000", finished=True)
    make_folder(tmp_path, "20260104-000000", finished=False, name="mine-too")
    assert find(tmp_path, "mine").path.name == latest.path.name
    assert find(tmp_path, "mine-20260101-000000").path.name == "mine-20260101-000000"
    assert unfinished(tmp_path, "other") is None
    assert locate(tmp_path, "mine").path.name == "mine-20260103-000000"


def begin(results: Path, zone: str, now_s: float, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: now_s)
    folder = new_folder(results, load_sweep(None, ["name=twin"]), "u", "e")
    folder.save()
    return folder


@pytest.fixture
def _zone_afterwards():
    yield
    os.environ.pop("TZ", None)
    time.tzset()


@pytest.mark.usefixtures("_zone_afterwards")
def test_the_latest_sweep_is_the_one_that_began_last_in_any_time_zone(tmp_path, monkeypatch) -> None:
    begin(tmp_path, "UTC-9", 1.8e9, monkeypatch)
    last = begin(tmp_path, "UTC+8", 1.8e9 + 60, monkeypatch)
    assert last.path.name == "twin-20270115-080100", "the time in a name is in UTC"
    assert locate(tmp_path, "twin").path == find(tmp_path, "twin").path == last.path
    assert SweepFolder.load(last.path).started_ms == 1_800_000_060_000


@pytest.mark.usefixtures("_zone_afterwards")
def test_of_two_sweeps_of_one_second_the_second_is_the_latest(tmp_path, monkeypatch) -> None:
    folders = [begin(tmp_path, "UTC", 1.8e9, monkeypatch) for _ in range(11)]
    assert [folder.path.name for folder in folders[1::9]] == ["twin-20270115-080000-2", "twin-20270115-080000-11"]
    assert locate(tmp_path, "twin").path == unfinished(tmp_path, "twin") == folders[-1].path
    assert locate(tmp_path, folders[0].path.name).path == folders[0].path


def test_an_older_folder_began_at_the_time_in_its_name_which_belongs_to_no_longer_name(tmp_path) -> None:
    for stamp in ("20260102-090000", "20260101-200000"):
        make_folder(tmp_path, stamp, finished=True)
    make_folder(tmp_path, "20260103-000000", finished=True, name="mine-20260101-000000-2")
    assert locate(tmp_path, "mine").path.name == "mine-20260102-090000"


def test_a_sweep_that_cannot_be_resumed_gives_a_message_of_one_line(tmp_path) -> None:
    make_folder(tmp_path, "20260103-000000", finished=True)
    for name, message in (
        ("mine", "no unfinished sweep"),
        ("mine-20260103-000000", "is finished"),
        ("nine", "available: mine-"),
    ):
        with pytest.raises(ConfigError, match=message) as error:
            find(tmp_path, name)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="no such sweep"):
        locate(tmp_path, "zzz")


@pytest.mark.parametrize("damage", ["cut", "version"])
def test_a_damaged_or_foreign_folder_is_refused(tmp_path, damage: str) -> None:
    folder = make_folder(tmp_path, "20260101-000000", finished=False)
    path = folder.path / "sweep.json"
    text = path.read_text()
    content = json.loads(text) | {"version": 99}
    del content["sha256"]
    path.write_text(text[:-9] if damage == "cut" else json.dumps(content))
    with pytest.raises(ConfigError, match="cannot be read" if damage == "cut" else "version 99"):
        SweepFolder.load(folder.path)
    assert unfinished(tmp_path, "mine") is None
    with pytest.raises(ConfigError, match="cannot be read" if damage == "cut" else "version 99"):
        find(tmp_path, "mine")


def test_a_flipped_byte_is_never_read_as_a_setting(tmp_path) -> None:
    folder = make_folder(tmp_path, "20260101-000000", finished=False)
    path = folder.path / "sweep.json"
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        try:
            loaded = SweepFolder.load(folder.path)
        except ConfigError as error:
            assert "cannot be read" in str(error)
        else:  # a space between values, or a letter in the name of a checksum or seal
            assert loaded == folder


def test_an_older_folder_is_read(tmp_path) -> None:
    """It may lack a checksum and the trackers, or have a seal, or a setting that changed no result."""
    folder = make_folder(tmp_path, "20260101-000000", finished=False)
    folder.sinks = ("csv",)
    folder.save()
    assert SweepFolder.load(folder.path).sinks == ("csv",)
    content = json.loads((folder.path / "sweep.json").read_text())
    del content["sha256"], content["sinks"]
    content["file"].setdefault("tune", {})["reserve_mb"] = 5.0
    (folder.path / "sweep.json").write_text(json.dumps(content | {"seal": "0" * 64}))
    loaded = SweepFolder.load(folder.path)
    assert (loaded.file.tune, loaded.sinks) == (folder.file.tune, ("mlflow",))


CLAIM = "import sys, time, pathlib, hflray.sweep.results as r\nwith r.claimed(pathlib.Path(sys.argv[1])): "


def test_two_processes_never_run_one_sweep(tmp_path) -> None:
    folder = make_folder(tmp_path, "20260101-000000", finished=False)
    with claimed(folder.path):
        for _ in range(2):  # a refused process leaves the owner's id in the lock file
            command = [sys.executable, "-c", f"{CLAIM} pass", str(folder.path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert f"process {os.getpid()} is running this sweep; stop it first" in done.stderr
        with pytest.raises(ConfigError, match=f"process {os.getpid()} is running"), claimed(folder.path):
            pass
    with claimed(folder.path):
        pass


def test_a_killed_process_leaves_its_sweep_free(tmp_path) -> None:
    command = [sys.executable, "-c", f"{CLAIM} print('mine', flush=True); time.sleep(60)", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(ConfigError, match=f"process {other.pid} is running this sweep"), claimed(tmp_path):
            pass
        other.kill()
        other.wait()
    with claimed(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_disk_without_locks_is_an_error(tmp_path, monkeypatch, code: int) -> None:
    """Otherwise a soft lock would be used, which stays after a kill."""

    def flock(file: object, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match=os.strerror(code)), claimed(tmp_path):
        pass


@pytest.mark.parametrize("name", ["/nowhere/x", "a**b", "**", "*", "[x", "../x", "x" * 300, "a\nb", "a\0b", ""])
def test_any_name_may_be_asked_for(tmp_path, name: str) -> None:
    make_folder(tmp_path, "20260103-000000", finished=False)
    for search in (find, locate):
        with pytest.raises(ConfigError, match=r"no (unfinished|such) sweep") as error:
            search(tmp_path, name)
        assert len(str(error.value).splitlines()) == 1


@pytest.fixture
def referring(tmp_path, monkeypatch) -> SweepFolder:
    """Return the folder of a sweep of this user with a scheduler of their own, as another process reads it."""
    (tmp_path / "mine.py").write_text("class Mine: pass\n")
    (tmp_path / "my.yaml").write_text("sweep: {scheduling.name: {grid: [ikc, 'mine.py:Mine']}}\n")
    folder = new_folder(tmp_path / "results", load_sweep(tmp_path / "my.yaml"), "u", "e")
    folder.save()
    for name in ("_sources", "_modules"):
        monkeypatch.setattr(references, name, {})
    return SweepFolder.load(folder.path)


def name_in(folder: SweepFolder) -> str:
    (name,) = (value for value in folder.file.sweep["scheduling.name"].grid or () if value != "ikc")
    return str(name)


def test_a_sweep_keeps_the_texts_of_its_references_and_runs_them_for_its_user_only(referring, tmp_path) -> None:
    (source,) = referring.sources
    assert (source.name, source.path, source.text) == ("mine.py", str(tmp_path / "mine.py"), "class Mine: pass\n")
    assert (referring.path / "references" / "mine.py").read_text() == source.text
    with pytest.raises(ConfigError, match="is not at hand"):  # reading a folder lets nothing run
        references.load(name_in(referring))
    (tmp_path / "mine.py").rename(tmp_path / "elsewhere.py")
    with pytest.raises(ConfigError) as error:
        referring.admit()
    assert re.fullmatch(
        r".*the sweep runs code of its own \(mine.py, which was read at .*mine.py\), and no file of yours there has "
        r"this text, .* --trust \(docs/recovery.md\)",
        str(error.value),
    )
    with pytest.raises(ConfigError, match="is not at hand"):
        references.load(name_in(referring))
    referring.admit(trust=True)
    assert references.load(name_in(referring)).__name__ == "Mine"


def test_a_resume_with_another_text_is_refused_with_both_hashes(referring, tmp_path) -> None:
    (source,) = referring.sources
    (tmp_path / "mine.py").write_text("class Mine: x = 1\n")
    now = hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
    with pytest.raises(ConfigError) as error:
        referring.admit()
    assert source.sha256[:12] in str(error.value)
    assert now[:12] in str(error.value)
    changed = new_folder(tmp_path, load_sweep(tmp_path / "my.yaml"), "u", "e")
    assert changed_texts(referring, changed) == f"mine.py (sha256 {source.sha256[:12]}… then, {now[:12]}… now)"
    assert changed_texts(referring, referring) == ""
    (tmp_path / "mine.py").unlink()  # as on another machine
    referring.admit(trust=True)
    assert not hasattr(references.load(name_in(referring)), "x")


def test_what_a_user_reads_is_what_would_run(referring, tmp_path) -> None:
    (tmp_path / "mine.py").unlink()
    (referring.path / "references" / "mine.py").write_text("class Harmless: pass\n")
    with pytest.raises(ConfigError, match=r"references/mine.py: is not the text with sha256 .* that would run"):
        referring.admit(trust=True)


@pytest.mark.parametrize("where", ["sweep", "sinks"])
def test_a_folder_with_a_reference_without_a_hash_is_refused(tmp_path, where) -> None:
    folder = make_folder(tmp_path, "20260101-000000", finished=False)
    content = json.loads((folder.path / "sweep.json").read_text())
    del content["sha256"]
    if where == "sweep":
        content["file"]["sweep"] = {"scheduling.name": {"grid": ["shutil:rmtree"]}}
    else:
        content["sinks"] = ["csv", "/tmp/bad.py:Sink"]
    (folder.path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="without the hash of its text, which hflray always writes"):
        SweepFolder.load(folder.path)


def test_texts_of_one_name_have_copies_of_their_own(tmp_path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"class Mine: where = '{folder}'\n")
    names = [str(tmp_path / folder / "mine.py") + ":Mine" for folder in ("a", "b")]
    file = load_sweep(None, [f"sweep.scheduling.name={{grid: {names}}}"])
    folder = new_folder(tmp_path, file, "u", "e")
    folder.save()
    assert sorted(path.name for path in (folder.path / "references").iterdir()) == sorted(
        f"mine-{source.sha256[:12]}.py" for source in folder.sources
    )
