"""The progress of the queue, with one line for each item."""

from __future__ import annotations

from pathlib import Path

from hflray.errors import ConfigError
from hflray.reproduction.queue.items import QueueFile, State, progress, sweep_of, trials_of
from hflray.reproduction.queue.lock import holder
from hflray.reproduction.queue.publishing import is_done, to_commit
from hflray.sweep.progress import duration

LOG = "queue.log"
PAUSED = "paused.json"  # the arguments with which the queue starts again after a benchmark


def status_lines(folder: Path, repository: Path, queue: QueueFile) -> list[str]:
    """Return the lines that `status` prints: one for each item, then those of the queue."""
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
                text = f"needs {item.path}, which does not exist"
        else:
            reached = progress(trials, place / "results", state.cpus)
            text = f"{reached.done:>6} of {reached.total}"
            if reached.rate_s is not None and stage != "finished":
                text += f", {reached.rate_s:.3g} s each"
                text += f", at most {duration(reached.remaining_s or 0)} left" if stage != "failed" else ""
            text += f"; {state.error}" if state.error else ""
        lines.append(f"{item.name:{width}}  {stage:8}  {text}")
    pid = holder(folder)
    if pid is not None:
        lines.append(f"runs as process {pid}; log: {folder / LOG}")
    elif (folder / PAUSED).exists():
        lines.append("paused for a benchmark; if no benchmark runs, continue with make queue")
    else:
        lines.append("does not run; make queue starts or continues it")
    return [*lines, to_commit(repository)]
