"""`hflray.tune.storage`: the storage has whole journals of one writer at a time, whatever is killed or paused.

Three processes on one storage that are killed and paused at random are in tests/chaos/test_shared_storage.py.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hflray.errors import ConfigError, HflrayError
from hflray.support.checksum import to_line
from hflray.support.store import Store
from hflray.sweep import SweepFile
from hflray.sweep.results import FILE, SweepFolder, new_folder
from hflray.tracking import Journal, default_uri
from hflray.tracking.sink import Ending, Run
from hflray.tune import storage as module
from hflray.tune.cli import saved
from hflray.tune.driver import _stored
from hflray.tune.storage import LeaseLostError, Storage, check_storage, fetch
from tests.cluster import test_storage as cluster
from tests.conftest import cases

s3 = cluster.s3  # a fixture
LEASE_S = 0.8


@pytest.fixture
def folder(tmp_path) -> SweepFolder:
    sweep = new_folder(tmp_path / "first", SweepFile(name="s"), "sqlite:////gone/mlflow.db", "hflray")
    sweep.storage = str(tmp_path / "shared")
    sweep.save()
    return sweep


@pytest.fixture
def opened(folder) -> Any:
    """Return a function that opens the storage for a results folder, and release all of them at the end."""
    storages = list[Storage]()

    def open_for(results: str = "first", lease_s: float = LEASE_S) -> tuple[Storage, Journal]:
        local = folder.path.parent.parent / results / folder.path.name
        storages.append(Storage(folder.storage or "", local, lease_s))
        return storages[-1], Journal(local, storages[-1].send)

    yield open_for
    for each in storages:
        each.release()


def start(storage: Storage, say: Callable[[str], None] = str) -> int:
    """Do what a driver does at a start."""
    epoch = storage.claim(say)
    storage.receive(say)
    storage.begin()
    return epoch


def place(folder: SweepFolder, *names: str) -> Path:
    return Path(folder.storage or "").joinpath(folder.path.name, "hflray", *names)


def forget(storage: Storage) -> None:
    """Let a process vanish without a trace: its lease stays, and nobody renews it."""
    storage._released.set()


def rounds(journal: Journal, key: str = "a") -> list[int]:
    return [entry["round"] for entry in journal.entries(key) if "round" in entry]


def test_a_journal_arrives_whole_and_goes_on_elsewhere(tmp_path, folder, opened) -> None:
    first, journal = opened()
    assert first.claim(print) == 1
    first.save((folder.path / FILE).read_bytes())
    first.begin()
    for number in (1, 2):
        journal.write("a", {"round": number})
    first.send("a")  # there is no new line
    first.release()
    assert [path.name for path in sorted(place(folder, "journal", "a").iterdir())] == [
        "000001-000000000000",
        "000001-000000000034",
    ]

    fetch(folder.storage, tmp_path / "second", "s")
    second, again = opened("second")
    assert not again.run_keys()  # the journals come with the lease
    assert start(second) == 2
    assert rounds(again) == [1, 2]
    again.write("a", {"round": 3})
    again.end("a", Ending("FINISHED"))
    fetched = SweepFolder.load(tmp_path / "second" / folder.path.name)
    assert fetched.storage == folder.storage
    assert fetched.uri == f"sqlite:///{(tmp_path / 'second').resolve() / 'mlflow.db'}"  # the database is this machine's
    fetched.finished = True
    fetched.save()
    second.save((fetched.path / FILE).read_bytes())
    second.release()

    said = list[str]()
    third, journal = opened()
    assert start(third, said.append) == 3
    assert (rounds(journal), said) == ([1, 2, 3], [])
    own = SweepFolder.load(folder.path)
    assert (own.finished, own.uri) == (True, folder.uri)  # the storage's sweep.json with this machine's database
    names = [path.name for path in sorted(place(folder, "journal", "a").iterdir())]
    assert [name[:6] for name in names] == ["000001", "000001", "000002", "000002", "000002"]  # none for an ended one


def test_rounds_that_another_machine_has_made_come_back_to_the_first_one(tmp_path, folder, opened) -> None:
    """A dies after round 5, B goes on and dies after round 15, and A goes on to the end."""
    told = dict[str, list[int]]()
    for results, last in (("first", 5), ("second", 15), ("first", 20)):
        storage, journal = opened(results)
        start(storage)
        before = max(rounds(journal), default=0)
        for number in range(before + 1, last + 1):
            journal.write("a", {"round": number})
        told[f"{results} to {last}"] = list(range(before + 1, last + 1))
        storage.save((folder.path / FILE).read_bytes())
        forget(storage)
    assert told == {"first to 5": [*range(1, 6)], "second to 15": [*range(6, 16)], "first to 20": [*range(16, 21)]}
    assert rounds(Journal(folder.path)) == list(range(1, 21))
    assert storage._whole("a") == journal.path("a").read_bytes()


def test_what_only_this_machine_has_does_not_count_and_is_kept_beside_the_journals(folder, opened) -> None:
    first, journal = opened()
    start(first)
    journal.write("a", {"round": 1})
    local = Journal(folder.path)
    local.write("a", {"round": 2})  # it was not sent any more
    local.write("b", {"round": 1})
    first.release()
    said = list[str]()
    again, journal = opened()
    start(again, said.append)
    assert (journal.run_keys(), rounds(journal)) == (["a"], [1])
    assert said == ["a, b: the storage lacks rounds that this machine has; they are made again"]
    kept = {path.name: len(path.read_text().splitlines()) for path in (journal.folder / "set-aside").iterdir()}
    assert kept == {"a-2.jsonl": 2, "b-2.jsonl": 1}
    journal.write("b", {"round": 1})
    assert rounds(journal, "b") == [1]


def pieces(folder: SweepFolder, **content: str) -> None:
    """Write the pieces of journal a. The names are those of keywords, `p` before and `_` for `-`."""
    for name, text in content.items():
        path = place(folder, "journal", "a", name[1:].replace("_", "-"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("content, whole", cases("tune/pieces"))
def test_later_epochs_win_and_nothing_counts_after_a_gap(folder, opened, content, whole) -> None:
    pieces(folder, **content)
    storage, journal = opened()
    assert storage.claim(print) == 1 + max(int(name[1:].split("_")[0]) if "_" in name else 0 for name in content)
    storage.receive(print)
    assert journal.path("a").read_text() == whole


def test_each_epoch_begins_by_repeating_the_last_line_of_each_open_journal(folder, opened) -> None:
    first, journal = opened()
    start(first)
    for key, error in (("open", ""), ("failed", "no memory"), ("ended", None)):
        journal.begin(Run(key, key), time_ms=1)
        journal.write(key, {"round": 1, "time": 1, "metrics": {}})
        if error != "":
            journal.end(key, Ending("FAILED" if error else "FINISHED", error))
    first.release()
    second, journal = opened()
    second.claim(print)
    second.receive(print)
    journal.cut("open", after=0)  # as a driver does that has damage to mend
    second.begin()
    late = to_line({"round": 2})
    names = sorted(path.name for path in place(folder, "journal", "open").iterdir())
    assert names[-1] == "000002-000000000000"  # the first line is left, and written again
    length = sum(path.stat().st_size for path in place(folder, "journal", "open").glob("000001-*"))
    place(folder, "journal", "open", f"000001-{length:012d}").write_text(f"{late}\n")  # of a process that was paused
    assert [path.name[:6] for path in place(folder, "journal", "failed").iterdir()].count("000002") == 1
    assert [path.name[:6] for path in place(folder, "journal", "ended").iterdir()].count("000002") == 0
    journal.write("open", {"round": 1, "time": 9, "metrics": {}})
    second.release()
    third, journal = opened("third")
    third.claim(print)
    third.receive(print)
    assert [(entry.get("round"), entry.get("time")) for entry in journal.entries("open")] == [(None, None), (1, 9)]


def test_a_released_lease_is_not_waited_for_and_a_dead_ones_end_is(folder, opened) -> None:
    first, _ = opened()
    start(first)
    first.release()
    said = list[str]()
    second, _ = opened("second")
    assert (start(second, said.append), said) == (2, [])
    forget(second)
    begun_s = time.monotonic()
    third, _ = opened("third")
    assert start(third, said.append) == 3
    assert time.monotonic() - begun_s > LEASE_S / 2
    lease = json.loads(next(place(folder, "lease").glob("000002-*")).read_text())
    assert set(lease) == {"host", "pid", "released"}
    (line,) = said
    assert line == f"waiting for the lease of process {os.getpid()} on host {lease['host']}, at most 30 s"


def test_a_lease_that_is_renewed_refuses_another_process_and_names_its_holder(folder, opened) -> None:
    first, _ = opened()
    start(first)
    second, _ = opened("second")
    with pytest.raises(
        ConfigError, match=rf"{folder.path.name}: process {os.getpid()} on host .* is running this sweep"
    ):
        second.claim(str)
    with pytest.raises(LeaseLostError, match="the sweep was not claimed"):
        second.send("a")
    first.save(b"{}")  # the first one goes on


def test_of_two_leases_of_one_epoch_the_smaller_uuid_wins(folder, opened, monkeypatch) -> None:
    place_of_leases, written = f"{folder.path.name}/hflray/lease", Store.write
    ids = {"0" * 32: "f" * 32, "f" * 32: "0" * 32}
    other = ""

    def together(self: Store, path: str, content: bytes) -> None:
        written(self, path, content)
        if path.startswith(f"{place_of_leases}/000001-"):
            written(self, f"{place_of_leases}/000001-{other}", content)

    monkeypatch.setattr(Store, "write", together)
    for own, other in ids.items():
        monkeypatch.setattr(module.uuid, "uuid4", lambda own=own: SimpleNamespace(hex=own))
        storage, _ = opened()
        if own < other:
            assert storage.claim(str) == 1
        else:
            with pytest.raises(ConfigError, match="has taken over this sweep; stop it first"):
                storage.claim(str)
        forget(storage)
        for path in place(folder, "lease").iterdir():
            path.unlink()
    monkeypatch.undo()


def test_a_process_that_was_paused_longer_than_its_lease_adds_nothing_and_tells_nobody(folder, opened) -> None:
    first, journal = opened()
    start(first)
    journal.write("a", {"round": 1})
    forget(first)  # all its threads stand still
    second, again = opened("second")
    start(second)
    again.write("a", {"round": 2})
    with pytest.raises(LeaseLostError, match=rf"process {os.getpid()} on host .* has taken over this sweep"):
        journal.write("a", {"round": 2})
    with pytest.raises(LeaseLostError):
        first.check()
    with pytest.raises(LeaseLostError):
        first.save(b"{}")
    assert (first.held(), second.held()) == (False, True)
    assert not [path for path in place(folder, "journal", "a").glob("000001-*") if '"round": 2' in path.read_text()]
    second.release()
    third, journal = opened("third")
    start(third)
    assert rounds(journal) == [1, 2]


def test_a_machine_whose_clock_stood_still_while_it_slept_tells_nobody(folder, opened, monkeypatch) -> None:
    first, journal = opened()
    start(first)
    journal.write("a", {"round": 1})
    forget(first)
    second, again = opened("second")
    start(second)
    again.write("a", {"round": 2, "mine": True})
    assert not first.held()
    first._lost = None  # nobody has asked yet
    with monkeypatch.context() as clock:
        clock.setattr(module.time, "monotonic", lambda: first._renewed_s)
        with pytest.raises(LeaseLostError):
            journal.write("a", {"round": 2})
    second.release()
    third, journal = opened("third")
    start(third)
    assert [entry for entry in journal.entries("a") if "round" in entry] == [{"round": 1}, {"round": 2, "mine": True}]


def test_a_pause_between_the_look_and_the_piece_is_noticed_after_the_piece(folder, opened, monkeypatch) -> None:
    first, journal = opened()
    start(first)
    journal.write("a", {"round": 1})
    second, again = opened("second")
    written = Store.write

    def paused(self: Store, name: str, content: bytes) -> None:
        if "journal/a/000001-" in name:
            monkeypatch.undo()
            forget(first)
            first._lock.release()  # all threads stand still, so that none waits for another
            start(second)
            first._lock.acquire()
        written(self, name, content)

    monkeypatch.setattr(Store, "write", paused)
    with pytest.raises(LeaseLostError):
        journal.write("a", {"round": 2})
    again.write("a", {"round": 2, "mine": True})
    second.release()
    third, journal = opened("third")
    start(third)
    assert [entry for entry in journal.entries("a") if "round" in entry] == [{"round": 1}, {"round": 2, "mine": True}]


def test_a_lease_that_was_judged_before_its_late_renewal_is_given_up(folder, opened, monkeypatch) -> None:
    """Another process has found the lease expired, and writes its own just after this one has renewed it."""
    first, journal = opened()
    start(first)
    forget(first)
    time.sleep(LEASE_S)
    monkeypatch.setattr(module.time, "sleep", lambda _: place(folder, "lease", "000002-" + "0" * 32).write_text("{}"))
    with pytest.raises(LeaseLostError, match=r"process \? on host \? has taken over this sweep"):
        journal.write("a", {"round": 1})
    monkeypatch.undo()
    assert not place(folder, "journal", "a").exists()


def test_a_short_pause_costs_nothing_but_a_look(folder, opened) -> None:
    first, journal = opened()
    start(first)
    forget(first)
    time.sleep(LEASE_S)
    journal.write("a", {"round": 1})
    assert rounds(journal) == [1]


def test_a_storage_that_cannot_be_written_ends_the_sweep(folder, opened) -> None:
    first, journal = opened()
    start(first)
    place(folder, "journal").write_text("a file in place of the folder")
    with pytest.raises(OSError, match="journal"):
        journal.write("a", {"round": 1})
    assert rounds(journal) == [1]  # this machine has the line, but it does not count


def test_a_journal_that_is_cut_while_the_sweep_runs_is_an_error(folder, opened) -> None:
    first, journal = opened()
    start(first)
    journal.write("a", {"round": 1})
    journal.path("a").write_text("")
    with pytest.raises(HflrayError, match=r"a.jsonl: was cut off while the sweep was running; go on with --resume"):
        first.send("a")


def test_a_storage_too_slow_for_a_lease_is_an_error(folder, opened, monkeypatch) -> None:
    written = Store.write
    monkeypatch.setattr(Store, "write", lambda *given: (time.sleep(LEASE_S / 10), written(*given))[1])
    storage, _ = opened()
    with pytest.raises(ConfigError, match="the storage is too slow for a lease"):
        storage.claim(str)
    assert not list(place(folder, "lease").iterdir())


def test_the_error_for_an_unknown_sweep_lists_the_available_ones(tmp_path, folder, opened) -> None:
    storage, _ = opened()
    start(storage)
    storage.save((folder.path / FILE).read_bytes())
    with pytest.raises(ConfigError, match=rf"--resume t: no such sweep in .*; available: {folder.path.name}"):
        fetch(folder.storage, tmp_path / "second", "t")


def test_a_machine_takes_the_rounds_that_another_one_has_added(tmp_path, folder, opened) -> None:
    """Also where it had the sweep before, and where its own ``sweep.json`` says that the sweep is finished."""
    folder.uri, folder.finished = default_uri(folder.path.parent), True
    folder.save()
    longer = replace(folder, file=folder.file.model_copy(update={"experiment": {"max_rounds": 9}}), finished=False)
    storage, _ = opened()
    start(storage)
    storage.save(longer.content())
    storage.release()
    going_on = saved("s", folder.path.parent, storage=folder.storage)
    assert going_on.file == longer.file
    assert not going_on.finished
    with pytest.raises(ConfigError, match=r"accepted: max_rounds alone, a number above 9"):
        saved("s", folder.path.parent, storage=folder.storage, overrides=["max_rounds=8"])


def test_settings_that_changed_since_the_command_read_them_are_refused(folder, opened, monkeypatch) -> None:
    """Rounds that another machine has added are not lost to a machine that does not know of them."""
    monkeypatch.setattr(module, "LEASE_S", LEASE_S)
    longer = replace(folder, file=folder.file.model_copy(update={"experiment": {"max_rounds": 9}}))
    storage, _ = opened()
    start(storage)
    storage.save(longer.content())
    storage.release()
    say = SimpleNamespace(phase=lambda _: nullcontext(), line=str)
    added = replace(folder, file=folder.file.model_copy(update={"experiment": {"max_rounds": 7}}))
    for mine in (folder, added):
        folder.save()
        with (
            pytest.raises(ConfigError, match="the new ones are here now; give the command again"),
            _stored(mine, say, True),
        ):
            pass
        assert SweepFolder.load(folder.path).file == longer.file
    with _stored(longer, say, True) as again:
        assert again is not None


def test_a_folder_that_cannot_be_written_is_refused(tmp_path) -> None:
    check_storage(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--storage: '.*/file/x' cannot be written"):
        check_storage(str(tmp_path / "file" / "x"))


@pytest.mark.parametrize("uri", ["s4://bucket/x", "s3://"])
def test_a_uri_that_names_no_storage(uri) -> None:
    with pytest.raises(ConfigError, match=rf"--storage: '{uri}' cannot be opened .*accepted: s3://bucket/folder"):
        check_storage(uri)


@pytest.mark.cluster
@pytest.mark.timeout(200)
def test_a_bucket_holds_leases_and_pieces_too(s3, tmp_path, folder) -> None:
    """S3 tells times in whole seconds."""
    uri = "s3://results/hflray"
    first = Storage(uri, folder.path, 8.0)
    assert first.claim(print) == 1
    first.save((folder.path / FILE).read_bytes())
    journal = Journal(folder.path, first.send)
    journal.write("a", {"round": 1})
    fetch(uri, tmp_path / "second", "s")
    second = Storage(uri, tmp_path / "second" / folder.path.name, 8.0)
    with pytest.raises(ConfigError, match="is running this sweep"):
        second.claim(print)
    forget(first)
    said = list[str]()
    assert start(second, said.append) == 2
    assert len(said) == 1
    again = Journal(tmp_path / "second" / folder.path.name, second.send)
    again.write("a", {"round": 2})
    assert rounds(again) == [1, 2]
    with pytest.raises(LeaseLostError):
        journal.write("a", {"round": 2})
    second.release()


def test_two_threads_send_each_line_once(folder, opened) -> None:
    first, journal = opened()
    start(first)
    lock = threading.Lock()

    def write(number: int) -> None:
        with lock:
            Journal(journal.folder.parent).write("a", {"round": number})
        first.send("a")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first._whole("a") == journal.path("a").read_bytes()
