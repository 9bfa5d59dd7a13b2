"""A mutated file of any format, the real reader of it, and how the reader ends.

An ending is *read* (exit code 0 or 1), *refused* (exit code 2 and only lines ``error: …``) or a *defect*: another
error than an `HflrayError` or an `OSError`, a line of another form, more than `WITHIN_S` seconds, or more memory than
`tests.inputs.harness.limits` gives.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from hflray.errors import HflrayError
from hflray.support.terminal.app import _fail, exit_code
from tests.foreign import mutations as change
from tests.foreign import samples
from tests.inputs.harness import limits

WITHIN_S = 60.0
NAME, FOLDER = samples.NAME, samples.FOLDER


class Ended(NamedTuple):
    """How a reader ended: ``read``, ``refused`` or ``defect``, the exit code, what it said, and why it is a defect."""

    outcome: str
    code: int | None
    said: str
    reason: str = ""


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
    with mock.patch("hflray.command.report._draw", return_value=[]):
        return _command(*words)


def from_exports(place: Path, rng: random.Random) -> int:
    if rng.random() < 0.1:
        return _command("hflray.command.report:app", "convert", str(place))
    if rng.random() < 0.05:
        return _command("hflray.command.report:app", "results", "--from", str(place), "--out", str(place / "x.md"))
    return report(place, rng, "--from", str(place))


def _swept(folder: Any, trials: Any, *rest: Any, **options: Any) -> Any:
    """Stand in for `run_sweep`: all that it reads of the folder, without Ray."""
    from unittest.mock import MagicMock

    from hflray.support.checkpoint import Checkpoints
    from hflray.support.files import refuse_links
    from hflray.sweep.tasks import find_task
    from hflray.tracking import Journal, Tracker
    from hflray.tune.callback import SweepCallback
    from hflray.tune.driver import mend

    refuse_links(folder.path)
    journal = Journal(folder.path)
    mend(folder, trials, journal, lambda line: None)
    tracker = Tracker(folder.uri, folder.experiment, folder.path.name, folder.path, sinks=())
    callback = SweepCallback.__new__(SweepCallback)
    callback.outcomes, callback._tracker, callback._progress = {}, tracker, MagicMock()
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


def _checkpoint(place: Path) -> None:
    state = samples.state_of(place / FOLDER)
    samples.experiment_of(place).load_state_dict(state)


def _assigner(place: Path) -> None:
    from hflray.assignment import build_assigner

    build_assigner("d3qn", policy=str(place / "assigner.safetensors"))


def _scheduler(place: Path) -> None:
    from hflray.scheduling.learned import Learned

    Learned(num_devices=12, num_scheduled=6, policy=str(place / "scheduler.safetensors"))


def _data(place: Path) -> None:
    from hflray.data.npz import read_arrays

    read_arrays(place / "data.npz")


def _pool(place: Path) -> None:
    from hflray.rl.solved_fleets import FleetPool, read_spec

    FleetPool(place / "pool", read_spec(place / "pool"))


def _trace(place: Path) -> None:
    from hflray.world.trace import Trace

    Trace.read("world.trace", str(place / "trace.csv"), "device", 12, {"available": True})


def _fedscale(place: Path) -> None:
    from hflray.world.fedscale import convert

    convert(place / "fedscale.json", place / "out.csv")


def _on(name: str, how: Callable[[Path, random.Random], str]) -> Callable[[Path, random.Random], str]:
    return lambda place, rng: how(place / name, rng)


def _saved(ending: str) -> Callable[[Path, random.Random], str]:
    return lambda place, rng: change.in_checkpoint(sorted(place.glob("*/checkpoints/*/*"))[-1], rng, ending)


JSON, BYTES, TABLE = change.swapped_json, change.swapped_bytes, change.swapped_parquet
KINDS = {
    "export: runs.json": Kind("exports", _zip(JSON, ".json"), from_exports),
    "export: tables": Kind("exports", _zip(TABLE, ".parquet"), from_exports),
    "export: bytes inside": Kind("exports", _zip(BYTES, ""), from_exports),
    "export: bytes": Kind("exports", _file("*.zip", BYTES), from_exports),
    "older export: runs.json": Kind("older", _file("*/runs.json", JSON), from_exports),
    "older export: tables": Kind("older", _file("*/*.parquet", TABLE), from_exports),
    "older export: bytes": Kind("older", _file("*/*", BYTES), from_exports),
    "folder: sweep.json": Kind("results", _file("*/sweep.json", JSON), from_results),
    "folder: sweep.json, bytes": Kind("results", _file("*/sweep.json", BYTES), from_results),
    "folder: journal": Kind("results", _file("*/journal/*.jsonl", change.swapped_line), from_results),
    "folder: journal, bytes": Kind("results", _file("*/journal/*.jsonl", BYTES), from_results),
    "checkpoint: state": Kind("results", _saved(".json"), _loads(_checkpoint)),
    "checkpoint: arrays": Kind("results", _saved(".safetensors"), _loads(_checkpoint)),
    "checkpoint: zip": Kind(
        "results",
        lambda place, rng: change.in_zip_of_checkpoint(sorted(place.glob("*/checkpoints/*/*"))[-1], rng),
        _loads(_checkpoint),
    ),
    "checkpoint: bytes": Kind(
        "results",
        lambda place, rng: _file(str(sorted(place.glob("*/checkpoints/*/*"))[-1].relative_to(place)), BYTES)(
            place, rng
        ),
        _loads(_checkpoint),
    ),
    "policy of an assigner": Kind("files", _on("assigner.safetensors", change.swapped_policy), _loads(_assigner)),
    "policy of an assigner: bytes": Kind("files", _file("assigner.safetensors", BYTES), _loads(_assigner)),
    "policy of a scheduler": Kind("files", _on("scheduler.safetensors", change.swapped_policy), _loads(_scheduler)),
    "data set": Kind("files", _on("data.npz", change.swapped_npz), _loads(_data)),
    "data set: bytes": Kind("files", _file("data.npz", BYTES), _loads(_data)),
    "cache of fleets: spec": Kind("files", _file("pool/spec.json", JSON), _loads(_pool)),
    "cache of fleets": Kind(
        "files", lambda place, rng: change.swapped_npz(sorted(place.glob("pool/*.npz"))[0], rng), _loads(_pool)
    ),
    "cache of fleets: bytes": Kind("files", _file("pool/*.npz", BYTES), _loads(_pool)),
    "trace": Kind("files", _file("trace.csv", BYTES), _loads(_trace)),
    "clients of FedScale": Kind("files", _file("fedscale.json", JSON), _loads(_fedscale)),
    "clients of FedScale: bytes": Kind("files", _file("fedscale.json", BYTES), _loads(_fedscale)),
}


def run(root: Path, work: Path, kind: str, seed: int, mutates: bool = True) -> tuple[str, Ended]:
    """Mutate a copy of a sample in `work`, read it, and return what was changed and how the reader ended."""
    one, rng = KINDS[kind], random.Random(f"{kind}/{seed}")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(root / one.part, work / one.part)
    what = one.mutate(work / one.part, rng) if mutates else "nothing"
    out, err = io.StringIO(), io.StringIO()
    code, reason = None, ""
    began_s = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _quiet(), limits():
        try:
            code = one.reads(work / one.part, rng)
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            ours = [line for line in traceback.extract_tb(error.__traceback__) if "/hflray/" in line.filename]
            where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else f"{last.filename}:{last.lineno}"
            reason = f"{type(error).__name__}: {str(error)[:100]!r} at {where}"
    said = out.getvalue() + err.getvalue()
    lines = [line for line in err.getvalue().splitlines() if not line.startswith(("note: ", "warning: "))]
    if not reason and code not in (0, 1, 2):
        reason = f"exit code {code}"
    elif not reason and code == 2 and not (lines and all(line.startswith("error: ") for line in lines)):
        reason = f"exit code 2 with {lines[-1] if lines else 'no line'!r:.120}"
    elif not reason and (odd := next((c for c in said if not c.isprintable() and c not in "\n\t"), "")):
        reason = f"prints {odd!r}"
    elif not reason and time.monotonic() - began_s > WITHIN_S:
        reason = f"{time.monotonic() - began_s:.0f} s"
    return what, Ended("defect" if reason else "refused" if code == 2 else "read", code, said, reason)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
