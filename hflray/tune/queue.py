"""The command ``python -m hflray.tune.queue``: long runs, one after the other, in the background at low priority.

Each item of the list is one sweep. It runs from a git worktree of one commit and in an environment of its own, see
`hflray.tune.frozen`, so that it can be stopped and goes on from the round it was in while the repository changes. Every
half hour its export replaces the one in the repository, and ``tune_configs/RESULTS.md`` is written anew from all
exports. The queue commits nothing.

All that it starts carries an environment variable, by which `stop` finds what is left of it: Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hflray.errors import ConfigError, HflrayError
from hflray.progress import duration
from hflray.tune.frozen import (
    check_packages,
    check_tree,
    commit_of,
    freeze_environment,
    freeze_tree,
    git,
    packages_of,
    release_tree,
)
from hflray.tune.items import (
    Item,
    QueueFile,
    State,
    find_item,
    is_exported,
    load_items,
    progress,
    sweep_of,
    trials_of,
)

REPOSITORY = Path(__file__).parents[2]
LIST = Path("tune_configs/queue/figures.yaml")
EXPORTS = Path("tests/data/results")
RESULTS_PAGE = Path("tune_configs/RESULTS.md")
MARK = "HFLRAY_QUEUE_OF"  # in the environment of every process of a queue: its folder
LOCK, PAUSE, STARTED, PAUSED, LOG = ".lock", ".pause", "started.json", "paused.json", "queue.log"
NICENESS = 19
STOP_WITHIN_S = 600.0  # for the rounds that run: one at H = 100 takes minutes on a busy machine
KILL_AFTER_S = 15.0
STEP_S = 0.5
RETRIES_AFTER_S = (30.0, 120.0, 480.0, 1920.0)  # a sweep that ended too soon, since it made its last round
EXPORT_WITHIN_S = 3600.0  # of a busy machine; it takes 20 s of an idle one
# At this priority a busy machine gives a process nothing for minutes. Ray takes one that is silent for 30 to 60 s for
# dead, and its driver ends: it is given an hour. A process that is dead closes its connections, which Ray sees at once.
PATIENCE = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    "RAY_gcs_server_request_timeout_seconds": "3600",
    "RAY_raylet_rpc_server_reconnect_timeout_base_s": "3600",
    "RAY_raylet_rpc_server_reconnect_timeout_max_s": "3600",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_health_check_failure_threshold": "60",
    "RAY_worker_register_timeout_seconds": "3600",
    "RAY_agent_register_timeout_ms": "3600000",
    "RAY_grpc_client_keepalive_timeout_ms": "3600000",
    "RAY_grpc_keepalive_timeout_ms": "3600000",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "3600",
}
NOBODY = "http://127.0.0.1:9"  # the discard port: the report takes the journal instead of MLflow
SAY: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/hflray/queue`` or ``~/.cache/hflray/queue``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hflray" / "queue"


# Locks: each is held by an open file, so it ends with its process.


def _locked(path: Path, kind: int) -> Any:
    """The open file that holds the lock, or None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Have the queue's folder to oneself. Raises ConfigError: another queue runs there; the message names it."""
    for _ in range(20):  # `holder` has the lock for a moment
        file = _locked(folder / LOCK, fcntl.LOCK_EX)
        if file is not None:
            break
        time.sleep(0.05)
    else:
        raise ConfigError(f"{folder}: process {holder(folder)} runs this queue; end it with `make queue-stop` first")
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(folder: Path) -> int | None:
    """The process that runs the queue, or None."""
    for _ in range(20):
        file = _locked(folder / LOCK, fcntl.LOCK_SH) if folder.is_dir() else None
        if file is not None or not folder.is_dir():
            if file is not None:
                file.close()
            return None
        with suppress(OSError, ValueError):
            return int((folder / LOCK).read_text(encoding="utf-8"))
        time.sleep(0.05)
    return None


# Processes.


def marked(folder: Path) -> list[int]:
    """The processes that this queue started and their descendants."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return sorted(set(found) - {os.getpid()})


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_leftovers(folder: Path, wait_s: float = KILL_AFTER_S) -> None:
    """End what is left of the queue's processes: they are given `wait_s`, then told to end, then killed."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            _send(marked(folder), number)
        deadline = time.monotonic() + (wait_s if number is None else KILL_AFTER_S)
        while marked(folder):
            if time.monotonic() > deadline:
                break
            time.sleep(STEP_S)
        else:
            return


def _group_last(pid: int, niceness: int) -> None:
    """Lower the priority of the session that `pid` leads, where the kernel groups processes by session.

    There (``sched_autogroup_enabled``) niceness counts within a session only: a busy loop at niceness 19 takes as much
    of a core as one at 0 in another session.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


def _as_child(niceness: int) -> None:
    """In a child, before its command: end cleanly if the queue is killed, instead of running on unattended."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    os.nice(max(0, niceness - os.nice(0)))


class Runner:
    """Runs the items of the list until all are done or it is stopped.

    Args:
        folder: of the queue.
        repository: the checkout whose exports it renews.
        queue: the list.
        code: commit or branch that items which begin now are frozen at.
        cpus: how many CPUs the sweeps may use.
        every_s: seconds between exports.
        python: an interpreter to be used as it is, instead of a copy of this one's environment.
        niceness: of all that it starts.
        stop_within_s: seconds that running rounds are given when the queue is stopped.
    """

    def __init__(
        self,
        folder: Path,
        repository: Path,
        queue: QueueFile,
        *,
        code: str = "HEAD",
        cpus: int = 1,
        every_s: float = 1800.0,
        python: Path | None = None,
        niceness: int = NICENESS,
        stop_within_s: float = STOP_WITHIN_S,
    ) -> None:
        self._folder, self._repository, self._queue, self._code = folder, repository, queue, code
        self._cpus, self._every_s, self._python, self._stop_within_s = cpus, every_s, python, stop_within_s
        self._niceness = niceness
        self._tried: set[str] = set()
        self._stopping = False

    def run(self) -> None:
        """Run until nothing is left to do, or SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if marked(self._folder):
            self._say("waiting for the sweep of a queue that was killed")
            # That sweep was told to stop when its queue died; its rounds are given the same time as by `stop`.
            end_leftovers(self._folder, self._stop_within_s)
        while not self._stopping and (item := self._next()) is not None:
            self._tried.add(item.name)
            try:
                self._work(item)
            except (HflrayError, OSError) as error:
                self._fail(item, str(error))
        self._say("stopped" if self._stopping else "nothing is left to do")

    def _on_signal(self, *_: object) -> None:
        self._stopping = True

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)

    def _place(self, item: Item) -> Path:
        return self._folder / item.name

    def _next(self) -> Item | None:
        """The next item: one that has begun, or else the first of the list that is not done."""
        begun, new = [], []
        for item in self._queue.items:
            if item.name in self._tried:
                continue
            try:
                stage = State.load(self._place(item)).stage
            except ConfigError as error:
                self._say(str(error))
                continue
            if stage in ("running", "stopped", "ended"):
                begun.append(item)
            elif stage != "finished" and not is_done(self._repository, self._queue, item):
                new.append(item)
        return next(iter(begun + new), None)

    def _work(self, item: Item) -> None:
        place = self._place(item)
        state = State.load(place)
        if not state.commit:
            commit = commit_of(self._repository, self._code)
            if not has_file(self._repository, commit, item.path):
                self._say(f"{item.name}: skipped: commit {commit[:12]} has no {item.path}")
                return
            self._say(f"{item.name}: freezing commit {commit[:12]} and the environment")
            state = self._freeze(item, commit)
        else:
            check_tree(place / "tree", state.commit)
            check_packages(Path(state.python), state.packages)
        if state.stage != "ended" and not self._sweep(item, state):
            return
        self._publish(item, state)
        whole = is_exported(self._exports(item), state.trials)
        if self._stopping and not whole:
            return
        if not whole:
            raise ConfigError(f"some of its trials failed, or their export did; see {place / 'log.txt'}")
        state.stage, state.error = "finished", ""
        state.save(place)
        release_tree(self._repository, place / "tree")
        self._say(f"{item.name}: finished")

    def _freeze(self, item: Item, commit: str) -> State:
        place = self._place(item)
        freeze_tree(self._repository, commit, place / "tree")
        python = self._python or freeze_environment(self._folder / "environments")
        file, overrides = sweep_of(place / "tree", item, self._queue.experiments)
        at_a_time = max(1, self._cpus // file.tune.cpus_per_trial)
        state = State(
            commit=commit,
            python=str(python),
            packages=packages_of(python),
            overrides=[*overrides, f"tune.max_concurrent={at_a_time}"],
            trials=trials_of(file),
            cpus=at_a_time,
        )
        state.save(place)
        return state

    def _fail(self, item: Item, reason: str) -> None:
        self._say(f"{item.name}: failed: {reason}")
        with suppress(HflrayError, OSError):
            state = State.load(self._place(item))
            state.stage, state.error = "failed", reason
            state.save(self._place(item))

    def _environment(self, tree: Path) -> dict[str, str]:
        """What the sweep's processes find in their environment; nothing of the caller's that would lead elsewhere."""
        away = ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {key: value for key, value in os.environ.items() if key not in away}
        return kept | {
            MARK: str(self._folder), "PYTHONPATH": str(tree), "PYTHONNOUSERSITE": "1", "COLUMNS": "160",
            "RAY_worker_niceness": str(self._niceness), "OMP_NUM_THREADS": str(self._cpus),
            "SPT_NOENV": "1",  # or Ray writes its processes' titles over the mark
            **PATIENCE,
        }  # fmt: skip

    def _start(self, command: Sequence[str], place: Path, tree: Path, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                list(command), cwd=place, env=self._environment(tree), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=partial(_as_child, self._niceness),
            )  # fmt: skip

    def _sweep(self, item: Item, state: State) -> bool:
        """Run or resume the item's sweep, again and again until it has ended; False: the queue is stopped before.

        Raises:
            ConfigError: it ended too soon several times without having made a round in between.
        """
        place, failures, before = self._place(item), 0, -1
        while not self._stopping:
            code = self._attempt(item, state)
            if _ended(place / "results"):
                state.stage = "ended"
                state.save(place)
                return True
            if self._stopping:
                break
            self._say(f"{item.name}: its sweep ended with code {code}, see {place / 'log.txt'}")
            done = progress(state.trials, place / "results").done
            failures, before = failures + 1 if done == before else 1, done
            if failures > len(RETRIES_AFTER_S):
                raise ConfigError(f"its sweep ended {failures} times before its last round; see {place / 'log.txt'}")
            self._sleep(RETRIES_AFTER_S[failures - 1])
        state.stage = "stopped"
        state.save(place)
        return False

    def _attempt(self, item: Item, state: State) -> int | None:
        """Run or resume the item's sweep once and export it now and then; return its exit code."""
        place, tree = self._place(item), self._place(item) / "tree"
        command = [state.python, "-m", "hflray.tune"]
        unfinished = sorted(path.parent.name for path in (place / "results").glob("*/sweep.json"))
        if unfinished:
            command += ["--resume", unfinished[-1]]
        else:
            command += [str(tree / item.path), *(word for text in state.overrides for word in ("--set", text))]
        process = self._start([*command, "--results", str(place / "results")], place, tree, place / "log.txt")
        self._say(f"{item.name}: {'goes on' if unfinished else 'begins'} as process {process.pid}")
        state.stage, state.pid, state.error = "running", process.pid, ""
        state.exported = state.exported or time.time()
        state.save(place)
        before, settled = progress(state.trials, place / "results").done, False
        while process.poll() is None and not self._stopping:
            # Ray gives up a start that takes its processes more than 30 s: until its first round the sweep gets a
            # share like others.
            if not settled and progress(state.trials, place / "results").done > before:
                _group_last(process.pid, self._niceness)
                settled = True
            if time.time() - state.exported >= self._every_s:
                self._publish(item, state)
            time.sleep(STEP_S)
        if process.poll() is None:
            self._end(process)
        end_leftovers(self._folder)
        return process.returncode

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """The first signal lets running rounds end and be saved, the second does not."""
        for wait_s in (self._stop_within_s, KILL_AFTER_S):
            _send([process.pid], signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
                return
        _send(marked(self._folder), signal.SIGKILL)
        process.wait()

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < deadline:
            time.sleep(STEP_S)

    def _exports(self, item: Item) -> Path:
        return self._repository / EXPORTS / item.exhibit / item.part

    def _publish(self, item: Item, state: State) -> None:
        """Export the item's runs into the repository and write RESULTS.md anew. What fails is said, not raised."""
        place, tree, scratch = self._place(item), self._place(item) / "tree", self._place(item) / "export"
        before, state.exported = state.exported, time.time()
        state.save(place)
        shutil.rmtree(scratch, ignore_errors=True)
        sweep = max((path.parent.name for path in (place / "results").glob("*/sweep.json")), default="")
        report = [state.python, "-m", "hflray.report"]
        # From the journal: a second reader of the SQLite file would hold up the sweep that writes it.
        export = [*report, sweep, "--results", str(place / "results"), "--tracking-uri", NOBODY]
        export += ["--export", str(scratch / "runs"), "--out", str(scratch / "report")]
        if not sweep or not self._call(export, place, tree, place / "export.txt"):
            if self._stopping:
                state.exported = before  # so that it is made soon after the queue goes on
                state.save(place)
                return
            self._say(f"{item.name}: not exported, see {place / 'export.txt'}")
            return
        (made,) = (scratch / "runs").glob("*/runs.json")
        publish(made.parent, self._exports(item))
        shutil.rmtree(scratch, ignore_errors=True)
        page, text = self._repository / RESULTS_PAGE, self._folder / RESULTS_PAGE.name
        command = [sys.executable, "-m", "hflray.report", "results", "--from", str(EXPORTS), "--out", str(text)]
        if self._call(command, self._repository, self._repository, place / "export.txt"):
            _replace(text, page)
        else:
            self._say(f"{item.name}: {RESULTS_PAGE} is not renewed, see {place / 'export.txt'}")
        self._say(f"{item.name}: exported; {to_commit(self._repository)}")

    def _call(self, command: Sequence[str], place: Path, tree: Path, log: Path) -> bool:
        """Run a command to its end; False if it failed, took too long, or the queue is stopped meanwhile."""
        log.unlink(missing_ok=True)
        process, deadline = self._start(command, place, tree, log), time.monotonic() + EXPORT_WITHIN_S
        while process.poll() is None:
            if self._stopping or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return False
            time.sleep(STEP_S)
        return process.returncode == 0


def has_file(repository: Path, commit: str, path: str) -> bool:
    """Whether a commit holds a file."""
    return bool(git(repository, "ls-tree", "--name-only", commit, "--", path))


def is_done(repository: Path, queue: QueueFile, item: Item) -> bool:
    """Whether the repository holds the item's whole export, whoever made it. False if its sweep file is not there."""
    folder = repository / EXPORTS / item.exhibit / item.part
    if not (folder / "runs.json").exists() or not (repository / item.path).exists():
        return False
    return is_exported(folder, trials_of(sweep_of(repository, item, queue.experiments)[0]))


def _ended(results: Path) -> bool:
    """Whether the newest sweep has come to its end."""
    paths = sorted(results.glob("*/sweep.json"))
    return bool(paths) and bool(json.loads(paths[-1].read_text(encoding="utf-8"))["finished"])


def publish(source: Path, target: Path) -> None:
    """Put the export `source` in the place of the one in `target`, so that a reader finds a whole one at any time.

    Each file is replaced in one step. ``runs.json``, which names the others, comes after them, and files that it does
    not name any more go last.
    """
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in source.iterdir() if path.name != "runs.json")
    for path in [*files, source / "runs.json"]:
        _replace(path, target / path.name)
    keep = {path.name for path in source.iterdir()}
    for path in target.glob("*.parquet"):
        if path.name not in keep:
            path.unlink()


def _replace(source: Path, target: Path) -> None:
    scratch = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, scratch)
    os.replace(scratch, target)


def to_commit(repository: Path) -> str:
    """One line that says which exports and pages are not committed."""
    words = ("status", "--porcelain", "--untracked-files=all", "--", str(EXPORTS), str(RESULTS_PAGE))
    files = [Path(line.split(maxsplit=1)[1].strip('"')) for line in git(repository, *words).splitlines()]
    if not files:
        return "all exports are committed"
    places = sorted({str(path.parent) for path in files if path != RESULTS_PAGE})
    places += [str(RESULTS_PAGE)] if RESULTS_PAGE in files else []
    return f"to be committed: {', '.join(places)}"


def status_lines(folder: Path, repository: Path, queue: QueueFile) -> list[str]:
    """What `status` prints: a line an item, then the queue's own."""
    lines, width = [], max(len(item.name) for item in queue.items)
    for item in queue.items:
        place = folder / item.name
        state = State.load(place)
        stage: str = state.stage
        if stage == "running" and holder(folder) is None:
            stage = "killed"
        trials = state.trials
        text = ""
        if stage in ("waiting", "failed") and is_done(repository, queue, item):
            stage, text = "finished", "its export is in the repository"
        elif not trials:
            try:
                trials = trials_of(sweep_of(repository, item, queue.experiments)[0])
                text = f"{sum(trials.values()):>6} to do"
            except ConfigError:
                text = f"needs {item.path}, which is not here"
        else:
            come = progress(trials, place / "results", state.cpus)
            text = f"{come.done:>6} of {come.total}"
            if come.rate_s is not None and stage != "finished":
                text += f", {come.rate_s:.3g} s each"
                text += f", at most {duration(come.left_s or 0)} left" if stage != "failed" else ""
            text += f"; {state.error}" if state.error else ""
        lines.append(f"{item.name:{width}}  {stage:8}  {text}")
    pid = holder(folder)
    if pid is not None:
        lines.append(f"runs as process {pid}; log: {folder / LOG}")
    elif (folder / PAUSED).exists():
        lines.append("paused for a benchmark; if none runs any more: make queue")
    else:
        lines.append("does not run; make queue starts it or goes on")
    return [*lines, to_commit(repository)]


# The commands.

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

FolderOption = Annotated[Path | None, typer.Option("--folder", help="Of the queue; default: ~/.cache/hflray/queue.")]
Repository = Annotated[Path, typer.Option(help="The checkout whose exports are renewed.")]
List = Annotated[Path | None, typer.Option("--list", help=f"What to run; default: {LIST} of the repository.")]
Code = Annotated[str, typer.Option(metavar="REF", help="Commit or branch that items which begin now are frozen at.")]
Cpus = Annotated[int, typer.Option(min=1, help="CPUs that it may use; one trial at a time on each.")]
Minutes = Annotated[float, typer.Option("--every", min=0.01, metavar="MINUTES", help="Minutes between exports.")]
Python = Annotated[
    Path | None, typer.Option(help="Use this Python's environment as it is, instead of a copy of this one's.")
]

Niceness = Annotated[int, typer.Option(min=0, max=19, help="Of all that it starts; 19: last of all.")]


def _queue(repository: Path, path: Path | None) -> QueueFile:
    if not (repository / ".git").exists():
        raise ConfigError(f"--repository {repository}: no git checkout; run this in a clone of the repository")
    return load_items(path or repository / LIST)


@app.callback()
def overview() -> None:
    """Long runs in the background, at the lowest priority, from frozen code: `make queue` and its kin.

    Examples:

      python -m hflray.tune.queue start --cpus 1

      python -m hflray.tune.queue status

      python -m hflray.tune.queue stop
    """


@app.command()
def start(
    folder: FolderOption = None,
    repository: Repository = REPOSITORY,
    listed: List = None,
    code: Code = "HEAD",
    cpus: Cpus = 1,
    every: Minutes = 30.0,
    python: Python = None,
    niceness: Niceness = NICENESS,
) -> None:
    """Start the queue in the background, or go on with it."""
    place, repository = (folder or default_folder()).resolve(), repository.resolve()
    _queue(repository, listed)
    commit_of(repository, code)
    arguments = ["--folder", str(place), "--repository", str(repository), "--code", code, "--cpus", str(cpus)]
    arguments += ["--every", str(every), "--niceness", str(niceness)]
    arguments += ["--list", str(listed.resolve())] if listed else []
    arguments += ["--python", str(python.absolute())] if python else []
    console = Console()
    if (pid := holder(place)) is not None:
        console.print(f"it runs already, as process {pid}; log: {place / LOG}", **SAY)
        return
    pause = _locked(place / PAUSE, fcntl.LOCK_EX)
    if pause is None:
        (place / PAUSED).write_text(json.dumps(arguments), encoding="utf-8")
        console.print("a benchmark runs; the queue starts when it has ended", **SAY)
        return
    with pause:
        console.print(launch(place, arguments), **SAY)


def launch(folder: Path, arguments: Sequence[str]) -> str:
    """Start the queue's process; return what to say of it. Raises ConfigError: it did not start."""
    (folder / PAUSED).unlink(missing_ok=True)
    (folder / STARTED).write_text(json.dumps(list(arguments)), encoding="utf-8")
    here = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hflray.tune.queue", "run", *arguments],
            cwd=folder, env=here, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + 60
    while holder(folder) != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (folder / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ConfigError(f"the queue did not start: {''.join(tail)} (log: {folder / LOG})")
        time.sleep(0.1)
    return f"runs as process {process.pid}; log: {folder / LOG}"


@app.command()
def run(
    folder: FolderOption = None,
    repository: Repository = REPOSITORY,
    listed: List = None,
    code: Code = "HEAD",
    cpus: Cpus = 1,
    every: Minutes = 30.0,
    python: Python = None,
    niceness: Niceness = NICENESS,
) -> None:
    """Run the queue in the foreground; this is what `start` starts."""
    place, repository = (folder or default_folder()).resolve(), repository.resolve()
    queue = _queue(repository, listed)
    os.nice(max(0, niceness - os.nice(0)))
    runner = Runner(
        place, repository, queue, code=code, cpus=cpus, every_s=60 * every, python=python, niceness=niceness
    )
    with only_one(place):
        runner.run()


@app.command()
def stop(
    folder: FolderOption = None,
    within: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Before all is killed.")] = STOP_WITHIN_S + 60,
) -> None:
    """End the queue; running rounds are finished and saved first."""
    place = (folder or default_folder()).resolve()
    Console().print(halt(place, within, Console()), **SAY)


def halt(folder: Path, within_s: float, console: Console) -> str:
    """End the queue and all that it started; return what to say. Running rounds are given `within_s` seconds."""
    pid = holder(folder)
    if pid is not None:
        console.print(f"process {pid} ends; the rounds that run are finished and saved first", **SAY)
        _send([pid], signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while holder(folder) == pid and time.monotonic() < deadline:
            time.sleep(STEP_S)
        if holder(folder) == pid:
            _send([pid, *marked(folder)], signal.SIGKILL)
    left = marked(folder)
    end_leftovers(folder, 0 if pid is not None else within_s)
    return "stopped" if pid is not None or left else "it does not run"


@app.command()
def status(folder: FolderOption = None, repository: Repository = REPOSITORY, listed: List = None) -> None:
    """One line an item: how far it is, how fast, how long it will take at most."""
    place, repository = (folder or default_folder()).resolve(), repository.resolve()
    for line in status_lines(place, repository, _queue(repository, listed)):
        Console().print(line, **SAY)


@app.command()
def drop(
    item: Annotated[str, typer.Argument(help="An item's name.")],
    folder: FolderOption = None,
    repository: Repository = REPOSITORY,
    listed: List = None,
) -> None:
    """Begin an item anew: what it has done is put aside, not deleted."""
    place, repository = (folder or default_folder()).resolve(), repository.resolve()
    path = place / find_item(_queue(repository, listed).items, item).name
    if not path.exists():
        raise ConfigError(f"{item}: it has not begun; there is nothing to drop")
    with only_one(place):
        if (path / "tree").exists():
            shutil.rmtree(path / "tree")
            git(repository, "worktree", "prune")
        aside = path.with_name(f"dropped-{path.name}-{time.strftime('%Y%m%d-%H%M%S')}")
        path.rename(aside)
    Console().print(f"put aside in {aside}", **SAY)


@app.command(context_settings={"ignore_unknown_options": True})
def paused(
    command: Annotated[list[str], typer.Argument(help="The command, after --.")], folder: FolderOption = None
) -> None:
    """Run a command while the queue stands still; if the queue ran, it goes on afterwards, however the command ends."""
    place = (folder or default_folder()).resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with while_paused(place, Console()):
        try:
            code = subprocess.call(command)
        except OSError as error:
            raise ConfigError(f"{command[0]}: cannot be run ({error.strerror})") from error
    raise typer.Exit(code if code >= 0 else 128 - code)


@contextmanager
def while_paused(folder: Path, console: Console) -> Iterator[None]:
    """Stop the queue, if it runs, and start it again at the end; of several at a time the last one starts it."""
    pause = _locked(folder / PAUSE, fcntl.LOCK_SH)
    while pause is None:  # a queue is being started
        time.sleep(0.1)
        pause = _locked(folder / PAUSE, fcntl.LOCK_SH)
    try:
        if holder(folder) is not None:
            (folder / PAUSED).write_bytes((folder / STARTED).read_bytes())
            console.print(halt(folder, STOP_WITHIN_S + 60, console), **SAY)
        yield
    finally:
        pause.close()
        alone = _locked(folder / PAUSE, fcntl.LOCK_EX)
        if alone is not None:
            with alone:
                if (folder / PAUSED).exists():
                    arguments = json.loads((folder / PAUSED).read_text(encoding="utf-8"))
                    console.print(f"the queue {launch(folder, arguments)}", **SAY)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: an HflrayError is one line per mistake on stderr and exit code 2, never a traceback."""
    try:
        app(arguments, prog_name="python -m hflray.tune.queue")
    except HflrayError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"error: {error.filename or 'queue'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
