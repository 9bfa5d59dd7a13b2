"""The overhead of Tune and tracking: time per round, trials per second, memory, slow servers.

* ``overhead``: a short round on little data under ``python -m hflray.tune`` (one trial, serial backend, a checkpoint
  every round, MLflow in SQLite), compared with the same trial in a bare ``for record in Experiment(config)``, which
  saves and logs nothing.
* ``share``: the same with the paper's fleet, schedule and model on Fashion-MNIST (N = 100, H = 30; needs $HFLRAY_DATA)
  and L = Q = 1, where the time between the rounds' own phases is not lost in noise; then its share of one round with
  L = Q = 5, which takes most of a minute.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep
from tests.benchmarks._report import Table
from tests.servers import mlflow_server

ROOT = Path(__file__).parents[2]
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


def servers(rounds: int = 20, turns: int = 2) -> Table:
    """Measure a round with servers of all kinds; `facts` has the medians, s."""
    kinds: dict[str, dict[str, Any]] = {"quick": {}, "slow": {"delay_s": 2.0}, "full": {"broken": True}, "none": {}}
    whole: dict[str, list[float]] = {kind: [] for kind in kinds}
    after: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="hflray-sweep-") as name, mlflow_server(Path(name)) as server:
        for turn, (kind, how) in itertools.product(range(turns), kinds.items()):
            with relay(server.uri, **how) as uri:
                at = "http://127.0.0.1:9" if kind == "none" else uri
                lines = run(Path(name) / f"{kind}{turn}", STEADY | {"max_rounds": rounds}, "--tracking-uri", at)
                over = time.time()
            seen = Rounds()
            seen.add(*stamps(lines))
            whole[kind].extend(seen.whole_s)
            after[kind].append(over - stamps(lines)[0][-1])
    medians = {kind: statistics.median(values) for kind, values in whole.items()}
    columns = [
        ("row", "", ""), ("ms", "a round, ms", ".1f"), ("rounds", "rounds", "d"), ("more", "against quick", "+.1%"),
        ("end_s", "s from the last round to the prompt", ".0f"),
    ]  # fmt: skip
    result = Table("sweep/servers", "MLflow servers of all kinds", columns, facts=dict(medians))
    for kind, value in medians.items():
        more, end_s = value / medians["quick"] - 1, statistics.mean(after[kind])
        result.add(kind, ms=1e3 * value, rounds=len(whole[kind]), more=more, end_s=end_s)
    result.ratios = {kind: medians["quick"] / value for kind, value in medians.items() if kind != "quick"}
    return result
