"""What Tune and tracking cost: milliseconds a round, trials a second, memory, a server that is away. ``make bench``.

    python tests/benchmarks/sweep.py [--only overhead share many servers] [--rounds 40] [--trials 200]

* ``overhead``: a short round on little data under ``python -m hflray.tune`` (one trial, serial backend, a checkpoint
  every round, MLflow in SQLite) against the same trial in a bare ``for record in Experiment(config)``, which saves and
  logs nothing.
* ``share``: the same with the paper's fleet, schedule and model on Fashion-MNIST (N = 100, H = 30; needs $HFLRAY_DATA)
  and L = Q = 1, where what lies between the rounds, outside their own phases, is not lost in noise; then its share of
  one round with L = Q = 5, which takes most of a minute.
* ``many``: many trials of two rounds on little data, with the processes of ended trials used again and, for a tenth of
  them, without; the driver's memory as they end.
* ``servers``: a sweep with a quick MLflow server, one that answers after 2 s, one that answers "500" as a full disk
  makes it, and none.

Everything is measured in turns (this, that, this, that), so that what else the machine does is shared.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table, arguments, publish
from tests.servers import mlflow_server

ROOT = Path(__file__).parents[2]
PARTS = ("overhead", "share", "many", "servers")
LITTLE: dict[str, Any] = {
    "data": {"name": "synthetic", "samples_per_device": [20, 40]},
    "fleet": {"num_devices": 12, "num_edges": 2},
    "scheduling": {"name": "fedavg", "num_scheduled": 4},
    "assignment": {"name": "geographic"},
    "training": {"local_iterations": 1, "edge_iterations": 1, "batch_size": 16, "backend": "serial"},
}
PAPER: dict[str, Any] = {
    "data": {"name": "fashion_mnist"},
    "scheduling": {"name": "fedavg", "num_scheduled": 30},
    "assignment": {"name": "hfel"},
    "training": {"backend": "serial"},
}
STEADY: dict[str, Any] = LITTLE | {
    "data": {"name": "synthetic", "samples_per_device": [360, 360]},
    "training": LITTLE["training"] | {"local_iterations": 2},
}
FROM, TO = 0.2, 0.95  # of the trials: where the driver's memory is looked at
SEEN = (0.1, FROM, 0.5, TO)


@dataclass
class Rounds:
    """What rounds took.

    Attributes:
        whole_s: from one round's end to the next's.
        between_s: of that, outside the later round's own phases (scheduling … evaluation).
    """

    whole_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)

    def add(self, ends_s: list[float], phases_s: list[float]) -> None:
        """Rounds that follow each other: when each ended, and the seconds of its phases."""
        for (before, after), own in zip(itertools.pairwise(ends_s), phases_s[1:], strict=True):
            self.whole_s.append(after - before)
            self.between_s.append(after - before - own)


def start(folder: Path, name: str, experiment: dict[str, Any], *arguments: str, **sections: object) -> Any:
    """Begin a sweep in `folder`, in a process of its own."""
    (folder / f"{name}.yaml").write_text(yaml.dump({"name": name, "experiment": experiment, **sections}))
    command = [sys.executable, "-m", "hflray.tune", f"{name}.yaml", "-q", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def journals(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """The journal of every trial of a sweep, in the order they began."""
    paths = folder.glob(f"hflray_results/{name}-*/journal/*.jsonl")
    read = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in paths]
    return sorted(read, key=lambda lines: lines[0]["start"])


def ended(folder: Path, name: str) -> int:
    """How many trials of a sweep have ended."""
    paths = folder.glob(f"hflray_results/{name}-*/journal/*.jsonl")
    return sum(b'"end"' in path.read_bytes().rpartition(b"\n{")[2] for path in paths)


def stamps(lines: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """When each round of a journal was done, s, and the seconds of its phases."""
    rounds = [line for line in lines if "round" in line]
    phases = [sum(v for name, v in line["metrics"].items() if name.startswith("wall/")) for line in rounds]
    return [line["time"] / 1e3 for line in rounds], phases


def bare(folder: Path, name: str) -> tuple[list[float], list[float]]:
    """The same of the sweep's one trial in a bare loop."""
    (trial,) = expand(load_sweep(folder / f"{name}.yaml"))
    ends, phases = [], []
    with Experiment(trial.config) as run:
        for record in run:
            ends.append(time.perf_counter())
            phases.append(sum(record.wall.values()))
    return ends, phases


def overhead(folder: Path, rounds: int, experiment: dict[str, Any], turns: int = 2) -> Table:
    """What a round takes with and without Tune, and what lies between rounds more with it.

    Args:
        folder: where to.
        rounds: of each turn.
        experiment: the configuration.
        turns: how often both are measured.
    """
    tuned, alone = Rounds(), Rounds()
    for turn in range(turns):
        name = f"one{turn}"
        if start(folder, name, experiment | {"max_rounds": rounds}).wait():
            raise SystemExit("the sweep failed")
        (lines,) = journals(folder, name)
        tuned.add(*stamps(lines))
        alone.add(*bare(folder, name))
    with_s, without_s = statistics.median(tuned.whole_s), statistics.median(alone.whole_s)
    more_s = statistics.median(tuned.between_s) - statistics.median(alone.between_s)
    return Table(
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
        key="sweep/overhead",
        ratios={"a bare round, of one under Tune": without_s / with_s},
    )


def share(folder: Path, rounds: int) -> Table:
    """The share of the paper's round on Fashion-MNIST that Tune and tracking add."""
    short = PAPER | {"training": PAPER["training"] | {"local_iterations": 1, "edge_iterations": 1}}
    found = overhead(folder, rounds, short)
    (folder / "full.yaml").write_text(yaml.dump({"name": "full", "experiment": PAPER | {"max_rounds": 1}}))
    (whole_s,) = bare(folder, "full")[1]
    found.key, found.facts["whole_s"] = "sweep/share", whole_s
    found.facts["share_of_whole"] = found.facts["more_s"] / whole_s
    found.notes.append(
        f"a round with L = Q = 5: {whole_s:.1f} s; Tune and tracking add {found.facts['share_of_whole']:+.2%} to it"
    )
    return found


@dataclass
class Growth:
    """The driver's memory as trials end, and how fast they did.

    Attributes:
        marks: how many have ended, and MB.
        per_s: trials a second, from the first's first round to the last's last.
        wall_s: in all, start included.
        cpu_s: CPU seconds a trial.
    """

    marks: list[tuple[int, float]]
    per_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def slope(self, trials: int) -> float:
        """MB a trial, a straight line through what was seen from 20 % to 95 % of the trials."""
        count, mb = zip(*[mark for mark in self.marks if FROM * trials <= mark[0] <= TO * trials], strict=True)
        return float(np.polyfit(count, mb, 1)[0])

    def at(self, count: float) -> float:
        """MB once so many trials had ended."""
        return next((mb for seen, mb in self.marks if seen >= count), self.marks[-1][1])


def many(folder: Path, trials: int, reuse: bool) -> Growth:
    """Trials per second and how the driver's memory grew."""
    name = f"many-{reuse}".lower()
    axes = {"seed": {"grid": list(range(trials))}}
    process = start(folder, name, LITTLE | {"max_rounds": 2}, sweep=axes, tune={"reuse": reuse})
    begin, marks = time.perf_counter(), []
    driver = psutil.Process(process.pid)
    cpu_s: dict[int, float] = {}
    while process.poll() is None:
        try:
            marks.append((ended(folder, name), driver.memory_info().rss / 2**20))
            for child in (driver, *driver.children(recursive=True)):
                cpu_s[child.pid] = sum(child.cpu_times()[:2])
        except psutil.Error:
            pass  # it is just ending
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit("the sweep failed")
    wall_s = time.perf_counter() - begin
    times = [stamps(lines)[0] for lines in journals(folder, name)]
    first, last = min(ends[0] for ends in times), max(ends[-1] for ends in times)
    return Growth(marks, (trials - 1) / (last - first), wall_s, sum(cpu_s.values()) / trials)


def many_table(folder: Path, trials: int) -> Table:
    """Many short trials, with the processes of ended ones used again and, for a tenth of them, without."""
    columns = [
        ("row", "", ""),
        ("trials", "trials", "d"),
        ("per_s", "trials/s", ".2f"),
        ("wall_s", "s in all", ".0f"),
        ("cpu_s", "CPU s a trial", ".2f"),
        *((f"mb_{round(100 * part)}", f"driver's MB after {part:.0%}", ".0f") for part in SEEN),
        ("kb_a_trial", f"kB a trial from {FROM:.0%} to {TO:.0%}", "+.0f"),
    ]
    found = Table("many trials of two short rounds", columns, [], key="sweep/many trials")
    for name, count, reuse in (
        ("processes used again", trials, True),
        ("a process for each trial", max(4, trials // 10), False),
    ):
        loop_s = yardstick_s()
        growth = many(folder, count, reuse)
        row: dict[str, object] = {"trials": count, "wall_s": growth.wall_s, "cpu_s": growth.cpu_s}
        enough = count >= 20
        row |= {f"mb_{round(100 * part)}": growth.at(count * part) if enough else None for part in SEEN}
        row["kb_a_trial"] = 1e3 * growth.slope(count) if enough else None
        found.rows.append({"row": name, "per_s": growth.per_s} | row)
        found.ratios[name] = growth.per_s * (loop_s + yardstick_s()) / 2
    found.notes.append("ratios: trials in the time of a bare loop")
    return found


@contextmanager
def relay(uri: str, delay_s: float = 0.0, broken: bool = False) -> Iterator[str]:
    """A server that hands requests on to another one, `delay_s` later; `broken`: that answers 500 instead."""
    host, _, port = uri.removeprefix("http://").partition(":")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(delay_s)
            if broken:
                status, kind, answer = 500, "application/json", b'{"error_code": "INTERNAL_ERROR", "message": "full"}'
            else:
                there = http.client.HTTPConnection(host, int(port), timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                there.request(self.command, self.path, body, headers)
                reply = there.getresponse()
                status, kind, answer = reply.status, reply.getheader("Content-Type", ""), reply.read()
                there.close()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def servers(folder: Path, rounds: int, turns: int = 2) -> Table:
    """What a round takes with servers of all kinds; `facts` has the medians, s."""
    whole: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    with mlflow_server(folder) as server:
        for turn in range(turns):
            for kind, how in (("quick", {}), ("slow", {"delay_s": 2.0}), ("full", {"broken": True}), ("none", None)):
                with relay(server.uri, **(how or {})) as uri:
                    at = uri if how is not None else "http://127.0.0.1:9"
                    name = f"{kind}{turn}"
                    process = start(folder, name, STEADY | {"max_rounds": rounds}, "--tracking-uri", at)
                    if process.wait():
                        raise SystemExit("the sweep failed")
                    over = time.time()
                (lines,) = journals(folder, name)
                seen = Rounds()
                seen.add(*stamps(lines))
                whole.setdefault(kind, []).extend(seen.whole_s)
                after.setdefault(kind, []).append(over - stamps(lines)[0][-1])
    medians = {kind: statistics.median(values) for kind, values in whole.items()}
    columns = [
        ("row", "", ""),
        ("ms", "a round, ms", ".1f"),
        ("rounds", "rounds", "d"),
        ("more", "against quick", "+.1%"),
        ("end_s", "s from the last round to the prompt", ".0f"),
    ]
    found = Table("MLflow servers of all kinds", columns, [], facts=dict(medians), key="sweep/servers")
    for kind, value in medians.items():
        row: dict[str, object] = {"row": kind, "ms": 1e3 * value, "rounds": len(whole[kind])}
        found.rows.append(row | {"more": value / medians["quick"] - 1, "end_s": statistics.mean(after[kind])})
    found.ratios = {kind: medians["quick"] / value for kind, value in medians.items() if kind != "quick"}
    return found


def tables(only: Sequence[str], rounds: int, trials: int, turns: int) -> Iterator[Table]:
    """Measure, and yield each table when it is there. The arguments are those of the command line."""
    with tempfile.TemporaryDirectory(prefix="hflray-sweep-") as name:
        for part in only:
            place = Path(name) / part
            place.mkdir()
            if part == "overhead":
                yield overhead(place, rounds, LITTLE, turns)
            elif part == "share" and not (Path(os.environ.get("HFLRAY_DATA", "-")) / "fashion_mnist.npz").is_file():
                reason = "$HFLRAY_DATA holds no fashion_mnist.npz"
                yield Table("a round of fashion_mnist", [], [], key="sweep/share", not_measured=reason)
            elif part == "share":
                yield share(place, max(2, rounds // 4))
            elif part == "many":
                yield many_table(place, trials)
            else:
                yield servers(place, max(2, rounds // 2), turns)


def main(words: list[str] | None = None) -> None:
    """Run what is asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--rounds", type=int, help="of a turn, of the short rounds (default 40; quick 6)")
    parser.add_argument("--trials", type=int, help="default 200; quick 8")
    options = parser.parse_args(words)
    found = tables(
        options.only,
        options.rounds or (6 if options.quick else 40),
        options.trials or (8 if options.quick else 200),
        1 if options.quick else 2,
    )
    publish(found, options.json)


if __name__ == "__main__":
    main()
