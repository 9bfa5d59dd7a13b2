"""`hflray.reproduction.queue.runner`, in this process: each item runs to its end from frozen code, with stops in
between.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hflray import report
from hflray.report.exports import pack
from hflray.reproduction.queue import command, publishing
from hflray.reproduction.queue.frozen import git
from hflray.reproduction.queue.items import State, load_items
from hflray.reproduction.queue.processes import marked
from hflray.reproduction.queue.publishing import to_commit
from hflray.reproduction.queue.status import status_lines
from tests.reproduction.queue.conftest import entries, exported, rounds, runner
from tests.reproduction.queue.test_frozen import commit

pytestmark = pytest.mark.timeout(600)


def test_every_item_runs_to_its_end_and_is_exported(repository, folder) -> None:
    runner(folder, repository, cpus=2).run()
    assert rounds(folder, "fig-first") == [1, 2, 3, 4, 5]
    assert rounds(folder, "fig-second") == [1, 2, 3]
    assert exported(repository, "first") == 5
    assert exported(repository, "second") == 3
    page = (repository / publishing.RESULTS_PAGE).read_text()
    exports = f"{publishing.EXPORTS}/fig"
    assert page.splitlines() == [f"{exports}/first.zip: 5 rounds", f"{exports}/second.zip: 3 rounds"]
    assert [State.load(folder / name).stage for name in ("fig-first", "fig-second")] == ["finished", "finished"]
    assert not marked(folder)
    begun = entries(folder, "fig-second")[0]
    assert begun["words"][1:7:2] == ["--set"] * 3
    assert begun["words"][2:7:2] == ["seed=1", "tune.cpus_per_trial=2", "tune.max_concurrent=1"]
    assert not (folder / "fig-first" / "tree").exists()  # a finished item's tree is removed
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert (
        to_commit(repository) == f"to be committed: {exports}/first.zip, {exports}/second.zip, tune_configs/RESULTS.md"
    )
    commit(repository, "the evidence")
    assert to_commit(repository) == "all exports are committed"


def test_an_export_in_the_repository_is_not_made_again(repository, folder, tmp_path) -> None:
    runner(folder, repository).run()
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    (repository / publishing.EXPORTS / "fig" / "second.zip").unlink()
    runner(elsewhere, repository).run()
    assert not (elsewhere / "fig-first").exists()
    assert rounds(elsewhere, "fig-second") == [1, 2, 3]


def test_an_item_continues_with_the_code_with_which_it_began(repository, folder, monkeypatch) -> None:
    first = runner(folder, repository)
    monkeypatch.setattr(
        time,
        "sleep",
        lambda s, sleep=time.sleep: (sleep(s), first._on_signal() if rounds(folder, "fig-first")[1:] else 0),
    )
    first.run()
    monkeypatch.undo()
    assert State.load(folder / "fig-first").stage == "stopped"
    assert 2 <= len(rounds(folder, "fig-first")) < 5
    (repository / "code.txt").write_text("as it is now")
    new = commit(repository, "a refactoring")
    (repository / "code.txt").write_text("an edit that nobody committed")
    runner(folder, repository).run()
    assert rounds(folder, "fig-first") == [1, 2, 3, 4, 5]
    begins = [line for line in entries(folder, "fig-first") if "start" in line]
    assert [line["code"] for line in begins] == ["as it was", "as it was"]
    assert begins[1]["words"][:2] == ["--resume", "first-20260101-000000"]
    assert entries(folder, "fig-second")[0]["code"] == "as it is now"
    assert State.load(folder / "fig-second").commit == new


def test_partial_exports_are_made_while_the_sweep_runs(long, folder, monkeypatch) -> None:
    first, counts = runner(folder, long, every_s=0.01), list[int]()

    def record(place: Path, files: Mapping[str, bytes]) -> None:
        pack(place, files)
        counts.append(exported(long, "first"))
        if len(counts) == 3:
            first._on_signal()

    monkeypatch.setattr(report.exports, "pack", record)
    first.run()
    assert State.load(folder / "fig-first").stage == "stopped"
    assert counts == sorted(set(counts))  # each export has more rounds than the one before
    assert (long / publishing.RESULTS_PAGE).read_text() == f"{publishing.EXPORTS}/fig/first.zip: {counts[1]} rounds\n"


def test_an_export_that_a_stop_interrupts_is_made_later(long, folder, monkeypatch) -> None:
    first = runner(folder, long, every_s=0.01)
    original = first._publisher.call

    def interrupt(*arguments: Any) -> bool:
        first._on_signal()
        return original(*arguments)

    monkeypatch.setattr(first._publisher, "call", interrupt)
    before = time.time()
    first.run()
    state = State.load(folder / "fig-first")
    assert state.stage == "stopped"
    assert state.exported == pytest.approx(before, abs=5)
    assert state.exported < entries(folder, "fig-first")[-1]["time"] / 1000


def test_a_changed_environment_is_refused_and_the_next_item_runs(repository, folder, capsys) -> None:
    first = runner(folder, repository)
    item = first._queue.items[0]
    state = first._freeze(item, git(repository, "rev-parse", "HEAD"))
    state.packages.append("kiwi==1.0")
    state.stage = "stopped"
    state.save(folder / item.name)
    first.run()
    state = State.load(folder / item.name)
    assert state.stage == "failed"
    assert "changed since the sweep began (removed: kiwi==1.0" in state.error
    assert not (folder / item.name / "results").exists()
    assert State.load(folder / "fig-second").stage == "finished"
    lines = status_lines(folder, repository, first._queue)
    assert "failed" in lines[0]
    assert "kiwi" in lines[0]


def test_a_changed_tree_is_refused(repository, folder) -> None:
    first = runner(folder, repository)
    item = first._queue.items[0]
    first._freeze(item, git(repository, "rev-parse", "HEAD"))
    (folder / item.name / "tree" / "code.txt").write_text("edited")
    first.run()
    assert "with changes" in State.load(folder / item.name).error
    assert not (folder / item.name / "results").exists()


def test_the_next_item_runs_after_a_failing_sweep_which_a_new_queue_retries(repository, folder, capsys) -> None:
    (repository / "fail.txt").write_text("")
    commit(repository, "a mistake")
    runner(folder, repository).run()
    state = State.load(folder / "fig-first")
    assert state.stage == "failed"
    assert "ended 3 times" in state.error
    assert (folder / "fig-first" / "log.txt").read_text().count("no luck") == 3
    assert State.load(folder / "fig-second").stage == "failed"
    capsys.readouterr()
    runner(folder, repository).run()  # a new queue tries again
    assert (folder / "fig-first" / "log.txt").read_text().count("no luck") == 6


def test_an_item_without_its_sweep_file_waits(repository, folder, capsys) -> None:
    git(repository, "rm", "--quiet", "tune_configs/first.yaml")
    commit(repository, "later")
    runner(folder, repository).run()
    assert "fig-first: skipped" in capsys.readouterr().out
    assert State.load(folder / "fig-first").stage == "waiting"
    assert State.load(folder / "fig-second").stage == "finished"
    lines = status_lines(folder, repository, load_items(repository / command.LIST))
    assert "waiting   needs tune_configs/first.yaml, which does not exist" in lines[0]


def test_code_is_frozen_at_the_named_branch(repository, folder) -> None:
    git(repository, "switch", "--quiet", "--create", "other")
    (repository / "code.txt").write_text("the other branch")
    commit(repository, "other")
    runner(folder, repository, code="main").run()
    assert entries(folder, "fig-first")[0]["code"] == "as it was"
