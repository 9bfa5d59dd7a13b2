"""The first minute: when each phase of a quickstart with empty caches ends. ``make bench`` runs it.

    python tests/benchmarks/first_minute.py [--repeats 3] [--against WORKTREE] [--warm] [--set KEY=VALUE …]

Each run is ``python -m hflray.tune`` in an empty folder with an empty HOME, so that Numba's cache, the compiled native
kernel, the measurements of this machine and MLflow's database are made anew, as in the minute after an install.
`--against` runs the tree of another checkout (with its own ``.venv``) in turns with this one.
`--warm` runs each tree once more in the same folder, where the first run has filled all caches.

The CPU seconds of a run are those of all processes that the command started. They vary less than the seconds where the
machine also works for others. The table shows the fastest and the cheapest run, and the machine must be quiet for it.
Its ratios compare this tree with the other one, or with a bare loop where there is no other tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Processes, Table, arguments, publish

ROOT = Path(__file__).parents[2]
OWN = "this tree"  # its name in the table, the same in every checkout, so that ratios can be compared
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


def quickstart(tree: Path, home: Path, overrides: Sequence[str] = ()) -> Run:
    """Run the quickstart of a checkout in the folder `home`, which holds its HOME and its caches, and stays.

    Raises:
        SystemExit: the command failed; the message holds its output.
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


def measure(
    trees: Mapping[str, Path], repeats: int, folder: Path, warm: bool = False, overrides: Sequence[str] = ()
) -> dict[tuple[str, str], list[Run]]:
    """Run the quickstart of each named tree in turns; return the runs by the tree's name and "cold" or "warm"."""
    runs: dict[tuple[str, str], list[Run]] = {}
    for turn in range(repeats):
        for name, tree in trees.items():
            home = folder / f"{name}-{turn}"
            for caches in ("cold", "warm") if warm else ("cold",):
                run = quickstart(tree, home, overrides)
                runs.setdefault((name, caches), []).append(run)
                times = f"first round {run.wall_s['round']:.1f} s, in all {run.wall_s['end']:.1f} s"
                print(f"  {name}, {caches}: {times}", flush=True)
            shutil.rmtree(home)
    return runs


def table(runs: Mapping[tuple[str, str], Sequence[Run]], title: str) -> Table:
    """Return the table of the seconds of the fastest run and the CPU seconds of the cheapest, at each phase's end.

    Its ratios say how many times as fast `OWN` is as the other tree with the same caches or, where there is no other
    tree, as the bare loop just before the run.
    """
    columns = [("phase", "phase", "")]
    rows: list[dict[str, object]] = [{"phase": text} for text in PHASES.values()]
    result = Table(title, columns, rows, key="first minute/phases")
    for kind, unit in KINDS.items():
        best = {key: min(some, key=lambda run: getattr(run, kind)["end"]) for key, some in runs.items()}
        for (name, caches), run in best.items():
            column = f"{name}, {caches}, {unit}"
            columns.append((column, column, ".1f"))
            for row, phase in zip(rows, PHASES, strict=True):
                row[column] = result.facts[f"{column}, {phase}"] = getattr(run, kind)[phase]
        for (name, caches), run in best.items():
            if name != OWN:
                continue
            other = next((best[key] for key in best if key[0] != OWN and key[1] == caches), None)
            column = f"ratio, {caches}, {unit}"
            if other is not None:
                columns.append((column, f"× as fast, {caches}, {unit}", ".2f"))
                for row, phase in zip(rows, PHASES, strict=True):
                    row[column] = getattr(other, kind)[phase] / getattr(run, kind)[phase]
            for phase in COMPARED:
                reference_s = run.loop_s if other is None else getattr(other, kind)[phase]
                result.ratios[f"{caches}, {PHASES[phase]}, {unit}"] = reference_s / getattr(run, kind)[phase]
    for (name, caches), some in runs.items():
        accuracies = ", ".join(f"{value:.1f}" for value in some[0].accuracy.values())
        result.notes.append(f"{name}, {caches}: last accuracies {accuracies} %")
    alone = all(name == OWN for name, _ in runs)
    result.notes.append(f"ratios: against {'a bare loop' if alone else 'the other tree'}")
    return result


def tables(repeats: int, against: Path | None, warm: bool, overrides: Sequence[str]) -> Iterator[Table]:
    """Measure, and yield the table. The arguments are those of the command line."""
    trees = {OWN: ROOT} | ({against.resolve().name: against.resolve()} if against else {})
    with tempfile.TemporaryDirectory(prefix="hflray-first-minute-") as name:
        runs = measure(trees, repeats, Path(name), warm, overrides)
    yield table(runs, f"the quickstart, best of {repeats}")


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--against", type=Path, help="another checkout, which is measured in turns with this one")
    parser.add_argument("--warm", action="store_true", help="run each tree once more with the caches that it has made")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(words)
    repeats = 1 if options.quick else options.repeats
    overrides = [*(["max_rounds=1"] if options.quick else []), *options.overrides]
    publish(tables(repeats, options.against, options.warm, overrides), options.json)


if __name__ == "__main__":
    main()
