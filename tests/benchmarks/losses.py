"""What collecting the devices' losses adds to a round, for every kernel, in CPU time.

    python tests/benchmarks/losses.py [--kernels fused,native,channels_last] [--turns 5]

A device trains Q = 5 edge iterations of L = 5 local iterations in a round, and its losses take one forward pass of its
samples. Each turn measures one edge iteration and one forward pass of the same devices directly after each other, with
the CPU time of this process, so that other programs disturb both alike. Images have the shape of Fashion-MNIST.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.aggregation.fixed_point import fraction_bits
from hflray.models import build, init_vector
from hflray.models.problem import Problem
from hflray.training.exchange import Version
from hflray.training.job import DeviceData, LocalJob
from hflray.training.local import DeviceHost
from tests.benchmarks._report import Table, arguments, publish
from tests.training.rounds import task_of

KERNELS = ("fused", "channels_last", "eager", "batched")
SHAPE, CLASSES, EDGE_ITERATIONS = (1, 28, 28), 10, 5
PROBLEM = Problem(SHAPE, CLASSES)


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


def cpu_s(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call in this process."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def table(kernels: list[str], turns: int, devices: int, samples: int) -> Table:
    """Measure kernels in turn."""
    columns = [("row", "kernel", ""), ("train", "an edge iteration, s", ".3f"), ("losses", "losses, s", ".4f"),
               ("share", "losses in a round", ".2%")]  # fmt: skip
    title = f"losses of {devices} devices of {samples} samples; L = 5, Q = {EDGE_ITERATIONS}, one thread, CPU time"
    result = Table(title, columns, [], key="losses/kernels")
    data, group = noise(devices, samples), tuple(range(devices))
    task = task_of(1, 0, fraction_bits(devices * samples), (group,))
    model = init_vector(build(PROBLEM), np.random.default_rng(1))
    hosts = {name: DeviceHost(LocalJob(PROBLEM, seed=0, kernel=name), data) for name in kernels}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in kernels}
    for turn in range(turns + 1):  # the first one warms up
        for name, host in hosts.items():
            pair = (
                cpu_s(lambda host=host: host.train(task, None, Version(model))),
                cpu_s(lambda host=host: host.losses([group], Version(model))),
            )
            if turn:
                seconds[name].append(pair)
    for name, pairs in seconds.items():
        train, losses = (statistics.median(column) for column in zip(*pairs, strict=True))
        share = statistics.median(loss / (EDGE_ITERATIONS * trained) for trained, loss in pairs)
        result.rows.append({"row": name, "train": train, "losses": losses, "share": share})
        result.ratios[f"{name}, a round's training over its losses"] = 1 / share
    return result


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--turns", type=int, help="default 5; quick 2")
    options = parser.parse_args()
    size = (2, 200) if options.quick else (4, 600)

    def tables() -> Iterator[Table]:
        yield table(options.kernels.split(","), options.turns or (2 if options.quick else 5), *size)

    publish(tables(), options.json)


if __name__ == "__main__":
    main()
