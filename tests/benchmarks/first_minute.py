"""The first minute: the quickstart with nothing cached, seconds and CPU seconds of each phase. ``make bench`` runs it.

    python tests/benchmarks/first_minute.py [--repeats 3] [--against WORKTREE] [--warm] [--set KEY=VALUE …]

Each run is ``python -m hflray.tune`` in an empty folder with an empty HOME, so that Numba's cache, the compiled native
kernel, what was measured of this machine and MLflow's database are made anew, as in the minute after an install.
`--against` runs the tree of another checkout (with its own ``.venv``) in turns with this one, and prints the ratio.
`--warm` runs each once more in the same place, with all caches there.

CPU seconds are those of all processes that the command started; they change less than seconds where the machine works
for others too. What counts for seconds is the fastest run, and the machine must be quiet for it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from tests.benchmarks._report import Table, conditions

ROOT = Path(__file__).parents[2]
FOLDER = "hflray_results/quickstart-*/sweep.json"
STEP_S = 0.1  # how often the processes are looked at
PHASES = {
    "folder": "until the sweep has its folder",
    "trial": "until its first trial starts",
    "round": "until the first round is on the screen",
    "rounds": "until the last trial is done",
    "end": "until the prompt",
}
STARTED, ROUND, DONE = re.compile(r": started$"), re.compile(r": round 1/"), re.compile(r": done\b")
ACCURACY = re.compile(r"^(.*): round \d+/\d+, accuracy ([\d.]+)%")


@dataclass
class Run:
    """One run of the quickstart.

    Attributes:
        wall_s, cpu_s: since the start, when each of `PHASES` ended.
        accuracy: the last one shown of each trial, %.
    """

    wall_s: dict[str, float]
    cpu_s: dict[str, float]
    accuracy: dict[str, float]


class _Processes:
    """CPU seconds of a process and all that it started, also of those that have ended since they were seen."""

    def __init__(self, pid: int) -> None:
        self._root, self._seen = psutil.Process(pid), dict[tuple[int, float], float]()

    def look(self) -> float:
        """CPU seconds so far."""
        try:
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.Error):  # it is just ending
                    self._seen[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        except psutil.Error:
            pass
        return sum(self._seen.values())


def quickstart(tree: Path, home: Path, overrides: Sequence[str] = ()) -> Run:
    """Run the quickstart of a checkout in the folder `home`, which is its HOME and its caches; what is there stays.

    Raises:
        SystemExit: it failed; what it said is in the message.
    """
    home.mkdir(exist_ok=True)
    before = set(home.glob("hflray_results/quickstart-*"))
    python = tree / ".venv" / "bin" / "python"
    command = [str(python) if python.exists() else sys.executable, "-m", "hflray.tune"]
    command += [part for setting in overrides for part in ("--set", setting)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HFLRAY_", "RAY_", "OMP_"))}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NUMBA_CACHE_DIR": str(home / "numba")}
    env |= {"PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    lines: list[tuple[float, str]] = []
    seen: list[tuple[float, float]] = []  # seconds, and CPU seconds by then
    wall: dict[str, float] = {}
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read() -> None:
        assert process.stdout is not None
        lines.extend((time.perf_counter() - begin, line.rstrip()) for line in process.stdout)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    processes = _Processes(process.pid)
    while process.poll() is None:
        seen.append((time.perf_counter() - begin, processes.look()))
        if "folder" not in wall and any(path.parent not in before for path in home.glob(FOLDER)):
            wall["folder"] = time.perf_counter() - begin
        time.sleep(STEP_S)
    wall["end"] = time.perf_counter() - begin
    reader.join()
    if process.returncode:
        raise SystemExit("the quickstart failed:\n" + "\n".join(line for _, line in lines))
    for name, pattern, which in (("trial", STARTED, 0), ("round", ROUND, 0), ("rounds", DONE, -1)):
        wall[name] = [at for at, line in lines if pattern.search(line)][which]
    accuracy = {found[1]: float(found[2]) for _, line in lines if (found := ACCURACY.match(line))}
    at, cpu_s = zip(*seen, strict=True)
    return Run(wall, {name: float(np.interp(when, at, cpu_s)) for name, when in wall.items()}, accuracy)


def measure(
    trees: Sequence[Path], repeats: int, folder: Path, warm: bool = False, overrides: Sequence[str] = ()
) -> dict[str, list[Run]]:
    """Run each tree's quickstart in turns; return the runs by the tree's name, with ", warm" for those with caches."""
    runs: dict[str, list[Run]] = {}
    for turn in range(repeats):
        for tree in trees:
            home = folder / f"{tree.name}-{turn}"
            for name in (tree.name, f"{tree.name}, warm") if warm else (tree.name,):
                run = quickstart(tree, home, overrides)
                runs.setdefault(name, []).append(run)
                print(
                    f"  {name}: first round {run.wall_s['round']:.1f} s, in all {run.wall_s['end']:.1f} s", flush=True
                )
            shutil.rmtree(home)
    return runs


def table(runs: dict[str, list[Run]], title: str) -> Table:
    """Seconds of each phase's end in the fastest run, CPU seconds in the cheapest; each against the last tree's."""
    columns = [("phase", "phase", "")]
    rows: list[dict[str, object]] = [{"phase": text} for text in PHASES.values()]
    facts: dict[str, float] = {}
    for kind, heading in (("wall_s", "s"), ("cpu_s", "CPU s")):
        best = {name: min(done, key=lambda run: getattr(run, kind)["end"]) for name, done in runs.items()}
        for name, run in best.items():
            columns.append((f"{name} {kind}", f"{name}, {heading}", ".1f"))
            for row, phase in zip(rows, PHASES, strict=True):
                row[f"{name} {kind}"] = facts[f"{name} {phase} {kind}"] = getattr(run, kind)[phase]
        first, last = next(iter(best)), next(reversed(best))
        if len(best) > 1:
            columns.append((f"ratio {kind}", f"{heading}: ratio", ".2f"))
            for row, phase in zip(rows, PHASES, strict=True):
                ratio = getattr(best[first], kind)[phase] / getattr(best[last], kind)[phase]
                row[f"ratio {kind}"] = facts[f"ratio {phase} {kind}"] = ratio
    shown = {name: ", ".join(f"{v:.1f}" for v in done[0].accuracy.values()) for name, done in runs.items()}
    notes = [f"{name}: last accuracies {text} %" for name, text in shown.items()]
    return Table(title, columns, rows, facts, notes)


def main(arguments: list[str] | None = None) -> list[Table]:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--warm", action="store_true", help="each once more, with all caches there")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    trees = [ROOT, *([options.against.resolve()] if options.against else [])]
    with tempfile.TemporaryDirectory(prefix="hflray-first-minute-") as name, conditions() as found:
        runs = measure(trees, options.repeats, Path(name), options.warm, options.overrides)
    result = table(runs, f"the quickstart, best of {options.repeats}")
    result.facts |= found.facts()
    print(result.text())
    print(found.text())
    return [result]


if __name__ == "__main__":
    main()
