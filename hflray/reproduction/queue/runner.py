"""The runner takes the items of the queue's list one after the other, each from frozen code, until all are done."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path

from hflray.errors import ConfigError, HflrayError
from hflray.reproduction.queue.frozen import (
    check_packages,
    check_tree,
    commit_of,
    freeze_environment,
    freeze_tree,
    packages_of,
    release_tree,
)
from hflray.reproduction.queue.items import Item, QueueFile, State, is_exported, progress, sweep_of, trials_of
from hflray.reproduction.queue.processes import NICENESS, Children, end_leftovers, marked, wait_a_step
from hflray.reproduction.queue.publishing import Publisher, export_of, has_file, is_done
from hflray.sweep.results import by_start

STOP_WITHIN_S = 600.0  # running rounds may take this long: one at H = 100 takes minutes on a busy machine
RETRIES_AFTER_S = (
    30.0,
    120.0,
    480.0,
    1920.0,
)  # pauses before a sweep that ended too soon is restarted; a new round resets their count


class Runner:
    """Run the items of the list until all are done or the queue is stopped.

    Args:
        folder: the queue's folder.
        repository: the checkout whose exports are renewed.
        queue: the list of items.
        code: the commit or branch at which new items are frozen.
        cpus: the number of CPUs that the sweeps may use.
        every_s: the time between exports in s.
        python: an interpreter whose environment is used as it is; None: a copy of the running interpreter's environment
            is made.
        niceness: the niceness of all processes that it starts.
        stop_within_s: the time in s that running rounds may take to end when the queue is stopped.
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
        self._children = Children(folder, cpus, niceness)
        self._publisher = Publisher(folder, repository, self._children, lambda: self._stopping, self._say)
        self._tried: set[str] = set()
        self._stopping = False

    def run(self) -> None:
        """Run until all items are done, or until SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if marked(self._folder):
            self._say("waiting for the sweep of a queue that was killed")
            # That sweep got SIGTERM when its queue died; its rounds may take as long as after `stop`.
            end_leftovers(self._folder, self._stop_within_s)
        while not self._stopping and (item := self._next()) is not None:
            self._tried.add(item.name)
            try:
                self._work(item)
            except (HflrayError, OSError) as error:
                self._fail(item, str(error))
        self._say("stopped" if self._stopping else "all items are done")

    def _on_signal(self, *_: object) -> None:
        self._stopping = True

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)

    def _place(self, item: Item) -> Path:
        return self._folder / item.name

    def _next(self) -> Item | None:
        """Return the next item, the first that has begun or else the first that is not done; None if all are done."""
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
        self._publisher.renew(item, state)
        whole = is_exported(export_of(self._repository, item), state.trials)
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
        trials = trials_of(file)
        cpus_per_trial, at_a_time = share_cpus(self._cpus, len(trials), file.tune.cpus_per_trial)
        state = State(
            commit=commit,
            python=str(python),
            packages=packages_of(python),
            overrides=[*overrides, f"tune.cpus_per_trial={cpus_per_trial}", f"tune.max_concurrent={at_a_time}"],
            trials=trials,
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

    def _sweep(self, item: Item, state: State) -> bool:
        """Run or resume the item's sweep until it has ended; return False if the queue is stopped before.

        Raises:
            ConfigError: the sweep ended too soon several times and made no round in between.
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
        """Run or resume the item's sweep once, export it at intervals, and return its exit code."""
        place, tree = self._place(item), self._place(item) / "tree"
        command = [state.python, "-m", "hflray.tune"]
        unfinished = by_start(place / "results")
        if unfinished:
            command += ["--resume", unfinished[0].name]
        else:
            command += [str(tree / item.path), *(word for text in state.overrides for word in ("--set", text))]
        process = self._children.start([*command, "--results", str(place / "results")], place, tree, place / "log.txt")
        self._say(f"{item.name}: {'goes on' if unfinished else 'begins'} as process {process.pid}")
        state.stage, state.pid, state.error = "running", process.pid, ""
        state.exported = state.exported or time.time()
        state.save(place)
        before, settled = progress(state.trials, place / "results").done, False
        while process.poll() is None and not self._stopping:
            # Ray gives up if its processes take more than 30 s to start, so the sweep keeps a normal share of the CPUs
            # until its first round.
            if not settled and progress(state.trials, place / "results").done > before:
                self._children.give_way(process)
                settled = True
            if time.time() - state.exported >= self._every_s:
                self._publisher.renew(item, state)
            wait_a_step()
        if process.poll() is None:
            self._children.end(process, self._stop_within_s)
        end_leftovers(self._folder)
        return process.returncode

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < deadline:
            wait_a_step()


def share_cpus(cpus: int, trials: int, least: int) -> tuple[int, int]:
    """Return the CPUs of each trial and the number of trials at a time; trials fewer than the CPUs share all of them.

    Args:
        cpus: the CPUs of the queue.
        trials: number of trials of the item.
        least: ``tune.cpus_per_trial`` of the item's sweep file.

    Examples:
        >>> from hflray.reproduction.queue.runner import share_cpus
        >>> share_cpus(2, 1, 1), share_cpus(2, 3, 1), share_cpus(1, 1, 1)
        ((2, 1), (1, 2), (1, 1))
    """
    each = max(least, cpus // trials)
    return each, max(1, cpus // each)


def _ended(results: Path) -> bool:
    """Return whether the newest sweep is finished."""
    folders = by_start(results)
    return bool(folders) and bool(json.loads((folders[0] / "sweep.json").read_text(encoding="utf-8"))["finished"])
