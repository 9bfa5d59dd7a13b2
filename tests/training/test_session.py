"""`hflray.training.session`: Ray's folders of ended sweeps are removed, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import ray
from filelock import FileLock

from hflray.training import session
from hflray.training.session import MARK, MAX_ENDED_FOLDERS, Session, remove, remove_ended, take_over
from hflray.training.start import start_ray
from tests.conftest import own_module


def make(root: Path, number: int, marked: bool = True) -> Path:
    """Make the folder of an ended Ray."""
    folder = root / f"session_2026-01-31_00-00-{number:02d}_1_2"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "raylet.out").write_text("x")
    (folder / "node_ip_address.json").write_text("{}")
    if marked:
        (folder / MARK).touch()
    return folder


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray may run in this process for other tests, so that the module starts without a session here."""
    monkeypatch.setattr(session, "_current", None)
    monkeypatch.setattr(session.atexit, "register", lambda function: function)
    monkeypatch.delattr(sys, "last_value", raising=False)


def test_the_folder_is_removed_after_ray_has_ended_and_links_to_it_too(tmp_path) -> None:
    folder, other = make(tmp_path, 1, marked=False), make(tmp_path, 2, marked=False)
    (tmp_path / "session_latest").symlink_to(folder)
    (tmp_path / "other").symlink_to(other)
    there: list[bool] = []
    Session(folder, lambda: there.append(folder.exists())).close()
    assert there == [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, "other"])


@pytest.mark.parametrize("traceback", [False, True])
def test_the_folder_stays_after_a_failure(tmp_path, monkeypatch: pytest.MonkeyPatch, traceback: bool) -> None:
    take_over(make(tmp_path, 1, marked=False), lambda: None)
    if traceback:
        monkeypatch.setattr(sys, "last_value", ValueError("x"), raising=False)
    else:
        session.keep()
    session._close()
    (folder,) = tmp_path.iterdir()
    assert (folder / "logs" / "raylet.out").exists()
    assert (folder / MARK).exists()


def test_folders_that_stay_are_bounded_and_those_of_others_are_not_touched(tmp_path) -> None:
    ended = [make(tmp_path, number) for number in range(MAX_ENDED_FOLDERS + 3)]
    foreign = make(tmp_path, 50, marked=False)
    running = make(tmp_path, 0 + 40)
    with FileLock(running / MARK):
        remove_ended(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*ended[3:], foreign, running])


def test_a_part_that_cannot_be_removed_leaves_the_mark_for_later(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        remove(folder)
    assert (folder / MARK).exists()
    remove(folder)
    assert not folder.exists()


def test_a_second_ray_of_the_process_ends_the_folder_of_the_first(tmp_path) -> None:
    first, second = make(tmp_path, 1, marked=False), make(tmp_path, 2, marked=False)
    ends: list[str] = []
    take_over(first, lambda: ends.append("first"))
    take_over(second, lambda: ends.append("second"))
    assert [path.name for path in tmp_path.iterdir()] == [second.name]
    assert ends == []  # to end the first now would end the second
    session._close()
    assert ends == ["second"]
    assert not list(tmp_path.iterdir())


RAY = own_module("ray_session")


@pytest.mark.parametrize("after", ["", "raise ValueError"])
def test_a_real_rays_folder_is_removed_at_the_end_of_the_process_unless_by_a_traceback(after: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAY.format(after=after)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=150, check=False,
    )  # fmt: skip
    folder = Path(done.stdout.split()[0])
    assert folder.name.startswith("session_")
    assert done.returncode == bool(after)
    assert (folder / MARK).exists() == folder.exists() == bool(after)
    if after:
        remove(folder)


def test_a_ray_of_the_caller_keeps_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0})
    monkeypatch.setattr(session, "take_over", lambda folder, end: pytest.fail("it was taken over"))
    assert start_ray() == 3
