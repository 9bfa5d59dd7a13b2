"""The small sweep that is broken: its file, its driver's process, its command to go on, and its progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = "chaos"
ROUNDS = 16
# Three trials, two of which run at a time: the third uses the process of one that ended, so that a fault may also come
# between two trials. One has device and edge actors; the third has a scheduler that sees losses, and its edges discard
# devices that are late. The kernel and the threads are fixed, because measuring them would take longer than the rounds.
TEXT = f"""
name: {NAME}
tracking: {{sinks: [mlflow, csv]}}
experiment:
  max_rounds: {ROUNDS}
  data: {{name: synthetic, samples_per_device: [30, 60]}}
  fleet: {{num_devices: 12, num_edges: 2}}
  scheduling: {{num_scheduled: 4, num_clusters: 5}}
  training:
    {{local_iterations: 2, edge_iterations: 2, batch_size: 16, num_actors: 1, kernel: channels_last, threads: 1,
      device: cpu}}
sweep:
  scheduling.name: {{zip: [ikc, fedavg, oort]}}
  assignment.name: {{zip: [d3qn, local_search, geographic]}}
  allocation.method: {{zip: [newton, newton, equal]}}
  clock.edge.deadline: {{zip: [null, null, 0.9]}}
  training.backend: {{zip: [ray, serial, serial]}}
tune: {{max_concurrent: 2}}
"""
# Every part of a living world, so fast that each of its events happens several times in the rounds of a trial.
WORLD = """{
    wait_s: 1,
    availability: {name: markov, options: {mean_on_s: 40, mean_off_s: 20}},
    compute_jitter: {sigma: 0.3},
    fading: {name: rayleigh, coherence_s: 0.1},
    dropout: {rate_per_s: 0.02},
    edge_failure: {mtbf_s: 60, mttr_s: 10},
    battery: {capacity_j: [0.05, 0.3], initial: [0.3, 1], harvest_w: [0.0005, 0.004], reserve_j: 0.03, idle_w: 0.0002},
    mobility: {name: gauss_markov, options: {speed_m_per_s: 20, memory_s: 5}, slot_s: 0.1}}"""
# The same sweep in this world. One of its schedulers sees the charges, and every edge has a limit of its own kind.
LIVING = TEXT
for still, living in (
    ("sweep:\n", f"  world: {WORLD}\nsweep:\n  clock.edge.first: {{zip: [0.75, null, null]}}\n"),
    ("ikc, fedavg, oort", "ikc, energy_aware, oort"),
    ("null, null, 0.9", "null, 1.5, 0.9"),
):
    assert still in LIVING
    LIVING = LIVING.replace(still, living)

# The same sweep with something else inside each round: all that is kept and sent beside models. One trial has a rule
# and compressors with memory, a robust edge and a cloud with moments, on actors. One has privacy. One has a rule whose
# state is the cloud's as well.
INSIDE = TEXT.replace(
    "sweep:\n",
    """sweep:
  training.rule.name: {zip: [scaffold, mtgc, feddyn]}
  training.momentum: {zip: [0, 0, 0.5]}
  compression.device.name: {zip: [top_k, qsgd, none]}
  compression.edge.name: {zip: [sign, none, top_k]}
  aggregation.edge.name: {zip: [median, mean, mean]}
  aggregation.cloud.name: {zip: [fedadam, mean, mean]}
  aggregation.weights: {zip: [samples, uniform, uniform]}
  privacy.clip: {zip: [null, 0.05, null]}
  world.faulty.share: {zip: [0.2, 0, 0]}
""",
)
assert INSIDE != TEXT

# The same sweep in the living world under an asynchronous cloud, whose turns are under way at every kill. The edges
# of one trial in three are asynchronous, too.
ASYNCHRONOUS = LIVING.replace(
    "sweep:\n",
    """sweep:
  clock.cloud: {zip: [asynchronous, {asynchronous: {buffer: 2, updates: 3}}, {asynchronous: {rule: fedat}}]}
  clock.edge.asynchronous: {zip: [null, {}, null]}
""",
).replace("null, 1.5, 0.9", "null, null, 0.9")
assert ASYNCHRONOUS != LIVING

# The same trials without actors. Members that exchange states every four rounds, of which two run at a time.
ALONE = TEXT[: TEXT.index("sweep:\n")].replace("num_actors: 1,", "backend: serial,")
_RATES = "sweep:\n  training.learning_rate: {loguniform: [0.003, 0.3]}\n"
POPULATION = f"{ALONE}{_RATES}tune: {{samples: 4, max_concurrent: 2, population: {{every: 4, replaced: 0.5}}}}\n"
# A search, of which each trial's rounds follow from the values that it has drawn.
SEARCH = f"{ALONE}{_RATES}tune: {{samples: 4, max_concurrent: 2, search: {{metric: accuracy, mode: max}}}}\n"


@dataclass
class Sweep:
    """A sweep in a folder of its own.

    Args:
        folder: the folder, in which the command runs; it has the sweep's file, its results and its output.
        environment: additional environment variables of its processes.
        tracking_uri: the MLflow server; None stands for the SQLite file of the results.
        text: the sweep file.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    tracking_uri: str | None = None
    text: str = TEXT

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{NAME}.yaml").write_text(self.text, encoding="utf-8")

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.folder / "hflray_results"

    @property
    def output(self) -> Path:
        """The file with everything that the commands have printed."""
        return self.folder / "output.txt"

    def begun(self) -> list[Path]:
        """Return the folders of the sweeps that have begun, which is one, or none at first."""
        return sorted(path.parent for path in self.results.glob(f"{NAME}-*/sweep.json"))

    def finished(self) -> bool:
        """Return whether every trial has ended, as ``sweep.json`` says."""
        return any(json.loads((path / "sweep.json").read_text(encoding="utf-8"))["finished"] for path in self.begun())

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command: the first one, or the one that goes on if the sweep has begun."""
        if self.begun():
            return self._run("--resume", NAME)
        more = ("--tracking-uri", self.tracking_uri) if self.tracking_uri else ()
        # A driver that dies before the sweep has begun leaves nothing that could be gone on with.
        return self._run(f"{NAME}.yaml", *more)

    def resume(self) -> subprocess.Popen[bytes]:
        """Start the command that goes on."""
        return self._run("--resume", NAME)

    def _run(self, *arguments: str, module: str = "hflray.tune") -> subprocess.Popen[bytes]:
        settings = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", module, *arguments]
        with self.output.open("ab") as output:
            output.write(f"$ {' '.join(command[1:])}\n".encode())
            output.flush()
            return subprocess.Popen(
                command, cwd=self.folder, env=os.environ | settings | dict(self.environment),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def synchronise(self) -> subprocess.Popen[bytes]:
        """Start the command that sends MLflow what it lacks."""
        return self._run("sync", str(self.begun()[-1]), module="hflray.tracking")

    def progress(self) -> dict[str, tuple[int, bool]]:
        """Return the last journalled round of each trial that has begun, and whether the trial has ended."""
        state = {}
        for path in self.results.glob(f"{NAME}-*/journal/*.jsonl"):
            last, ended = 0, False
            for entry in entries(path):
                if "start" in entry:
                    ended = False
                elif "end" in entry:
                    ended = True
                elif "round" in entry:
                    last = max(last, int(entry["round"]))
            state[path.stem] = (last, ended)
        return state


def entries(path: Path) -> list[dict[str, object]]:
    """Return the lines of a journal that can be read, in their order."""
    whole: list[dict[str, object]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            whole.append(entry)
    return whole


def steps(before: Mapping[str, tuple[int, bool]], after: Mapping[str, tuple[int, bool]]) -> bool:
    """Return whether every trial that ran `before` has made another round or has ended `after`.

    If none ran, it is whether any trial has made a round.
    """
    running = [name for name, (_, ended) in before.items() if not ended]
    if not running:
        return any(last > before.get(name, (0, False))[0] for name, (last, _) in after.items())
    return all(after[name][0] > before[name][0] or after[name][1] for name in running)
