"""The overhead of Tune and tracking: time per round, trials per second, memory, slow servers. ``make bench`` runs it.

    python tests/benchmarks/sweep.py [--only overhead share many servers] [--rounds 40] [--trials 200]

* ``overhead``: a short round on little data under ``python -m hflray.tune`` (one trial, serial backend, a checkpoint
  every round, MLflow in SQLite), compared with the same trial in a bare ``for record in Experiment(config)``, which
  saves and logs nothing.
* ``share``: the same with the paper's fleet, schedule and model on Fashion-MNIST (N = 100, H = 30; needs $HFLRAY_DATA)
  and L = Q = 1, where the time between the rounds' own phases is not lost in noise; then its share of one round with
  L = Q = 5, which takes most of a minute.
* ``many``: many trials of two rounds on little data, which reuse processes, and a tenth of them without reuse; the
  driver's memory while they end.
* ``servers``: a sweep with a quick MLflow server, one that answers after 2 s, one that answers "500" as with a full
  disk, and none.

The variants take turns, so that other work on the machine affects them alike.
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
FROM, TO = 0.2, 0.95  # fractions of the trials between which the slope of the driver's memory is fitted
SEEN = (0.1, FROM, 0.5, TO)


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


def start(folder: Path, name: str, experiment: dict[str, Any], *arguments: str, **sections: object) -> Any:
    """Start a sweep in `folder`, in its own process."""
    (folder / f"{name}.yaml").write_text(yaml.dump({"name": name, "experiment": experiment, **sections}))
    command = [sys.executable, "-m", "hflray.tune", f"{name}.yaml", "-q", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def journals(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """Return the journals of a sweep's trials, in the order in which the trials began."""
    paths = folder.glob(f"hflray_results/{name}-*/journal/*.jsonl")
    read = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in paths]
    return sorted(read, key=lambda lines: lines[0]["start"])


def ended(folder: Path, name: str) -> int:
    """Return the number of a sweep's trials that have ended."""
    paths = folder.glob(f"hflray_results/{name}-*/journal/*.jsonl")
    return sum(b'"end"' in path.read_bytes().rpartition(b"\n{")[2] for path in paths)


def stamps(lines: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the end of each round of a journal, s, and the seconds of its phases."""
    rounds = [line for line in lines if "round" in line]
    phases = [sum(v for name, v in line["metrics"].items() if name.startswith("wall/")) for line in rounds]
    return [line["time"] / 1e3 for line in rounds], phases


def bare(folder: Path, name: str) -> tuple[list[float], list[float]]:
    """Return the same as `stamps` for the sweep's only trial in a bare loop."""
    (trial,) = expand(load_sweep(folder / f"{name}.yaml"))
    ends, phases = [], []
    with Experiment(trial.config) as run:
        for record in run:
            ends.append(time.perf_counter())
            phases.append(sum(record.wall.values()))
    return ends, phases


def overhead(folder: Path, rounds: int, experiment: dict[str, Any], turns: int = 2) -> Table:
    """Measure a round with and without Tune, and the time that Tune adds between rounds.

    Args:
        folder: folder of the sweeps.
        rounds: number of rounds in a turn.
        experiment: the configuration.
        turns: number of turns.
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
    """Measure the share that Tune and tracking add to the paper's round on Fashion-MNIST."""
    short = PAPER | {"training": PAPER["training"] | {"local_iterations": 1, "edge_iterations": 1}}
    result = overhead(folder, rounds, short)
    (folder / "full.yaml").write_text(yaml.dump({"name": "full", "experiment": PAPER | {"max_rounds": 1}}))
    (whole_s,) = bare(folder, "full")[1]
    result.key, result.facts["whole_s"] = "sweep/share", whole_s
    result.facts["share_of_whole"] = result.facts["more_s"] / whole_s
    result.notes.append(
        f"a round with L = Q = 5: {whole_s:.1f} s; Tune and tracking add {result.facts['share_of_whole']:+.2%} to it"
    )
    return result


@dataclass
class Growth:
    """The driver's memory while trials end, and the speed of the trials.

    Attributes:
        marks: number of trials that have ended, and the driver's MB then.
        per_s: trials per second, from the first trial's first round to the last trial's last.
        wall_s: total time with the start, s.
        cpu_s: CPU seconds per trial.
    """

    marks: list[tuple[int, float]]
    per_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def slope(self, trials: int) -> float:
        """Return the MB per trial, by a straight line through the marks from 20 % to 95 % of the trials."""
        count, mb = zip(*[mark for mark in self.marks if FROM * trials <= mark[0] <= TO * trials], strict=True)
        return float(np.polyfit(count, mb, 1)[0])

    def at(self, count: float) -> float:
        """Return the MB when `count` trials had ended."""
        return next((mb for seen, mb in self.marks if seen >= count), self.marks[-1][1])


def many(folder: Path, trials: int, reuse: bool) -> Growth:
    """Run a sweep of many trials, and return its speed and the growth of the driver's memory."""
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
            pass  # the process is ending
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit("the sweep failed")
    wall_s = time.perf_counter() - begin
    times = [stamps(lines)[0] for lines in journals(folder, name)]
    first, last = min(ends[0] for ends in times), max(ends[-1] for ends in times)
    return Growth(marks, (trials - 1) / (last - first), wall_s, sum(cpu_s.values()) / trials)


def many_table(folder: Path, trials: int) -> Table:
    """Measure many short trials that reuse processes, and a tenth of them without reuse."""
    columns = [
        ("row", "", ""),
        ("trials", "trials", "d"),
        ("per_s", "trials/s", ".2f"),
        ("wall_s", "s in all", ".0f"),
        ("cpu_s", "CPU s a trial", ".2f"),
        *((f"mb_{round(100 * part)}", f"driver's MB after {part:.0%}", ".0f") for part in SEEN),
        ("kb_a_trial", f"kB a trial from {FROM:.0%} to {TO:.0%}", "+.0f"),
    ]
    result = Table("many trials of two short rounds", columns, [], key="sweep/many trials")
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
        result.rows.append({"row": name, "per_s": growth.per_s} | row)
        result.ratios[name] = growth.per_s * (loop_s + yardstick_s()) / 2
    result.notes.append("ratios: trials in the time of a bare loop")
    return result


@contextmanager
def relay(uri: str, delay_s: float = 0.0, broken: bool = False) -> Iterator[str]:
    """Run a server that forwards requests after `delay_s` seconds, or with `broken` answers 500."""
    host, _, port = uri.removeprefix("http://").partition(":")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(delay_s)
            if broken:
                status, kind, answer = 500, "application/json", b'{"error_code": "INTERNAL_ERROR", "message": "full"}'
            else:
                target = http.client.HTTPConnection(host, int(port), timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                target.request(self.command, self.path, body, headers)
                reply = target.getresponse()
                status, kind, answer = reply.status, reply.getheader("Content-Type", ""), reply.read()
                target.close()
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
    """Measure a round with servers of all kinds; `facts` has the medians, s."""
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
    result = Table("MLflow servers of all kinds", columns, [], facts=dict(medians), key="sweep/servers")
    for kind, value in medians.items():
        row: dict[str, object] = {"row": kind, "ms": 1e3 * value, "rounds": len(whole[kind])}
        result.rows.append(row | {"more": value / medians["quick"] - 1, "end_s": statistics.mean(after[kind])})
    result.ratios = {kind: medians["quick"] / value for kind, value in medians.items() if kind != "quick"}
    return result


def tables(only: Sequence[str], rounds: int, trials: int, turns: int) -> Iterator[Table]:
    """Measure, and yield each table as soon as it is measured. The arguments are those of the command line."""
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
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--rounds", type=int, help="of a turn, of the short rounds (default 40; quick 6)")
    parser.add_argument("--trials", type=int, help="default 200; quick 8")
    options = parser.parse_args(words)
    result = tables(
        options.only,
        options.rounds or (6 if options.quick else 40),
        options.trials or (8 if options.quick else 200),
        1 if options.quick else 2,
    )
    publish(result, options.json)


if __name__ == "__main__":
    main()
