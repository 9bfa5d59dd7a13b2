"""What the parts inside a round cost beside plain SGD and the mean, in CPU time.

    python tests/benchmarks/inside.py [--kernels fused,channels_last] [--turns 7] [--steps cnn_20_50,lenet]

rules        samples/s of each local rule over those of plain SGD: devices of 300 images of Fashion-MNIST's shape, L = 5
aggregators  a round at L = 5 with a median at each edge over one with the mean: H = 50 devices of 100
             images, M = 5, Q = 1; the paper has 400 to 700 images a device, which makes the share of the median smaller

Each turn trains one edge iteration, or one round, with each part directly after the other, in one process with one
thread. A rule's first five steps are compared with those of plain SGD: where its correction is still 0, models agree.
With ``--steps`` it measures instead what the steps of each kernel cost for these networks, on images of 28×28; in bf16,
`fused` is `fused_bf16`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.cost import Schedule
from hflray.models import build, init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.training.hierarchy import SerialHierarchy
from hflray.training.job import LocalJob
from hflray.training.method import Method, Spec
from hflray.training.state import RoundTask, TrainingState
from tests.benchmarks._kernels import sample_kernel
from tests.benchmarks._report import Table, arguments, publish
from tests.benchmarks.losses import PROBLEM, noise

# FedProx pulls from the first step on, but by a hundredth of what the weights have moved.
RULES = {"sgd": 0.0, "fedprox": 5e-2, "scaffold": 1e-5, "mtgc": 1e-5}
COMPARED = 64  # samples of a device, one batch, in the comparison of the rules
KERNELS = ("fused", "channels_last")
AGGREGATORS = ("mean", "median")
STEPPERS = ("eager", "channels_last", "fused")
BATCHES = (20, 100)  # of HierFAVG and of Async-HFL
SAMPLES_OF_A_TURN = 600


class Turns:
    """Rounds of several methods on the same data, each with its own state."""

    def __init__(self, methods: dict[str, Method], kernel: str, devices: int, samples: int, edges: int) -> None:
        data = noise(devices, samples)
        model = init_vector(build(PROBLEM), np.random.default_rng(1))
        self.schedule = Schedule(np.arange(devices), np.arange(devices) % edges)
        self.participates = np.ones((1, devices), dtype=np.bool_)
        self.rounds: dict[str, SerialHierarchy] = {}
        self.states: dict[str, TrainingState] = {}
        for name, method in methods.items():
            job = LocalJob(PROBLEM, seed=0, kernel=kernel, method=method)
            self.rounds[name] = SerialHierarchy(job, data, edges)
            self.states[name] = self.rounds[name].setting.start(model)
        self.turn = 0

    def take(self) -> dict[str, float]:
        """Train the next round of each method; return the CPU seconds of each."""
        self.turn += 1
        seconds = {}
        for name, rounds in self.rounds.items():
            task = RoundTask(self.turn, self.schedule, self.participates)
            begin = time.process_time()
            self.states[name] = rounds.train_round(task, self.states[name]).state
            seconds[name] = time.process_time() - begin
        return seconds

    def apart(self, name: str, other: str) -> float:
        """Return the L2 distance of two models, relative to how far the second has moved from the first state."""
        start = init_vector(build(PROBLEM), np.random.default_rng(1))
        one, two = self.states[name].model, self.states[other].model
        return float(np.linalg.norm(one - two) / np.linalg.norm(two - start))


def rules(kernel: str, turns: int, devices: int, samples: int) -> Table:
    """Measure the rules in turn."""
    columns = [("row", "rule", ""), ("rate", "samples per CPU-second", ",.0f"), ("ratio", "of plain SGD", ".3f")]
    table = Table(f"local rules, {kernel}: {devices} devices of {samples} samples, L = 5", columns, [],
                  key=f"inside/rules, {kernel}")  # fmt: skip
    methods = {name: Method(rule=Spec("local_rule", name)) for name in RULES}
    # Few steps are compared. After a dozen, a rounding error may let one unit of noise pass a ReLU, or not, which no
    # kernel can avoid: a step of PyTorch from either vector then differs as much.
    compared = Turns(methods, kernel, devices, COMPARED, 1)
    compared.take()
    for name, most in RULES.items():
        assert compared.apart(name, "sgd") <= most, (name, compared.apart(name, "sgd"))
    measured = Turns(methods, kernel, devices, samples, 1)
    measured.take()  # warms up
    seconds = [measured.take() for _ in range(turns)]
    for name in RULES:
        rate = 5 * devices * samples / statistics.median(each[name] for each in seconds)
        ratio = statistics.median(each["sgd"] / each[name] for each in seconds)
        table.rows.append({"row": name, "rate": rate, "ratio": ratio})
        if name != "sgd":
            table.ratios[f"{name} / sgd, {kernel}"] = ratio
    return table


def aggregators(kernel: str, turns: int, devices: int, samples: int) -> Table:
    """Measure the aggregators in turn."""
    columns = [("row", "aggregator of the edges", ""), ("seconds", "a round, CPU-s", ".2f"),
               ("ratio", "of the mean", ".3f")]  # fmt: skip
    table = Table(f"aggregators, {kernel}: H = {devices} devices of {samples} samples, M = 5, L = 5, Q = 1", columns,
                  [], key="inside/aggregators")  # fmt: skip
    methods = {name: Method(edge=Spec("aggregator", name)) for name in AGGREGATORS}
    measured = Turns(methods, kernel, devices, samples, 5)
    measured.take()  # warms up
    # Models differ only by how an edge combines them.
    assert measured.apart("median", "mean") < 1, measured.apart("median", "mean")
    seconds = [measured.take() for _ in range(turns)]
    for name in AGGREGATORS:
        ratio = statistics.median(each[name] / each["mean"] for each in seconds)
        median_s = statistics.median(each[name] for each in seconds)
        table.rows.append({"row": name, "seconds": median_s, "ratio": ratio})
    table.ratios["mean / median"] = 1 / table.rows[1]["ratio"]
    return table


def steps(networks: list[str], turns: int) -> Table:
    """Measure plain steps of each kernel in turn."""
    columns = [("row", "network, batch, precision", ""), *((name, name, ",.0f") for name in STEPPERS),
               ("ratio", "fused / the faster other", ".2f")]  # fmt: skip
    table = Table("samples per CPU-second of plain steps, one thread", columns, [], key="inside/steps")
    for network, batch, precision in product(networks, BATCHES, ("float32", "bf16")):
        problem = Problem((1, 28, 28), 10, model=ModelSpec(network))
        fused = "fused_bf16" if precision == "bf16" else "fused"
        names = {name: fused if name == "fused" else name for name in STEPPERS}
        kernels = {name: sample_kernel(names[name], problem, batch, precision) for name in STEPPERS}
        rates: list[dict[str, float]] = []
        for _ in range(turns):
            rates.append({})
            for name, kernel in kernels.items():
                begin = time.process_time()
                for _ in range(SAMPLES_OF_A_TURN // batch):
                    kernel.step(np.arange(batch))
                rates[-1][name] = SAMPLES_OF_A_TURN / (time.process_time() - begin)
        ratio = statistics.median(each["fused"] / max(each["eager"], each["channels_last"]) for each in rates)
        row: dict[str, object] = {"row": f"{network}, {batch}, {precision}", "ratio": ratio}
        table.rows.append(row | {name: statistics.median(each[name] for each in rates) for name in STEPPERS})
    return table


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--turns", type=int, help="default 7; quick 2")
    parser.add_argument("--steps", metavar="NETWORKS", help="measure the steps of each kernel for these networks")
    options = parser.parse_args()
    turns = options.turns or (2 if options.quick else 7)
    kernels = options.kernels.split(",")
    torch.set_num_threads(1)

    def tables() -> Iterator[Table]:
        if options.steps:
            yield steps(options.steps.split(","), turns)
            return
        for kernel in kernels:
            yield rules(kernel, turns, *((2, 100) if options.quick else (4, 300)))
        yield aggregators(kernels[0], max(2, turns // 2), 50, 20 if options.quick else 100)

    publish(tables(), options.json)


if __name__ == "__main__":
    main()
