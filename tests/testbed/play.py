"""The testbed plays plans, and writes down what each turn took, in the format of `hflray calibrate`."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hflray.data import load_dataset
from hflray.errors import HflrayError
from tests.testbed import machine, node
from tests.testbed.plans import DEVICES, EDGE_ITERATIONS, EDGES, Plan, Setting, cloud_rate_bps, fleet, plan, reference

CLOUD, PROBE, NOWHERE = "cloud", "probe", "none"
DEVICE_NAMES = [f"device{n}" for n in range(DEVICES)]
EDGE_NAMES = [f"edge{m}" for m in range(EDGES)]
LINKS = [*((name, above) for name in DEVICE_NAMES for above in EDGE_NAMES), *((name, CLOUD) for name in EDGE_NAMES)]
MOST_S = 120.0  # of a round
ORDER_SEED = 1
COLUMNS = (
    "device", "round", "samples", "steps", "train_s", "bytes", "send_s", "edge", "batch", "config", "kind", "turn",
    "iteration", "local_iterations", "cores", "mbps", "cpu_s", "begin_s", "round_s", "accuracy", "load", "busy_cores",
    "cpu", "at",
)  # fmt: skip


class Played(NamedTuple):
    """A round that is played: its plan, and how often its configuration was played with it."""

    plan: Plan
    turn: int


def order(rounds: dict[Setting, int]) -> list[Played]:
    """Return the rounds of configurations, spread evenly over time, so that all share how the machine drifts."""
    rng = np.random.default_rng(ORDER_SEED)
    plans = {setting: plan(setting) for setting in rounds}
    places = [
        ((turn + rng.random()) / count, Played(plans[setting], turn + 1))
        for setting, count in rounds.items()
        for turn in range(count)
    ]
    return [played for _, played in sorted(places, key=lambda place: place[0])]


class Testbed:
    """Processes of all nodes, which begin with `start` and end with `stop`."""

    __test__ = False

    def __init__(self) -> None:
        self.controls: dict[str, Connection] = {}
        self.processes: dict[str, BaseProcess] = {}
        self.limits: dict[object, float] = {}

    def start(self) -> None:
        """Make namespaces, links and groups, and begin all processes."""
        machine.up([*DEVICE_NAMES, *EDGE_NAMES, CLOUD], LINKS)
        data = load_dataset("digits")
        ends = np.cumsum(fleet().samples).astype(int)
        shuffled = np.random.default_rng(0).permutation(len(data.y_train))
        images = data.x_train[shuffled].reshape(-1, *node.SHAPE).astype(np.float32) / 255
        labels = data.y_train[shuffled].astype(np.int64)
        of_link = {pair: machine.address(number, 1) for number, pair in enumerate(LINKS)}
        tested = data.x_test.reshape(-1, *node.SHAPE).astype(np.float32) / 255, data.y_test.astype(np.int64)
        self._begin(CLOUD, node.cloud, EDGES, tested)
        for m, name in enumerate(EDGE_NAMES):
            self._begin(name, node.edge, DEVICES, of_link[name, CLOUD], number=m)
        for n, name in enumerate(DEVICE_NAMES):
            own = slice(ends[n] - int(fleet().samples[n]), ends[n])
            addresses = [of_link[name, above] for above in EDGE_NAMES]
            self._begin(name, node.device, (images[own], labels[own]), addresses, number=n)
        for name in self.processes:
            self.reply(name)
        cores, _ = reference()
        for n, name in enumerate(DEVICE_NAMES):
            self.limit(name, None, cores[n])
        for m, name in enumerate(EDGE_NAMES):
            self.limit(name, CLOUD, cloud_rate_bps()[m])

    def _begin(self, name: str, target: Callable[..., None], *words: Any, number: int | None = None) -> None:
        context = multiprocessing.get_context("fork")
        ours, control = context.Pipe()
        numbers = () if number is None else (number,)

        def begin() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            machine.enter(name)
            target(*numbers, control, *words)

        process = context.Process(target=begin, daemon=True)
        process.start()
        control.close()
        self.controls[name], self.processes[name] = ours, process

    def reply(self, name: str) -> Any:
        """Return what a node says. Raises HflrayError: it has ended, or says nothing."""
        try:
            if self.controls[name].poll(MOST_S):
                return self.controls[name].recv()
        except EOFError:
            raise HflrayError(f"testbed: {name} has ended; see its message above") from None
        raise HflrayError(f"testbed: {name} did not answer for {MOST_S:g} s; is the machine overloaded?")

    def limit(self, name: str, above: str | None, value: float) -> None:
        """Set a device's share of a core, or the rate of a link in bit/s, unless it is so already."""
        if self.limits.get((name, above)) == value:
            return
        if above is None:
            machine.set_cores(name, value)
        else:
            machine.set_rate(name, LINKS.index((name, above)), value)
        self.limits[name, above] = value

    def probe(self) -> list[dict[str, Any]]:
        """Return what single steps of a batch take on each device: what a naive user measures."""
        for name in DEVICE_NAMES:
            self.controls[name].send(node.DeviceTask(0, 0, 0, node.PROBE_BATCH, 0))
        cores, batch = reference()[0], node.PROBE_BATCH
        return [
            {"device": name, "round": 0, "samples": batch, "steps": 1, "batch": batch, "config": PROBE, "kind": PROBE,
             "turn": turn + 1, "edge": NOWHERE, "cores": cores[n], **row}
            for n, name in enumerate(DEVICE_NAMES) for turn, row in enumerate(self.reply(name))
        ]  # fmt: skip

    def play(self, number: int, played: Played) -> list[dict[str, Any]]:
        """Play a round and return a row for each turn of a device, and one for each edge's hop."""
        made, setting = played.plan, played.plan.setting
        samples = fleet().samples[made.devices]
        weights: dict[int, dict[int, float]] = {m: {} for m in range(EDGES)}
        for h, (n, m) in enumerate(zip(made.devices.tolist(), made.edges.tolist(), strict=True)):
            self.limit(DEVICE_NAMES[n], None, made.cores[h])
            self.limit(DEVICE_NAMES[n], EDGE_NAMES[m], made.rate_bps[h])
            weights[m][n] = float(samples[h])
        weights = {m: of_devices for m, of_devices in weights.items() if of_devices}
        busy_s, begin_s = machine.busy_s(), time.monotonic()
        for h, n in enumerate(made.devices.tolist()):
            task = node.DeviceTask(
                int(made.edges[h]), EDGE_ITERATIONS, setting.local_iterations, setting.batch_size, number
            )
            self.controls[DEVICE_NAMES[n]].send(task)
        for m, of_devices in weights.items():
            self.controls[EDGE_NAMES[m]].send(node.NodeTask(of_devices, EDGE_ITERATIONS))
        self.controls[CLOUD].send(node.NodeTask({m: sum(of.values()) for m, of in weights.items()}, 1))
        whole = self.reply(CLOUD)
        busy_cores = (machine.busy_s() - busy_s) / (time.monotonic() - begin_s)
        common = {
            "round": number, "config": setting.name, "kind": setting.kind, "turn": played.turn,
            "local_iterations": setting.local_iterations, "round_s": whole["round_s"], "accuracy": whole["accuracy"],
            "load": os.getloadavg()[0], "busy_cores": busy_cores,
        }  # fmt: skip
        rows = []
        for h, (n, m) in enumerate(zip(made.devices.tolist(), made.edges.tolist(), strict=True)):
            epochs, steps = setting.local_iterations, -(-int(samples[h]) // setting.batch_size)
            settings = {
                "device": DEVICE_NAMES[n], "edge": EDGE_NAMES[m], "samples": int(epochs * samples[h]),
                "steps": epochs * steps, "batch": setting.batch_size, "cores": made.cores[h],
                "mbps": made.rate_bps[h] / 1e6,
            }  # fmt: skip
            rows += [
                common | settings | {"iteration": i + 1} | row for i, row in enumerate(self.reply(settings["device"]))
            ]
        for m, of_devices in weights.items():
            settings = {"device": EDGE_NAMES[m], "edge": CLOUD, "samples": 0, "steps": EDGE_ITERATIONS,
                        "batch": len(of_devices), "mbps": cloud_rate_bps()[m] / 1e6}  # fmt: skip
            rows += [common | settings | row for row in self.reply(EDGE_NAMES[m])]
        return [row | {"begin_s": row["begin_s"] - whole["begin_s"]} for row in rows]

    def stop(self) -> None:
        """End all processes, and remove what was made."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join()
        machine.down()


def play(rounds: dict[Setting, int]) -> pd.DataFrame:
    """Play rounds of configurations and return the log. Raises ConfigError: the machine cannot carry a testbed."""
    machine.check()
    with machine.only_one():
        machine.down()
        testbed, rows = Testbed(), list[dict[str, Any]]()
        begin_s = time.monotonic()
        try:
            testbed.start()
            rows += testbed.probe()
            plays, first_s = order(rounds), time.monotonic()
            for number, played in enumerate(plays, 1):
                rows += testbed.play(number, played)
                left_s = (time.monotonic() - first_s) / number * (len(plays) - number)
                last = rows[-1]
                print(
                    f"round {number} of {len(plays)}, configuration {last['config']}: {last['round_s']:.2f} s, "
                    f"accuracy {last['accuracy']:.3f}, load {last['load']:.1f}; about {left_s / 60:.1f} min left",
                    file=sys.stderr, flush=True,
                )  # fmt: skip
        finally:
            testbed.stop()
        print(f"{len(plays)} rounds in {(time.monotonic() - begin_s) / 60:.1f} min", file=sys.stderr)
    log = pd.DataFrame(rows).assign(cpu=machine.cpu_name(), at=time.strftime("%d %B %Y, %H:%M"))
    return log.reindex(columns=list(COLUMNS))
