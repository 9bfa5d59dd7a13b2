"""`hflray.reproduction.queue.command`: start, stop, pause and drop leave no process running.

The last test, which is slow, runs a real sweep of this repository.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from hflray.report.exports import content_of, files_of
from hflray.reproduction.queue import command, lock, publishing, status
from hflray.reproduction.queue.frozen import git
from hflray.reproduction.queue.items import State
from hflray.reproduction.queue.lock import holder
from hflray.reproduction.queue.processes import marked
from tests.reproduction.queue.conftest import ROOT, entries, rounds, wait

pytestmark = pytest.mark.timeout(600)


def call(*words: str | Path, code: int = 0) -> str:
    if words[0] in ("stop", "status", "drop"):  # the other commands start processes or print their output
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output), pytest.raises(SystemExit) as end:
            command.main([str(word) for word in words])
        assert (end.value.code or 0) == code, output.getvalue()
        return output.getvalue()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "hflray.reproduction.queue", *map(str, words)], env=env, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def start(folder: Path, repository: Path, *words: str) -> str:
    options = ("--python", sys.executable, "--niceness", "0")  # at low priority a test could wait for minutes
    return call("start", "--folder", folder, "--repository", repository, *options, *words)


def test_start_stop_and_start_again(long, folder) -> None:
    assert "runs as process" in start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    assert "the queue already runs as process" in start(folder, long)
    begun = entries(folder, "fig-first")[0]
    assert begun["mark"] == str(folder)
    assert len(marked(folder)) == 2  # the sweep and its helper process
    lines = call("status", "--folder", folder, "--repository", long).splitlines()
    assert lines[0].startswith("fig-first   running")
    assert "s each, at most" in lines[0]
    assert lines[-2].startswith(f"runs as process {holder(folder)}")

    assert "stopped" in call("stop", "--folder", folder)
    assert not marked(folder)
    assert holder(folder) is None
    count = len(rounds(folder, "fig-first"))
    assert "fig-first   stopped" in call("status", "--folder", folder, "--repository", long)
    assert "the queue does not run" in call("stop", "--folder", folder)

    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > count + 1)
    call("stop", "--folder", folder)
    done = rounds(folder, "fig-first")
    assert done == list(range(1, len(done) + 1))


def test_a_killed_queue_leaves_no_process_and_can_continue(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    pid = holder(folder)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: not marked(folder), 20)  # its sweep ends cleanly by itself
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


def test_a_command_runs_while_the_queue_is_paused(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    probe = "import sys; from pathlib import Path; from hflray.reproduction.queue.lock import holder\n"
    probe += "from hflray.reproduction.queue.processes import marked\n"
    probe += "place = Path(sys.argv[1]); print('running:', holder(place), marked(place)); sys.exit(3)"
    output = call("paused", "--folder", folder, "--", sys.executable, "-c", probe, folder, code=3)
    assert "running: None []" in output
    assert holder(folder) is not None  # the queue continues although the command failed
    count = len(rounds(folder, "fig-first"))
    wait(lambda: len(rounds(folder, "fig-first")) > count)
    call("stop", "--folder", folder)
    assert call("paused", "--folder", folder, "--", "echo", "one", "--two").strip() == "one --two"
    assert holder(folder) is None  # the queue did not run before the pause
    assert "nosuch: cannot be run" in call("paused", "--folder", folder, "--", "nosuch", code=2)


def test_the_last_of_two_benchmarks_starts_the_queue_again(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    other = (folder / lock.PAUSE).open("a")
    fcntl.flock(other, fcntl.LOCK_SH)  # a benchmark that runs longer than the one below
    call("paused", "--folder", folder, "--", "true")
    assert holder(folder) is None
    assert "paused for a benchmark" in call("status", "--folder", folder, "--repository", long)
    assert "a benchmark runs; the queue starts when the benchmark has ended" in start(folder, long)
    other.close()
    call("paused", "--folder", folder, "--", "true")
    assert holder(folder) is not None
    call("stop", "--folder", folder)


def test_a_dropped_item_begins_anew_and_its_results_are_moved_aside(long, folder) -> None:
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 2)
    assert "runs this queue" in call("drop", "fig/first", "--folder", folder, "--repository", long, code=2)
    call("stop", "--folder", folder)
    output = call("drop", "fig/first", "--folder", folder, "--repository", long)
    (aside,) = folder.glob("dropped-fig-first-*")
    assert str(aside) in output
    assert list(aside.glob("results/*/journal/*.jsonl"))
    assert len(git(long, "worktree", "list").splitlines()) == 1
    assert "has not begun" in call("drop", "fig-first", "--folder", folder, "--repository", long, code=2)
    start(folder, long)
    wait(lambda: len(rounds(folder, "fig-first")) > 0)
    call("stop", "--folder", folder)
    assert rounds(folder, "fig-first")[0] == 1


def test_a_mistake_gives_one_line(repository, folder, tmp_path) -> None:
    output = call("start", "--folder", folder, "--repository", tmp_path, code=2)
    assert (
        output.strip() == f"error: --repository {tmp_path}: not a git checkout; run this in a clone of the repository"
    )
    output = call("start", "--folder", folder, "--repository", repository, "--code", "nosuch", code=2)
    assert "--code nosuch: no commit or branch" in output
    output = call("status", "--folder", folder, "--repository", repository, "--list", tmp_path / "none.yaml", code=2)
    assert "none.yaml: cannot read" in output
    assert holder(folder) is None


def test_make_bench_runs_its_command_through_the_queue() -> None:
    output = subprocess.run(["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"-m hflray\.reproduction\.queue paused -- \S+ -m tests\.benchmarks", output)


# The next test runs a real sweep.


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_real_sweep_that_was_killed_continues_and_is_exported(tmp_path, folder) -> None:
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
    assert (folder / status.LOG).read_text().count("goes on as process") == 1
    about = content_of(files_of(repository / publishing.EXPORTS / "tiny" / "digits"))
    (run,) = about["runs"]
    assert run["status"] == "FINISHED"
    assert run["environment"]["git_commit"] == git(ROOT, "rev-parse", "HEAD")  # without -dirty
    assert shutil.which("git")
    call("stop", "--folder", folder)
    assert not marked(folder)
