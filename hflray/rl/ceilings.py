"""The most that imitation can return: a teacher that draws at random does not agree with itself.

HFEL labels a fleet differently each time it runs. Whoever knows how often each device gets each edge does best to name
the commonest, and returns ``Σ_n (2 p_n - 1)`` of the rewards (26), with p_n the share of runs that give device n its
commonest edge. The design's decision 5.8 has 17.6 of 50 for HFEL-300 from the geographic start and 27.3 from the
best-gain start. The same runs both name the edge and count it there, which favours it a little; *the others* is without
that: the edge is the commonest of all runs but the one that it is compared with.

    python -m hflray.rl.ceilings [--fleets 20] [--runs 60] [--set fleet.deployment_seed=0]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import sched_getaffinity

import numpy as np
from numpy.typing import NDArray

from hflray.assignment import build_assigner
from hflray.config import load_config
from hflray.errors import HflrayError
from hflray.rl.fleets import FleetSpec
from hflray.seeding import stream

STARTS = ("geographic", "best_gain")


def labels_of(spec: FleetSpec, index: int, runs: int) -> NDArray[np.intp]:
    """The teacher's labels of fleet `index` in so many runs, (runs, H), int."""
    fleet, work = spec.draw(index)
    teacher, devices = build_assigner(spec.teacher, **spec.options), np.arange(fleet.num_devices)
    return np.stack(
        [
            np.asarray(teacher.assign(fleet, work, devices, stream(spec.seed, "assigner/ceiling", index, run)))
            for run in range(runs)
        ]
    )


def ceiling(labels: NDArray[np.intp]) -> tuple[float, float]:
    """What naming the commonest label of each device returns, of the labels (runs, H) of one fleet.

    Returns:
        With the runs that named it counted, and by those that did not: mean of ±1 rewards, summed over the devices.
    """
    runs, devices = labels.shape
    counts = np.zeros((devices, int(labels.max()) + 1))
    np.add.at(counts, (np.arange(devices), labels), 1)
    commonest = counts.max(axis=1).sum() / runs
    agree = 0.0
    for row in labels:
        others = counts.copy()
        others[np.arange(devices), row] -= 1
        agree += float((others.argmax(axis=1) == row).sum())
    return 2.0 * commonest - devices, 2.0 * agree / runs - devices


def ceilings(spec: FleetSpec, fleets: int, runs: int) -> Iterator[tuple[float, float]]:
    """`ceiling` of each of the first so many fleets of `spec`, solved on all CPUs."""
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
        for labels in threads.map(lambda index: labels_of(spec, index, runs), range(fleets)):
            yield ceiling(labels)


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.rl.ceilings``."""
    parser = argparse.ArgumentParser(prog="python -m hflray.rl.ceilings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fleets", type=int, default=20, help="random fleets (default 20)")
    parser.add_argument("--runs", type=int, default=60, help="runs of the teacher on each (default 60)")
    parser.add_argument("--config", help="configuration or sweep file; its fleets and teacher are taken")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    given = parser.parse_args(arguments)
    if given.fleets < 1 or given.runs < 2:
        print(f"error: --fleets {given.fleets}, --runs {given.runs}: at least 1 and 2 are needed", file=sys.stderr)
        return 2
    try:
        spec = FleetSpec.of(load_config(given.config, given.set))
        for start in STARTS:
            found = []
            for number, pair in enumerate(ceilings(replace(spec, options={**spec.options, "start": start}),
                                                   given.fleets, given.runs), start=1):  # fmt: skip
                found.append(pair)
                if sys.stderr.isatty() or number % max(1, given.fleets // 5) == 0:
                    print(f"{start}: {number} of {given.fleets} fleets", file=sys.stderr, flush=True)
            means = np.mean(found, axis=0)
            error = np.std(found, axis=0) / np.sqrt(given.fleets)
            print(
                f"{spec.teacher} from the {start} start, H = {spec.num_scheduled[1]}: naming the commonest label of "
                f"{given.runs} runs returns {means[0]:.1f} ± {error[0]:.1f}; "
                f"of the others {means[1]:.1f} ± {error[1]:.1f}"
            )
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
