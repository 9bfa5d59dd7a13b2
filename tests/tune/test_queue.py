"""hflray.tune.queue: sweeps from frozen code, stopped and gone on with, exported, paused; nothing is left running.

The repository of most tests is a small one whose `hflray` is a stand-in: a sweep that counts rounds and a report that
copies them. The last test, `slow`, runs a real sweep of this repository.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hflray.errors import ConfigError
from hflray.sweep import load_sweep
from hflray.tune import queue
from hflray.tune.frozen import git
from hflray.tune.items import State, load_items, trials_of
from hflray.tune.queue import Runner, end_leftovers, holder, marked, only_one, publish, status_lines, to_commit
from tests.tune.test_frozen import commit

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)

SWEEP = """
name: {name}
experiment: {{max_rounds: {rounds}, fleet: {{num_devices: 12}}, scheduling: {{num_scheduled: 4}}}}
"""
LIST = """
items:
  - {exhibit: fig, part: first, file: first}
  - {exhibit: fig, part: second, file: second, set: [seed=1]}
"""
# A sweep: a round every 0.1 s, a process beside it, and a clean end on SIGTERM. `fail.txt` beside it makes it fail.
TUNE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
words, here = sys.argv[1:], Path(__file__).parents[2]
results = Path(words[words.index("--results") + 1])
if words[0] == "--resume":
    folder = results / words[1]
else:
    folder = results / f"{Path(words[0]).stem}-20260101-000000"
about = json.loads((here / "about.json").read_text())[folder.name.partition("-")[0]]
if (here / "fail.txt").exists():
    sys.exit("no luck")
journal = folder / "journal" / f"{about['trial']}.jsonl"
journal.parent.mkdir(parents=True, exist_ok=True)
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
helper = subprocess.Popen(["sleep", "600"])
old = journal.read_text().count('"round"') if journal.exists() else 0
def say(**entry):
    with journal.open("a") as file:
        file.write(json.dumps(entry) + "\\n")
def save(finished):
    (folder / "sweep.json").write_text(json.dumps({"finished": finished}))
save(False)
say(start=1, words=words, code=(here / "code.txt").read_text(), nice=os.nice(0), mark=os.environ["HFLRAY_QUEUE_OF"])
for number in range(old + 1, about["rounds"] + 1):
    time.sleep(0.1)
    say(round=number, time=int(1000 * time.time()), metrics={})
    if stopping:
        helper.kill()
        sys.exit(130)
say(end="FINISHED", error=None, time=int(1000 * time.time()))
save(True)
helper.kill()
"""
# A report: the export holds the number of rounds; RESULTS.md names the exports.
REPORT = """
import json, sys
from pathlib import Path
words = sys.argv[1:]
if words[0] == "results":
    found = sorted(Path(words[words.index("--from") + 1]).glob("*/*/runs.json"))
    text = "".join(f"{p.parent}: {json.loads(p.read_text())['rounds']} rounds\\n" for p in found)
    Path(words[words.index("--out") + 1]).write_text(text)
else:
    (path,) = (Path(words[words.index("--results") + 1]) / words[0] / "journal").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    status = "FINISHED" if any("end" in line for line in lines) else "RUNNING"
    out = Path(words[words.index("--export") + 1]) / "name"
    out.mkdir(parents=True)
    count = sum("round" in line for line in lines)
    (out / "a.rounds.parquet").write_text(str(count))
    about = {"name": path.stem, "status": status}
    (out / "runs.json").write_text(json.dumps({"runs": [about], "rounds": count}))
"""


def tree(path: Path, **rounds: int) -> None:
    """Write the stand-in repository: sweeps by name, of so many rounds."""
    files = {"tune/__main__.py": TUNE, "report/__main__.py": REPORT, "__init__.py": "", "tune/__init__.py": ""}
    for name, text in (files | {"report/__init__.py": ""}).items():
        (path / "hflray" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "hflray" / name).write_text(text)
    (path / "tune_configs" / "queue").mkdir(parents=True)
    (path / "tune_configs" / "queue" / "figures.yaml").write_text(LIST)
    (path / "tune_configs" / "RESULTS.md").write_text("nothing yet\n")
    about = {}
    for name, count in rounds.items():
        sweep = path / "tune_configs" / f"{name}.yaml"
        sweep.write_text(SWEEP.format(name=name, rounds=count))
        overrides = ["seed=1"] if name == "second" else []
        (trial,) = trials_of(load_sweep(sweep, overrides))
        about[name] = {"trial": trial, "rounds": count}
    (path / "about.json").write_text(json.dumps(about))
    (path / "code.txt").write_text("as it was")
    (path / ".gitignore").write_text("__pycache__/\n")


@pytest.fixture
def repository(tmp_path) -> Path:
    path = tmp_path / "repository"
    tree(path, first=5, second=3)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(path))
    commit(path, "the stand-in")
    return path


@pytest.fixture
def folder(tmp_path) -> Iterator[Path]:
    path = tmp_path / "queue"
    path.mkdir()
    yield path
    if (pid := holder(path)) is not None:
        os.kill(pid, signal.SIGKILL)
    end_leftovers(path, 0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(queue, "RETRIES_AFTER_S", (0.0, 0.0))
    monkeypatch.setattr(queue, "STEP_S", 0.05)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def runner(folder: Path, repository: Path, **settings: Any) -> Runner:
    items = load_items(repository / queue.LIST)
    return Runner(folder, repository, items, python=Path(sys.executable), niceness=0, **settings)


def entries(folder: Path, item: str) -> list[dict[str, Any]]:
    (path,) = (folder / item / "results").glob("*/journal/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def rounds(folder: Path, item: str) -> list[int]:
    paths = (folder / item / "results").glob("*/journal/*.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines(keepends=True) if "\n" in line]
    return [line["round"] for line in lines if "round" in line]


def exported(repository: Path, part: str) -> Any:
    return json.loads((repository / queue.EXPORTS / "fig" / part / "runs.json").read_text())["rounds"]


def wait(what: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.fixture
def long(repository) -> Path:
    """The stand-in with a sweep that does not end during a test."""
    about = json.loads((repository / "about.json").read_text())
    about["first"]["rounds"] = 100_000
    (repository / "about.json").write_text(json.dumps(about))
    commit(repository, "a long one")
    return repository


# The runner, in this process.


def test_every_item_runs_to_its_end_and_is_exported(repository, folder) -> None:
    runner(folder, repository, cpus=2).run()
    assert rounds(folder, "fig-first") == [1, 2, 3, 4, 5]
    assert rounds(folder, "fig-second") == [1, 2, 3]
    assert exported(repository, "first") == 5
    assert exported(repository, "second") == 3
    page = (repository / queue.RESULTS_PAGE).read_text()
    assert page.splitlines() == [f"{queue.EXPORTS}/fig/first: 5 rounds", f"{queue.EXPORTS}/fig/second: 3 rounds"]
    assert [State.load(folder / name).stage for name in ("fig-first", "fig-second")] == ["finished", "finished"]
    assert not marked(folder)
    begun = entries(folder, "fig-second")[0]
    assert begun["words"][1:5] == ["--set", "seed=1", "--set", "tune.max_concurrent=2"]
    assert not (folder / "fig-first" / "tree").exists()  # what is not needed any more goes
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert to_commit(repository) == (
        f"to be committed: {queue.EXPORTS}/fig/first, {queue.EXPORTS}/fig/second, tune_configs/RESULTS.md"
    )
    commit(repository, "the evidence")
    assert to_commit(repository) == "all exports are committed"


def test_what_the_repository_holds_is_not_made_again(repository, folder, tmp_path) -> None:
    runner(folder, repository).run()
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    (repository / queue.EXPORTS / "fig" / "second" / "runs.json").unlink()
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

    monkeypatch.setattr(queue, "publish", note)
    first.run()
    assert State.load(folder / "fig-first").stage == "stopped"
    assert seen == sorted(set(seen))  # each has more rounds than the one before
    assert (long / queue.RESULTS_PAGE).read_text() == f"{queue.EXPORTS}/fig/first: {seen[1]} rounds\n"


def test_an_export_that_a_stop_cuts_off_stays_due(repository, folder, monkeypatch) -> None:
    first = runner(folder, repository, every_s=0.01)
    call_ = first._call

    def cut_off(*arguments: Any) -> bool:
        first._on_signal()
        return call_(*arguments)

    monkeypatch.setattr(first, "_call", cut_off)
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
    lines = status_lines(folder, repository, load_items(repository / queue.LIST))
    assert "waiting   needs tune_configs/first.yaml, which is not here" in lines[0]


def test_code_is_frozen_at_the_branch_that_is_named(repository, folder) -> None:
    git(repository, "switch", "--quiet", "--create", "other")
    (repository / "code.txt").write_text("the other branch")
    commit(repository, "other")
    runner(folder, repository, code="main").run()
    assert entries(folder, "fig-first")[0]["code"] == "as it was"


def test_an_export_replaces_the_old_one_with_its_list_last(tmp_path, monkeypatch) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    for path, runs in ((made, "b c"), (there, "a b")):
        path.mkdir()
        (path / "runs.json").write_text(runs)
        for name in runs.split():
            (path / f"{name}.rounds.parquet").write_text(f"{path.name} {name}")
    (there / "about.txt").write_text("who ran it")
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b)))
    publish(made, there)
    assert order == ["b.rounds.parquet", "c.rounds.parquet", "runs.json"]
    assert {path.name: path.read_text() for path in there.iterdir()} == {
        "about.txt": "who ran it", "runs.json": "b c", "b.rounds.parquet": "made b", "c.rounds.parquet": "made c",
    }  # fmt: skip


def test_one_queue_at_a_time(folder) -> None:
    assert holder(folder) is None
    with only_one(folder):
        assert holder(folder) == os.getpid()
        with pytest.raises(ConfigError, match=f"process {os.getpid()} runs this queue; end it with"), only_one(folder):
            pass
    assert holder(folder) is None


def test_all_that_it_starts_has_the_lowest_priority_after_its_first_round(repository, folder) -> None:
    about = json.loads((repository / "about.json").read_text())
    about["first"]["rounds"] = 20
    (repository / "about.json").write_text(json.dumps(about))
    commit(repository, "longer")
    first, seen = runner(folder, repository), []
    first._niceness = 19
    said = queue._group_last

    def note(pid: int, niceness: int) -> None:
        said(pid, niceness)
        seen.append((len(rounds(folder, "fig-first")), Path(f"/proc/{pid}/autogroup").read_text().split()[-1]))

    queue._group_last = note
    try:
        first.run()
    finally:
        queue._group_last = said
    assert entries(folder, "fig-first")[0]["nice"] == 19
    assert seen[0][0] >= 1
    assert seen[0][1] == "19" or not Path("/proc/self/autogroup").exists()


# The command, in processes of its own.


def call(*words: str | Path, code: int = 0) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-m", "hflray.tune.queue", *map(str, words)], env=env, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def start(folder: Path, repository: Path, *words: str) -> str:
    own = ("--python", sys.executable, "--niceness", "0")  # a test must not wait for a machine that is not busy
    return call("start", "--folder", folder, "--repository", repository, *own, *words)


def test_start_stop_and_start_again(long, folder) -> None:
    assert "runs as process" in start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    assert "it runs already, as process" in start(folder, long)
    begun = entries(folder, "fig-first")[0]
    assert begun["mark"] == str(folder)
    assert len(marked(folder)) == 2  # the sweep and the process beside it
    lines = call("status", "--folder", folder, "--repository", long).splitlines()
    assert lines[0].startswith("fig-first   running")
    assert "s each, at most" in lines[0]
    assert lines[-2].startswith(f"runs as process {holder(folder)}")

    assert "stopped" in call("stop", "--folder", folder)
    assert not marked(folder)
    assert holder(folder) is None
    count = len(rounds(folder, "fig-first"))
    assert "fig-first   stopped" in call("status", "--folder", folder, "--repository", long)
    assert "it does not run" in call("stop", "--folder", folder)

    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > count + 1)
    call("stop", "--folder", folder)
    done = rounds(folder, "fig-first")
    assert done == list(range(1, len(done) + 1))


def test_a_queue_that_was_killed_leaves_nothing_behind_and_goes_on(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    pid = holder(folder)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: not marked(folder), 20)  # its sweep ends by itself, cleanly
    assert "fig-first   killed" in call("status", "--folder", folder, "--repository", long)
    count = len(rounds(folder, "fig-first"))
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > count)
    call("stop", "--folder", folder)
    done = rounds(folder, "fig-first")
    assert done == list(range(1, len(done) + 1))


def test_processes_that_a_killed_sweep_leaves_are_ended(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    pid = holder(folder)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.kill(State.load(folder / "fig-first").pid, signal.SIGKILL)
    time.sleep(0.5)
    assert len(marked(folder)) == 1
    call("stop", "--folder", folder, "--within", "0")
    assert not marked(folder)


def test_a_command_runs_while_the_queue_stands_still(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    probe = "import sys; from pathlib import Path; from hflray.tune.queue import holder, marked\n"
    probe += "place = Path(sys.argv[1]); print('found', holder(place), marked(place)); sys.exit(3)"
    said = call("paused", "--folder", folder, "--", sys.executable, "-c", probe, folder, code=3)
    assert "found None []" in said
    assert holder(folder) is not None  # it goes on, although the command failed
    count = len(rounds(folder, "fig-first"))
    wait(lambda: len(rounds(folder, "fig-first")) > count)
    call("stop", "--folder", folder)
    assert call("paused", "--folder", folder, "--", "echo", "one", "--two").strip() == "one --two"
    assert holder(folder) is None  # it did not run before
    assert "nosuch: cannot be run" in call("paused", "--folder", folder, "--", "nosuch", code=2)


def test_the_last_of_two_benchmarks_starts_the_queue_again(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    other = (folder / queue.PAUSE).open("a")
    fcntl.flock(other, fcntl.LOCK_SH)  # a benchmark that runs longer than the one below
    call("paused", "--folder", folder, "--", "true")
    assert holder(folder) is None
    assert "paused for a benchmark" in call("status", "--folder", folder, "--repository", long)
    assert "a benchmark runs; the queue starts when it has ended" in start(folder, long)
    other.close()
    call("paused", "--folder", folder, "--", "true")
    assert holder(folder) is not None
    call("stop", "--folder", folder)


def test_an_item_that_is_dropped_begins_anew_and_is_kept_aside(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    assert "runs this queue" in call("drop", "fig/first", "--folder", folder, "--repository", long, code=2)
    call("stop", "--folder", folder)
    said = call("drop", "fig/first", "--folder", folder, "--repository", long)
    (aside,) = folder.glob("dropped-fig-first-*")
    assert str(aside) in said
    assert list(aside.glob("results/*/journal/*.jsonl"))
    assert len(git(long, "worktree", "list").splitlines()) == 1
    assert "has not begun" in call("drop", "fig-first", "--folder", folder, "--repository", long, code=2)
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 0)
    call("stop", "--folder", folder)
    assert rounds(folder, "fig-first")[0] == 1


def test_mistakes_are_named_in_a_line(repository, folder, tmp_path) -> None:
    said = call("start", "--folder", folder, "--repository", tmp_path, code=2)
    assert said.strip() == f"error: --repository {tmp_path}: no git checkout; run this in a clone of the repository"
    said = call("start", "--folder", folder, "--repository", repository, "--code", "nosuch", code=2)
    assert "--code nosuch: no commit or branch" in said
    said = call("status", "--folder", folder, "--repository", repository, "--list", tmp_path / "none.yaml", code=2)
    assert "none.yaml: cannot read" in said
    assert holder(folder) is None


def test_make_bench_runs_its_command_through_the_queue() -> None:
    said = subprocess.run(["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-m hflray.tune.queue paused -- sh -c" in said


# With a real sweep.


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_sweep_is_killed_goes_on_and_is_exported(tmp_path, folder) -> None:
    repository = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--shared", str(ROOT), str(repository))
    quick = "max_rounds=15, 'sweep.scheduling.name={grid: [ikc]}', scheduling.num_scheduled=5, training.backend=serial"
    path = tmp_path / "list.yaml"
    path.write_text(f"items: [{{exhibit: tiny, part: digits, file: quickstart, set: [{quick}]}}]")
    words = ("--list", str(path), "--every", "1")
    start(folder, repository, *words)
    wait(lambda: len(rounds(folder, "tiny-digits")) > 3, 300)
    pid = holder(folder)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    start(folder, repository, *words)
    wait(lambda: State.load(folder / "tiny-digits").stage == "finished", 600)
    wait(lambda: holder(folder) is None)
    assert rounds(folder, "tiny-digits") == list(range(1, 16))
    assert (folder / queue.LOG).read_text().count("goes on as process") == 1
    about = json.loads((repository / queue.EXPORTS / "tiny" / "digits" / "runs.json").read_text())
    (run,) = about["runs"]
    assert run["status"] == "FINISHED"
    assert run["environment"]["git_commit"] == git(ROOT, "rev-parse", "HEAD")  # and not -dirty
    assert shutil.which("git")
    call("stop", "--folder", folder)
    assert not marked(folder)
