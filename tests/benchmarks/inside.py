"""What the parts inside a round cost beside plain SGD and the mean, in CPU time.

rules        samples/s of each local rule over those of plain SGD: devices of 300 images of Fashion-MNIST's shape, L = 5
aggregators  a round at L = 5 with a median at each edge over one with the mean: H = 50 devices of 100
             images, M = 5, Q = 1; the paper has 400 to 700 images a device, which makes the share of the median smaller

Each turn trains one edge iteration, or one round, with each part directly after the other, in one process with one
thread. A rule's first five steps are compared with those of plain SGD: where its correction is still 0, models agree.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch

from hflray.cost import Schedule
from hflray.models import build
from hflray.models.paper import init_vector
from hflray.models.problem import Problem
from hflray.training.hierarchy import SerialHierarchy
from hflray.training.job import DeviceData, LocalJob
from hflray.training.method import Method, Spec
from hflray.training.state import RoundTask, TrainingState
from tests.benchmarks._report import Table

SHAPE, CLASSES = (1, 28, 28), 10
PROBLEM = Problem(SHAPE, CLASSES)
# FedProx pulls from the first step on, but by a hundredth of what the weights have moved.
RULES = {"sgd": 0.0, "fedprox": 5e-2, "scaffold": 1e-5, "mtgc": 1e-5}
COMPARED = 64  # samples of a device, one batch, in the comparison of the rules
KERNELS = ("fused", "channels_last")
AGGREGATORS = ("mean", "median")


def noise(devices: int, samples: int) -> DeviceData:
    """Return random images and labels."""
    rng, count = np.random.default_rng(0), devices * samples
    return DeviceData(
        x=rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8),
        y=rng.integers(0, CLASSES, count),
        index=np.arange(count),
        offsets=np.arange(0, count + 1, samples),
        x_test=np.empty((0, *SHAPE), dtype=np.uint8),
        y_test=np.empty(0, dtype=np.int64),
        channel_mean=np.array([0.3], dtype=np.float32),
        channel_std=np.array([0.3], dtype=np.float32),
    )


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
            setting = self.rounds[name].setting
            self.states[name] = TrainingState.first(method, model, sum(setting.sizes), edges)
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
    title = f"local rules, {kernel}: {devices} devices of {samples} samples, L = 5"
    table = Table(f"inside/rules, {kernel}", title, columns)
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
        rate = 5 * devices * samples / statistics.median(turn[name] for turn in seconds)
        ratio = statistics.median(turn["sgd"] / turn[name] for turn in seconds)
        table.add(name, rate=rate, ratio=ratio)
        if name != "sgd":
            table.ratios[f"{name} / sgd, {kernel}"] = ratio
    return table


def aggregators(kernel: str, turns: int, devices: int, samples: int) -> Table:
    """Measure the aggregators in turn."""
    columns = [("row", "aggregator of the edges", ""), ("seconds", "a round, CPU-s", ".2f"),
               ("ratio", "of the mean", ".3f")]  # fmt: skip
    title = f"aggregators, {kernel}: H = {devices} devices of {samples} samples, M = 5, L = 5, Q = 1"
    table = Table("inside/aggregators", title, columns)
    methods = {name: Method(edge=Spec("aggregator", name)) for name in AGGREGATORS}
    measured = Turns(methods, kernel, devices, samples, 5)
    measured.take()  # warms up
    # Models differ only by how an edge combines them.
    assert measured.apart("median", "mean") < 1, measured.apart("median", "mean")
    seconds = [measured.take() for _ in range(turns)]
    for name in AGGREGATORS:
        ratio = statistics.median(turn[name] / turn["mean"] for turn in seconds)
        median_s = statistics.median(turn[name] for turn in seconds)
        table.add(name, seconds=median_s, ratio=ratio)
    table.ratios["mean / median"] = 1 / table.rows[1]["ratio"]
    return table


def tables(turns: int = 7, devices: int = 4, samples: int = 300) -> Iterator[Table]:
    """Measure the rules with each kernel, and the aggregators with the first one."""
    torch.set_num_threads(1)
    for kernel in KERNELS:
        yield rules(kernel, turns, devices, samples)
    yield aggregators(KERNELS[0], max(2, turns // 2), 50, samples // 3)
