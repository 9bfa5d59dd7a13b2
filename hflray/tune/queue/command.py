"""The command ``python -m hflray.tune.queue``: start, stop, status, and a pause for benchmarks."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hflray.errors import ConfigError, HflrayError
from hflray.tune.frozen import commit_of, git
from hflray.tune.items import QueueFile, find_item, load_items
from hflray.tune.queue.lock import PAUSE, holder, locked, only_one
from hflray.tune.queue.processes import NICENESS, end_leftovers, marked, send, wait_a_step
from hflray.tune.queue.runner import STOP_WITHIN_S, Runner
from hflray.tune.queue.status import LOG, PAUSED, status_lines

REPOSITORY = Path(__file__).parents[3]
LIST = Path("tune_configs/queue/figures.yaml")
STARTED = "started.json"  # with which arguments the queue was started last
SAY: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/hflray/queue`` or ``~/.cache/hflray/queue``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hflray" / "queue"


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
    pause = locked(place / PAUSE, fcntl.LOCK_EX)
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
        send([pid], signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while holder(folder) == pid and time.monotonic() < deadline:
            wait_a_step()
        if holder(folder) == pid:
            send([pid, *marked(folder)], signal.SIGKILL)
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
    pause = locked(folder / PAUSE, fcntl.LOCK_SH)
    while pause is None:  # a queue is being started
        time.sleep(0.1)
        pause = locked(folder / PAUSE, fcntl.LOCK_SH)
    try:
        if holder(folder) is not None:
            (folder / PAUSED).write_bytes((folder / STARTED).read_bytes())
            console.print(halt(folder, STOP_WITHIN_S + 60, console), **SAY)
        yield
    finally:
        pause.close()
        alone = locked(folder / PAUSE, fcntl.LOCK_EX)
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
