"""hflray.tune.queue.runner, in this process: every item to its end, from frozen code, stopped and gone on with."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hflray.tune.frozen import git
from hflray.tune.items import State, load_items
from hflray.tune.queue import command, publishing
from hflray.tune.queue.processes import marked
from hflray.tune.queue.publishing import publish, to_commit
from hflray.tune.queue.status import status_lines
from tests.tune.queue.conftest import entries, exported, rounds, runner
from tests.tune.test_frozen import commit

pytestmark = pytest.mark.timeout(600)


def test_every_item_runs_to_its_end_and_is_exported(repository, folder) -> None:
    runner(folder, repository, cpus=2).run()
    assert rounds(folder, "fig-first") == [1, 2, 3, 4, 5]
    assert rounds(folder, "fig-second") == [1, 2, 3]
    assert exported(repository, "first") == 5
    assert exported(repository, "second") == 3
    page = (repository / publishing.RESULTS_PAGE).read_text()
    made = f"{publishing.EXPORTS}/fig"
    assert page.splitlines() == [f"{made}/first: 5 rounds", f"{made}/second: 3 rounds"]
    assert [State.load(folder / name).stage for name in ("fig-first", "fig-second")] == ["finished", "finished"]
    assert not marked(folder)
    begun = entries(folder, "fig-second")[0]
    assert begun["words"][1:5] == ["--set", "seed=1", "--set", "tune.max_concurrent=2"]
    assert not (folder / "fig-first" / "tree").exists()  # what is not needed any more goes
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert to_commit(repository) == f"to be committed: {made}/first, {made}/second, tune_configs/RESULTS.md"
    commit(repository, "the evidence")
    assert to_commit(repository) == "all exports are committed"


def test_what_the_repository_holds_is_not_made_again(repository, folder, tmp_path) -> None:
    runner(folder, repository).run()
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    (repository / publishing.EXPORTS / "fig" / "second" / "runs.json").unlink()
    runner(elsewhere, repository).run()
    assert not (elsewhere / "fig-first").exists()
    assert rounds(elsewhere, "fig-second") == [1, 2, 3]


def test_an_item_goes_on_with_the_code_it_began_with(repository, folder, monkeypatch) -> None:
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
    first, seen = runner(folder, long, every_s=0.01), list[int]()

    def note(made: Path, there: Path) -> None:
        publish(made, there)
        seen.append(exported(long, "first"))
        if len(seen) == 3:
            first._on_signal()

    monkeypatch.setattr(publishing, "publish", note)
    first.run()
    assert State.load(folder / "fig-first").stage == "stopped"
    assert seen == sorted(set(seen))  # each has more rounds than the one before
    assert (long / publishing.RESULTS_PAGE).read_text() == f"{publishing.EXPORTS}/fig/first: {seen[1]} rounds\n"


def test_an_export_that_a_stop_cuts_off_stays_due(repository, folder, monkeypatch) -> None:
    first = runner(folder, repository, every_s=0.01)
    call_ = first._publisher.call

    def cut_off(*arguments: Any) -> bool:
        first._on_signal()
        return call_(*arguments)

    monkeypatch.setattr(first._publisher, "call", cut_off)
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
    assert "changed since the sweep began (it had kiwi==1.0" in state.error
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


def test_a_sweep_that_keeps_failing_gives_way_to_the_next_and_is_tried_again_later(repository, folder, capsys) -> None:
    (repository / "fail.txt").write_text("")
    commit(repository, "a mistake")
    runner(folder, repository).run()
    state = State.load(folder / "fig-first")
    assert state.stage == "failed"
    assert "ended 3 times" in state.error
    assert (folder / "fig-first" / "log.txt").read_text().count("no luck") == 3
    assert State.load(folder / "fig-second").stage == "failed"
    capsys.readouterr()
    runner(folder, repository).run()  # a queue that is started again tries once more
    assert (folder / "fig-first" / "log.txt").read_text().count("no luck") == 6


def test_an_item_whose_sweep_file_is_not_there_yet_waits(repository, folder, capsys) -> None:
    git(repository, "rm", "--quiet", "tune_configs/first.yaml")
    commit(repository, "later")
    runner(folder, repository).run()
    assert "fig-first: skipped" in capsys.readouterr().out
    assert State.load(folder / "fig-first").stage == "waiting"
    assert State.load(folder / "fig-second").stage == "finished"
    lines = status_lines(folder, repository, load_items(repository / command.LIST))
    assert "waiting   needs tune_configs/first.yaml, which is not here" in lines[0]


def test_code_is_frozen_at_the_branch_that_is_named(repository, folder) -> None:
    git(repository, "switch", "--quiet", "--create", "other")
    (repository / "code.txt").write_text("the other branch")
    commit(repository, "other")
    runner(folder, repository, code="main").run()
    assert entries(folder, "fig-first")[0]["code"] == "as it was"
