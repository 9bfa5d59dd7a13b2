"""A mutated file of any format, the real reader of it, and how the reader ends.

An ending is *valid* (exit code 0 or 1), *refused* (exit code 2 and only lines ``error: …``) or a *defect*: another
error than an `HflrayError` or an `OSError`, a line of another form, more than `WITHIN_S` CPU seconds, or more
memory than `tests.inputs.harness.limits` gives.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hflray.assignment import build_assigner
from hflray.data.npz import read_arrays
from hflray.errors import HflrayError
from hflray.rl.solved_fleets import FleetPool
from hflray.scheduling.learned import Learned
from hflray.support.checkpoint import Checkpoints
from hflray.support.files import refuse_links
from hflray.support.terminal.app import _fail, exit_code
from hflray.sweep.tasks import find_task
from hflray.tracking import Journal, Tracker
from hflray.tune.callback import SweepCallback
from hflray.tune.driver import mend
from hflray.world.fedscale import convert
from hflray.world.trace import Trace
from tests.foreign import mutations as change
from tests.foreign import samples
from tests.inputs.harness import Ended, captured

WITHIN_S = 60.0
NAME, FOLDER = samples.NAME, samples.FOLDER


@dataclass(frozen=True)
class Kind:
    """A format: what is copied, how it is changed, and what reads it.

    Attributes:
        part: the folder of the samples.
        mutate: changes a copy of it and says how.
        reads: calls a reader with the copy and returns its exit code.
    """

    part: str
    mutate: Callable[[Path, random.Random], str]
    reads: Callable[[Path, random.Random], int]


def _command(application: str, *words: str) -> int:
    module, _, name = application.partition(":")
    app = getattr(__import__(module, fromlist=[name]), name)
    return exit_code(app, list(words), "hflray")


def report(place: Path, rng: random.Random, *source: str) -> int:
    """Draw the page and the tables, and one time in ten the figures; or explain a round."""
    out = place.parent / "out"
    if rng.random() < 0.25:
        run = "12-3-6-5-0" if place.name != "results" else "digits-H6-λ1-ikc-geographic-s0"
        return _command("hflray.command.report:app", "explain", run, "--round", "1", "--sweep", NAME, *source)
    words = ("hflray.command.report:app", "show", NAME, *source, "--out", str(out))
    if rng.random() < 0.1:
        return _command(*words, "--export", str(place.parent / "again"))
    with mock.patch("hflray.report.figures.save_all", return_value=[]):
        return _command(*words)


def from_exports(place: Path, rng: random.Random) -> int:
    if rng.random() < 0.1:
        return _command("hflray.command.report:app", "convert", str(place))
    if rng.random() < 0.05:
        return _command("hflray.command.report:app", "results", "--from", str(place), "--out", str(place / "x.md"))
    return report(place, rng, "--from", str(place))


def _swept(folder: Any, trials: Any, *rest: Any, **options: Any) -> Any:
    """Stand in for `run_sweep`: all that it reads of the folder, without Ray."""
    refuse_links(folder.path)
    journal = Journal(folder.path)
    mend(folder, trials, journal, lambda line: None)
    tracker = Tracker(folder.uri, folder.experiment, folder.path.name, folder.path, sinks=())
    callback = SweepCallback.__new__(SweepCallback)
    callback.outcomes, callback._tracker, callback._progress = {}, tracker, mock.MagicMock()
    callback.file, callback._task = folder.file, find_task(folder.file.task)
    for name in journal.run_keys():
        callback.take_over(name)
        Checkpoints(folder.place, name).rounds()
    folder.finished = True
    return list(callback.outcomes.values()), tracker


def from_results(place: Path, rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.5:
        return report(place, rng, "--results", str(place))
    if kind < 0.6:
        with mock.patch("hflray.sweep.compare.run_ids_of", return_value=("0", ["0" * 32])):
            named = ("--tracking-uri", "sqlite:///x.db")  # the sample's database is elsewhere
            return _command("hflray.command.compare:app", NAME, "--results", str(place), *named)
    if kind < 0.8:
        with mock.patch("hflray.tracking.tracker.SINKS", ("csv",)):
            return _command("hflray.tracking.cli:sync_app", str(place / FOLDER), "--tracking-uri", "sqlite:///x.db")
    with mock.patch("hflray.tune.driver.run_sweep", _swept):
        named = ("--tracking-uri", "sqlite:///x.db")  # the sample's database is elsewhere
        return _command("hflray.tune.cli:app", "--resume", FOLDER, "--results", str(place), *named)


def _one(root: Path, pattern: str, rng: random.Random) -> Path:
    return rng.choice(sorted(root.glob(pattern)))


def _file(
    pattern: str, how: Callable[[bytes, random.Random], tuple[bytes, str]]
) -> Callable[[Path, random.Random], str]:
    def mutate(place: Path, rng: random.Random) -> str:
        path = _one(place, pattern, rng)
        content, what = how(path.read_bytes(), rng)
        path.write_bytes(content)
        return f"{path.name}: {what}"

    return mutate


def _zip(how: Any, ending: str) -> Callable[[Path, random.Random], str]:
    return lambda place, rng: change.in_zip(place / f"{NAME}.zip", how, rng, ending)


def _loads(load: Callable[[Path], object]) -> Callable[[Path, random.Random], int]:
    def reads(place: Path, rng: random.Random) -> int:
        try:
            load(place)
        except HflrayError as error:
            return _fail(str(error).splitlines())
        return 0

    return reads


def _of_checkpoint(place: Path) -> Path:
    return sorted(place.glob("*/checkpoints/*/*"))[-1]


_checkpoint = _loads(lambda place: samples.experiment_of(place).load_state_dict(samples.state_of(place / FOLDER)))
_assigner = _loads(lambda place: build_assigner("d3qn", policy=str(place / "assigner.safetensors")))
_scheduler = _loads(lambda place: Learned(num_devices=12, num_scheduled=6, policy=str(place / "scheduler.safetensors")))
_data = _loads(lambda place: read_arrays(place / "data.npz"))
_pool = _loads(lambda place: FleetPool(place / "pool"))
_trace = _loads(lambda place: Trace.read("world.trace", str(place / "trace.csv"), "device", 12, {"available": True}))
_fedscale = _loads(lambda place: convert(place / "fedscale.json", place / "out.csv"))


def _on(name: str, how: Callable[[Path, random.Random], str]) -> Callable[[Path, random.Random], str]:
    return lambda place, rng: how(place / name, rng)


def _saved(ending: str) -> Callable[[Path, random.Random], str]:
    return lambda place, rng: change.in_checkpoint(_of_checkpoint(place), rng, ending)


JSON, BYTES, TABLE = change.swapped_json, change.swapped_bytes, change.swapped_parquet
KINDS = {
    "export: runs.json": Kind("exports", _zip(JSON, ".json"), from_exports),
    "export: tables": Kind("exports", _zip(TABLE, ".parquet"), from_exports),
    "export: bytes inside": Kind("exports", _zip(BYTES, ""), from_exports),
    "export: bytes": Kind("exports", _file("*.zip", BYTES), from_exports),
    "folder: sweep.json": Kind("results", _file("*/sweep.json", JSON), from_results),
    "folder: sweep.json, bytes": Kind("results", _file("*/sweep.json", BYTES), from_results),
    "folder: journal": Kind("results", _file("*/journal/*.jsonl", change.swapped_line), from_results),
    "folder: journal, bytes": Kind("results", _file("*/journal/*.jsonl", BYTES), from_results),
    "checkpoint: state": Kind("results", _saved(".json"), _checkpoint),
    "checkpoint: arrays": Kind("results", _saved(".safetensors"), _checkpoint),
    "checkpoint: zip": Kind(
        "results", lambda place, rng: change.in_zip_of_checkpoint(_of_checkpoint(place), rng), _checkpoint
    ),
    "checkpoint: bytes": Kind("results", _file("*/checkpoints/*/*", BYTES), _checkpoint),
    "policy of an assigner": Kind("files", _on("assigner.safetensors", change.swapped_policy), _assigner),
    "policy of an assigner: bytes": Kind("files", _file("assigner.safetensors", BYTES), _assigner),
    "policy of a scheduler": Kind("files", _on("scheduler.safetensors", change.swapped_policy), _scheduler),
    "data set": Kind("files", _on("data.npz", change.swapped_npz), _data),
    "data set: bytes": Kind("files", _file("data.npz", BYTES), _data),
    "cache of fleets: spec": Kind("files", _file("pool/spec.json", JSON), _pool),
    "cache of fleets": Kind(
        "files", lambda place, rng: change.swapped_npz(sorted(place.glob("pool/*.npz"))[0], rng), _pool
    ),
    "cache of fleets: bytes": Kind("files", _file("pool/*.npz", BYTES), _pool),
    "trace": Kind("files", _file("trace.csv", BYTES), _trace),
    "clients of FedScale": Kind("files", _file("fedscale.json", JSON), _fedscale),
    "clients of FedScale: bytes": Kind("files", _file("fedscale.json", BYTES), _fedscale),
}


def run(root: Path, work: Path, kind: str, seed: int, mutates: bool = True) -> tuple[str, Ended]:
    """Mutate a copy of a sample in `work`, read it, and return what was changed and how the reader ended."""
    one, rng = KINDS[kind], random.Random(f"{kind}/{seed}")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(root / one.part, work / one.part)
    what = one.mutate(work / one.part, rng) if mutates else "nothing"
    with _quiet():
        code, out, err, seconds = captured(lambda: one.reads(work / one.part, rng))
    lines = tuple(line for line in err.splitlines() if not line.startswith(("note: ", "warning: ")))
    reason = ""
    if code is None:
        reason = f"a traceback: {lines[-1]}"
    elif code not in (0, 1, 2):
        reason = f"exit code {code}"
    elif code == 2 and not (lines and all(line.startswith("error: ") for line in lines)):
        reason = f"exit code 2 with {lines[-1] if lines else 'no line'!r:.120}"
    elif odd := next((c for c in out + err if not c.isprintable() and c not in "\n\t"), ""):
        reason = f"prints {odd!r}"
    elif seconds > WITHIN_S:
        reason = f"{seconds:.0f} s"
    return what, Ended("defect" if reason else "refused" if code == 2 else "valid", code, lines, seconds, reason)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
