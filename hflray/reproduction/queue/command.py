"""The command ``python -m hflray.reproduction.queue`` starts, stops and pauses the queue and reports its status."""

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

from hflray.errors import ConfigError
from hflray.reproduction.queue.frozen import commit_of, git
from hflray.reproduction.queue.items import QueueFile, find_item, load_items
from hflray.reproduction.queue.lock import PAUSE, holder, locked, only_one
from hflray.reproduction.queue.processes import NICENESS, end_leftovers, marked, send, wait_a_step
from hflray.reproduction.queue.runner import STOP_WITHIN_S, Runner
from hflray.reproduction.queue.status import LOG, PAUSED, status_lines
from hflray.support.files import write
from hflray.support.terminal.app import exit_code, group

REPOSITORY = Path(__file__).parents[3]
LIST = Path("tune_configs/queue/figures.yaml")
STARTED = "started.json"  # the arguments of the last start
SAY: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


def default_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/hflray/queue``, or ``~/.cache/hflray/queue`` if the variable is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hflray" / "queue"


app = group()

FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="Folder of the queue; default: ~/.cache/hflray/queue.")
]
Repository = Annotated[Path, typer.Option(help="The checkout whose exports are renewed.")]
List = Annotated[Path | None, typer.Option("--list", help=f"The list of items; default: {LIST} of the repository.")]
Code = Annotated[str, typer.Option(metavar="REF", help="Commit or branch at which new items are frozen.")]
Cpus = Annotated[int, typer.Option(min=1, help="CPUs that the queue may use; each runs one trial at a time.")]
Minutes = Annotated[float, typer.Option("--every", min=0.01, metavar="MINUTES", help="Minutes between exports.")]
Python = Annotated[
    Path | None, typer.Option(help="Use the environment of this Python instead of a copy of the running one's.")
]

Niceness = Annotated[
    int, typer.Option(min=0, max=19, help="Niceness of all processes that it starts; 19 is the lowest priority.")
]


def _queue(repository: Path, path: Path | None) -> QueueFile:
    if not (repository / ".git").exists():
        raise ConfigError(f"--repository {repository}: not a git checkout; run this in a clone of the repository")
    return load_items(path or repository / LIST)


@app.callback()
def overview() -> None:
    """Run long sweeps in the background at the lowest priority from frozen code, as `make queue` does.

    \b
    Examples:
      python -m hflray.reproduction.queue start --cpus 1
      python -m hflray.reproduction.queue status
      python -m hflray.reproduction.queue stop
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
    """Start the queue in the background, or continue it."""
    place, repository = (folder or default_folder()).resolve(), repository.resolve()
    _queue(repository, listed)
    commit_of(repository, code)
    arguments = ["--folder", str(place), "--repository", str(repository), "--code", code, "--cpus", str(cpus)]
    arguments += ["--every", str(every), "--niceness", str(niceness)]
    arguments += ["--list", str(listed.resolve())] if listed else []
    arguments += ["--python", str(python.absolute())] if python else []
    console = Console()
    if (pid := holder(place)) is not None:
        console.print(f"the queue already runs as process {pid}; log: {place / LOG}", **SAY)
        return
    pause = locked(place / PAUSE, fcntl.LOCK_EX)
    if pause is None:
        write(place / PAUSED, json.dumps(arguments))
        console.print("a benchmark runs; the queue starts when the benchmark has ended", **SAY)
        return
    with pause:
        console.print(launch(place, arguments), **SAY)


def launch(folder: Path, arguments: Sequence[str]) -> str:
    """Start the queue's process and return a message for the user. Raises ConfigError: it did not start."""
    (folder / PAUSED).unlink(missing_ok=True)
    write(folder / STARTED, json.dumps(list(arguments)))
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hflray.reproduction.queue", "run", *arguments],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
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
    """Run the queue in the foreground, which is the process that `start` starts."""
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
    within: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time after which all its processes are killed.")
    ] = STOP_WITHIN_S + 60,
) -> None:
    """End the queue after the running rounds are finished and saved."""
    place = (folder or default_folder()).resolve()
    Console().print(halt(place, within, Console()), **SAY)


def halt(folder: Path, within_s: float, console: Console) -> str:
    """End the queue and its processes and return a message. Running rounds may take `within_s` seconds to end."""
    pid = holder(folder)
    if pid is not None:
        console.print(f"process {pid} ends after the running rounds are finished and saved", **SAY)
        send([pid], signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while holder(folder) == pid and time.monotonic() < deadline:
            wait_a_step()
        if holder(folder) == pid:
            send([pid, *marked(folder)], signal.SIGKILL)
    remaining = marked(folder)
    end_leftovers(folder, 0 if pid is not None else within_s)
    return "stopped" if pid is not None or remaining else "the queue does not run"


@app.command()
def status(folder: FolderOption = None, repository: Repository = REPOSITORY, listed: List = None) -> None:
    """Print each item's progress, its speed, and the longest time that it may still take."""
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
    """Let an item begin anew. Its results so far are moved aside, not deleted."""
    place, repository = (folder or default_folder()).resolve(), repository.resolve()
    path = place / find_item(_queue(repository, listed).items, item).name
    if not path.exists():
        raise ConfigError(f"{item}: it has not begun, so it needs no drop")
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
    """Run a command while the queue is paused. A queue that ran continues afterwards, however the command ends."""
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
    """Stop a running queue and start it again at the end. With several such commands the last one starts it."""
    pause = locked(folder / PAUSE, fcntl.LOCK_SH)
    while pause is None:  # another process is starting a queue
        time.sleep(0.1)
        pause = locked(folder / PAUSE, fcntl.LOCK_SH)
    try:
        if holder(folder) is not None:
            write(folder / PAUSED, (folder / STARTED).read_bytes())
            console.print(halt(folder, STOP_WITHIN_S + 60, console), **SAY)
        yield
    finally:
        pause.close()
        last_pause = locked(folder / PAUSE, fcntl.LOCK_EX)
        if last_pause is not None:
            with last_pause:
                if (folder / PAUSED).exists():
                    arguments = json.loads((folder / PAUSED).read_text(encoding="utf-8"))
                    console.print(f"the queue {launch(folder, arguments)}", **SAY)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``python -m hflray.reproduction.queue`` and end the process with its exit code."""
    sys.exit(exit_code(app, arguments, "python -m hflray.reproduction.queue"))
