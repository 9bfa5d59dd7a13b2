"""hflray.tracking.journal: entries are read again, even beside truncated ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hflray.support import files
from hflray.tracking import Ending, Journal, Tracker, read_journal
from hflray.tracking.journal import artifacts_of
from tests.conftest import small_config

OLD = Path(__file__).parent / "from_6c93c38"  # a sweep's journal, written by commit 6c93c38


def test_a_truncated_line_does_not_corrupt_the_next_one(tmp_path) -> None:
    tracker = Tracker("", "tests", "torn", tmp_path, sinks=())
    tracker.journal.folder.mkdir()
    tracker.journal.path("t1").write_text('{"round": 1, "time": 1, "metrics": {"accuracy": 1.0}}\n{"round": 2, "ti')
    tracker.journal.cut("t1")  # as a resume does
    tracker.start("t1", "torn", small_config(), {})
    for step in (2, 3):
        tracker.round("t1", step, {"accuracy": float(step)})
    tracker.finish("t1")
    assert [(r.number, r.values) for r in tracker.journal.rounds("t1")] == [
        (step, {"accuracy": float(step)}) for step in (1, 2, 3)
    ]
    assert tracker.journal.ending("t1") == Ending("FINISHED")


def test_a_journal_of_an_earlier_version_is_read() -> None:
    journal = Journal(OLD)
    assert [(r.number, r.values) for r in journal.rounds("a")] == [
        (1, {"round/objective": 1.5, "accuracy": 0.25}),
        (2, {"round/objective": 1.25, "accuracy": 0.5, "rounds_to_target": 2.0}),
    ]
    assert journal.ending("a") == Ending("FINISHED", None, {"hflray.stopped": "asha after round 2"})
    run = journal.run("a")
    assert run is not None
    assert (run.params["scheduling.num_scheduled"], run.dataset and run.dataset["name"]) == (4, "digits")
    first, second = read_journal(OLD)
    assert (first.name, first.status, first.error) == ("a", "FINISHED", None)
    assert (second.name, second.status, second.error) == ("b", "FAILED", "it diverged")
    assert first.environment["numpy"]
    assert first.tables.rounds["edges"].tolist()[0] == [0, 1]
    assert first.tables.devices is not None
    assert first.tables.devices["class/1"].tolist() == [0, 1]


def test_a_line_that_cannot_be_written_raises_and_leaves_no_part(tmp_path, monkeypatch) -> None:
    journal = Journal(tmp_path)
    journal.write("a", {"round": 1})

    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "write", full)
        with pytest.raises(OSError, match="No space") as raised:
            journal.write("a", {"round": 2})
    assert raised.value.filename == str(journal.path("a"))
    journal.write("a", {"round": 2})
    assert journal.entries("a") == [{"round": 1}, {"round": 2}]


def test_the_last_start_defines_a_run(tmp_path) -> None:
    journal = Journal(tmp_path)
    assert (journal.run_keys(), journal.run("t1"), journal.ending("t1")) == ([], None, None)
    tracker = Tracker("http://127.0.0.1:9", "tests", "twice", tmp_path, sinks=())
    tracker.start("t1", "first", small_config(), {})
    tracker.finish("t1", error="lost")
    assert journal.ending("t1") == Ending("FAILED", "lost", {"hflray.error": "lost"})
    tracker.start("t1", "second", small_config("seed=5"), {"mine": "yes"})
    assert tracker.close()
    run = journal.run("t1")
    assert run is not None
    assert (run.key, run.name, run.params["seed"], run.tags["mine"]) == ("t1", "second", 5, "yes")
    assert journal.ending("t1") is None
    assert journal.run_keys() == ["t1"]


def journal_of(folder: Path, rounds: int) -> Journal:
    journal = Journal(folder)
    journal.write("t", {"start": 1, "name": "t", "params": {}, "tags": {}, "artifacts": {}, "dataset": None})
    for number in range(1, rounds + 1):
        journal.write("t", {"round": number, "time": number, "metrics": {"accuracy": number / 8}})
    return journal


def numbers(journal: Journal) -> list[int]:
    return [entry["round"] for entry in journal.entries("t") if "round" in entry]


def test_a_flipped_byte_is_never_read_as_a_metric(tmp_path) -> None:
    journal = journal_of(tmp_path, 3)
    path, expected = journal.path("t"), journal.entries("t")
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        read, lines = journal.entries("t"), whole[:index].count(b"\n")
        if lines == 0 and read:  # the name of the first line's checksum was hit, as if an older hflray had written it
            assert read[1:] == expected[1:]
        else:
            assert read == expected[:lines]
            assert journal.lost_lines("t") > 0 or index == len(whole) - 1


def test_a_damaged_line_and_all_after_it_are_made_again(tmp_path) -> None:
    journal = journal_of(tmp_path, 4)
    path = journal.path("t")
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 3'))
    assert numbers(journal) == [1]
    assert journal.lost_lines("t") == journal.cut("t") == 3
    assert (numbers(journal), journal.lost_lines("t"), journal.cut("t")) == ([1], 0, 0)
    for number in (2, 3, 4):
        journal.write("t", {"round": number, "time": number, "metrics": {"accuracy": number / 8}})
    journal.write("t", {"end": "FINISHED", "error": None, "tags": {}})
    assert (numbers(journal), journal.cut("t"), journal.ending("t")) == ([1, 2, 3, 4], 0, Ending("FINISHED"))
    assert journal.cut("t", after=2) == 0
    assert (numbers(journal), journal.ending("t")) == ([1, 2], None)


def test_a_line_that_a_kill_cut_off_is_not_called_damaged_after_the_resume(tmp_path) -> None:
    journal = journal_of(tmp_path, 3)
    path = journal.path("t")
    path.write_bytes(path.read_bytes()[:-20])
    assert (journal.lost_lines("t"), journal.cut("t")) == (0, 1)
    journal.write("t", {"round": 3, "time": 3, "metrics": {"accuracy": 3 / 8}})
    assert (numbers(journal), journal.lost_lines("t"), journal.cut("t")) == ([1, 2, 3], 0, 0)


def test_the_entries_from_any_line_on_are_read_up_to_a_given_size(tmp_path) -> None:
    journal = journal_of(tmp_path, 3)
    assert (journal.size("none"), journal.tail("none", 0)) == (0, ([], 0))
    content, entries = journal.path("t").read_bytes(), journal.entries("t")
    ends = [0, *(index + 1 for index, byte in enumerate(content) if byte == 10)]
    for first, offset in enumerate(ends):
        for until in (*range(offset, len(content) + 1, 7), len(content), None):
            read, end = journal.tail("t", offset, until)
            last = max(
                number for number, place in enumerate(ends) if place <= (len(content) if until is None else until)
            )
            assert (read, end) == (entries[first:last], ends[last])


def test_rounds_of_a_modified_checkout_are_told_after_a_start_of_a_clean_one(tmp_path, monkeypatch) -> None:
    for number, commit in enumerate(("a-dirty", "b", "c")):
        monkeypatch.setattr(
            "hflray.tracking.tracker._environment_text", lambda commit=commit: f'{{"git_commit": "{commit}"}}'
        )
        tracker = Tracker("", "tests", "torn", tmp_path, sinks=())
        tracker.start("t", "t", small_config(), {})
        tracker.round("t", number + 1, {"accuracy": 0.5})
        assert read_journal(tmp_path)[0].environment["git_commit"] == f"{commit.removesuffix('-dirty')}-dirty"


def test_the_artifacts_are_those_that_the_run_names_since_it_last_began() -> None:
    start, end, round = {"start": 1}, {"end": "FINISHED"}, {"round": 1}
    tables, file = {"artifact": "tables"}, {"artifact": "file", "path": "a"}
    for entries, named in (
        ([start, round, tables, file, tables, end], ["tables", "file"]),
        ([start, round, tables, start, file, end], ["tables", "file"]),  # the process was killed before the end
        ([start, tables, end, start, end], []),
        ([start, tables, end, {"devices": {}}, round, file], ["file"]),
    ):
        assert [kind for kind, _ in artifacts_of(entries)] == named


def test_a_line_without_a_checksum_is_accepted_from_an_older_version_only(tmp_path) -> None:
    journal = Journal(tmp_path)
    journal.folder.mkdir()
    old = '{"round": 1, "time": 1, "metrics": {}}\n'
    journal.path("t").write_text(old)
    journal.write("t", {"round": 2, "time": 2, "metrics": {}})
    assert (numbers(journal), journal.lost_lines("t")) == ([1, 2], 0)
    with journal.path("t").open("a") as file:
        file.write(old.replace("1", "3"))
    assert (numbers(journal), journal.lost_lines("t")) == ([1, 2], 1)
