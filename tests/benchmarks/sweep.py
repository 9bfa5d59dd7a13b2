"""The overhead of Tune and tracking: time per round.

* ``overhead``: a short round on little data under ``python -m hflray.tune`` (one trial, serial backend, a checkpoint
  every round, MLflow in SQLite), compared with the same trial in a bare ``for record in Experiment(config)``, which
  saves and logs nothing.
* ``share``: the same with the paper's fleet, schedule and model on Fashion-MNIST (N = 100, H = 30; needs $HFLRAY_DATA)
  and L = Q = 1, where the time between the rounds' own phases is not lost in noise; then its share of one round with
  L = Q = 5, which takes most of a minute.

The variants take turns, so that other work on the machine affects them alike.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep
from tests.benchmarks._report import Table

ROOT = Path(__file__).parents[2]
EXPERIMENTS = yaml.safe_load(Path(__file__).with_name("sweeps.yaml").read_text(encoding="utf-8"))
LITTLE, PAPER = EXPERIMENTS["little"], EXPERIMENTS["paper"]


@dataclass
class Rounds:
    """The times of rounds.

    Attributes:
        whole_s: time from each round's end to the next round's end.
        between_s: the part of it outside the later round's phases (scheduling … evaluation).
    """

    whole_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)

    def add(self, ends_s: list[float], phases_s: list[float]) -> None:
        """Add consecutive rounds from the end of each and the seconds of its phases."""
        for (before, after), own in zip(itertools.pairwise(ends_s), phases_s[1:], strict=True):
            self.whole_s.append(after - before)
            self.between_s.append(after - before - own)


def write(folder: Path, experiment: dict[str, Any]) -> None:
    """Write a sweep file into a folder, which is made."""
    folder.mkdir(exist_ok=True)
    (folder / "bench.yaml").write_text(yaml.dump({"name": "bench", "experiment": experiment}))


def run(folder: Path, experiment: dict[str, Any], *arguments: str) -> list[dict[str, Any]]:
    """Run a sweep of one trial in a folder, and return its journal."""
    write(folder, experiment)
    command = [sys.executable, "-m", "hflray.tune", "bench.yaml", "-q", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    (journal,) = folder.glob("hflray_results/bench-*/journal/*.jsonl")
    return [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]


def stamps(lines: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the end of each round of a journal, s, and the seconds of its phases."""
    rounds = [line for line in lines if "round" in line]
    phases = [sum(v for name, v in line["metrics"].items() if name.startswith("wall/")) for line in rounds]
    return [line["time"] / 1e3 for line in rounds], phases


def bare(folder: Path) -> tuple[list[float], list[float]]:
    """Return the same as `stamps` for the only trial of a folder's sweep in a bare loop."""
    (trial,) = expand(load_sweep(folder / "bench.yaml"))
    ends, phases = [], []
    with Experiment(trial.config) as experiment:
        for record in experiment:
            ends.append(time.perf_counter())
            phases.append(sum(record.wall.values()))
    return ends, phases


def overhead(rounds: int = 40, turns: int = 2, experiment: dict[str, Any] = LITTLE) -> Table:
    """Measure a round of a configuration with and without Tune, and the time that Tune adds between rounds."""
    tuned, alone = Rounds(), Rounds()
    with tempfile.TemporaryDirectory(prefix="hflray-sweep-") as name:
        for turn in range(turns):
            folder = Path(name) / str(turn)
            tuned.add(*stamps(run(folder, experiment | {"max_rounds": rounds})))
            alone.add(*bare(folder))
    with_s, without_s = statistics.median(tuned.whole_s), statistics.median(alone.whole_s)
    more_s = statistics.median(tuned.between_s) - statistics.median(alone.between_s)
    return Table(
        "sweep/overhead",
        f"a round of {experiment['data']['name']}, medians of {len(tuned.whole_s)} rounds",
        [("row", "", ""), ("ms", "ms", ",.1f")],
        [
            {"row": "bare", "ms": 1e3 * without_s},
            {"row": "under Tune, with tracking and checkpoints", "ms": 1e3 * with_s},
        ],
        {"more_s": more_s, "share": more_s / without_s},
        [
            f"{with_s / without_s - 1:+.1%} in all; between the rounds, outside their phases: "
            f"{more_s * 1e3:+.1f} ms, {more_s / without_s:+.2%} of a bare round"
        ],
        {"a bare round, of one under Tune": without_s / with_s},
    )


def share(rounds: int = 10) -> Table:
    """Measure the share that Tune and tracking add to the paper's round on Fashion-MNIST."""
    if not (Path(os.environ.get("HFLRAY_DATA", "-")) / "fashion_mnist.npz").is_file():
        reason = "$HFLRAY_DATA holds no fashion_mnist.npz"
        return Table("sweep/share", "a round of fashion_mnist", not_measured=reason)
    result = overhead(
        rounds, 2, PAPER | {"training": PAPER["training"] | {"local_iterations": 1, "edge_iterations": 1}}
    )
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), PAPER | {"max_rounds": 1})
        (whole_s,) = bare(Path(folder))[1]
    of_whole = result.facts["more_s"] / whole_s
    result.key, result.facts = "sweep/share", result.facts | {"whole_s": whole_s, "share_of_whole": of_whole}
    result.notes.append(f"a round with L = Q = 5: {whole_s:.1f} s; Tune and tracking add {of_whole:+.2%} to it")
    return result
