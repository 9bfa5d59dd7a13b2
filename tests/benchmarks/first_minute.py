"""The first minute: when each phase of a quickstart with empty caches ends.

Each run is ``python -m hflray.tune`` in an empty folder with an empty HOME, so that Numba's cache, the compiled
kernels and MLflow's database are made anew, as in the minute after an install.
It is then run once more in the same folder, where the first run has filled all caches.

The CPU seconds of a run are those of all processes that the command started. They vary less than the seconds where the
machine also works for others. The table shows the fastest and the cheapest run, and the machine must be quiet for it.
Its ratios compare it with a bare loop just before the run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Processes, Table

ROOT = Path(__file__).parents[2]
FOLDER = "hflray_results/quickstart-*/sweep.json"
STEP_S = 0.1  # time between two looks at the processes
PHASES = {
    "folder": "until the sweep has its folder",
    "trial": "until its first trial starts",
    "round": "until the first round is on the screen",
    "rounds": "until the last trial is done",
    "end": "until the prompt",
}
COMPARED = ("round", "end")  # phases whose ends are compared; the others are parts of them
KINDS = {"wall_s": "s", "cpu_s": "CPU s"}
STARTED, ROUND, DONE = re.compile(r": started$"), re.compile(r": round 1/"), re.compile(r": done\b")
ACCURACY = re.compile(r"^(.*): round \d+/\d+, accuracy ([\d.]+)%")


@dataclass
class Run:
    """One run of the quickstart.

    Attributes:
        wall_s: for each of `PHASES`, the seconds from the start to its end.
        cpu_s: for each of `PHASES`, the CPU seconds from the start to its end.
        accuracy: the last accuracy of each trial on the screen, %.
        loop_s: seconds of the bare loop (`_bare.work`) just before the run.
    """

    wall_s: dict[str, float]
    cpu_s: dict[str, float]
    accuracy: dict[str, float]
    loop_s: float = float("nan")


def phase_ends(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Return when the phases ended that the command's output shows.

    Args:
        lines: the seconds from the start to each line, and the line.

    Raises:
        SystemExit: the output shows no end of a phase.
    """
    ends: dict[str, float] = {}
    for phase, pattern, index in (("trial", STARTED, 0), ("round", ROUND, 0), ("rounds", DONE, -1)):
        times = [at for at, line in lines if pattern.search(line)]
        if not times:
            raise SystemExit(f"no line of the quickstart matches {pattern.pattern!r}:\n" + _text(lines))
        ends[phase] = times[index]
    return ends


def last_accuracies(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Return the last accuracy of each trial in the command's output, %; `lines` as of `phase_ends`."""
    return {match[1]: float(match[2]) for _, line in lines if (match := ACCURACY.match(line))}


def _text(lines: Sequence[tuple[float, str]]) -> str:
    return "\n".join(line for _, line in lines)


def quickstart(home: Path, overrides: Sequence[str] = (), tree: Path = ROOT) -> Run:
    """Run the quickstart of this checkout in the folder `home`, which holds its HOME and its caches, and stays.

    Raises:
        SystemExit: the command failed; the message holds its output.
    """
    home.mkdir(exist_ok=True)
    before = set(home.glob("hflray_results/quickstart-*"))
    command = [sys.executable, "-m", "hflray.tune"]
    command += [part for setting in overrides for part in ("--set", setting)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HFLRAY_", "RAY_", "OMP_"))}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NUMBA_CACHE_DIR": str(home / "numba")}
    env |= {"PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    lines: list[tuple[float, str]] = []
    looks: list[tuple[float, float]] = []  # seconds, and CPU seconds by then
    wall: dict[str, float] = {}
    loop_s = yardstick_s()
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read() -> None:
        assert process.stdout is not None
        lines.extend((time.perf_counter() - begin, line.rstrip()) for line in process.stdout)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    processes = Processes(process.pid)
    while process.poll() is None:
        looks.append((time.perf_counter() - begin, processes.look()))
        if "folder" not in wall and any(path.parent not in before for path in home.glob(FOLDER)):
            wall["folder"] = time.perf_counter() - begin
        time.sleep(STEP_S)
    wall["end"] = time.perf_counter() - begin
    reader.join()
    if process.returncode:
        raise SystemExit("the quickstart failed:\n" + _text(lines))
    wall |= phase_ends(lines)
    at, cpu_s = zip(*looks, strict=True)
    cpu = {phase: float(np.interp(when, at, cpu_s)) for phase, when in wall.items()}
    return Run(wall, cpu, last_accuracies(lines), loop_s)


def table(repeats: int = 3, overrides: Sequence[str] = ()) -> Table:
    """Measure, and return the seconds of the fastest run and the CPU seconds of the cheapest, at each phase's end."""
    runs: dict[str, list[Run]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory(prefix="hflray-first-minute-") as folder:
        for turn in range(repeats):
            for caches in runs:
                runs[caches].append(quickstart(Path(folder) / str(turn), overrides))
    result = Table("first minute/phases", f"the quickstart, best of {repeats}", [("row", "phase", "")])
    rows = {phase: {"row": text} for phase, text in PHASES.items()}
    for kind, unit in KINDS.items():
        for caches, some in runs.items():
            best = min(some, key=lambda run: getattr(run, kind)["end"])
            result.columns.append((f"{caches}, {unit}", f"{caches}, {unit}", ".1f"))
            for phase, seconds in getattr(best, kind).items():
                rows[phase][f"{caches}, {unit}"] = result.facts[f"{caches}, {unit}, {phase}"] = seconds
            for phase in COMPARED:
                result.ratios[f"{caches}, {PHASES[phase]}, {unit}"] = best.loop_s / getattr(best, kind)[phase]
    result.rows = list(rows.values())
    for caches, some in runs.items():
        accuracies = ", ".join(f"{value:.1f}" for value in some[0].accuracy.values())
        result.notes.append(f"{caches}: last accuracies {accuracies} %")
    return result
