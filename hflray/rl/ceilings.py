"""The largest return that imitation of a random teacher can reach.

HFEL labels a fleet differently each time it runs. A policy that knew how often each device gets each edge would do best
to choose the commonest edge. Its return, by the rewards (26), would be ``Σ_n (2 p_n - 1)``, where p_n is the share of
runs that give device n its commonest edge. docs/design.md, D8, has 17.7 ± 0.5 of 50 for HFEL-300 from the geographic
start and 27.8 ± 0.5 from the best-gain start.

That estimate is slightly too high, because the same runs both determine the commonest edge and are compared with it.
The *leave-one-out* estimate avoids this: each run is compared with the commonest edge of all other runs.

    python -m hflray.rl.ceilings [--fleets 20] [--runs 60] [--set fleet.deployment_seed=0]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from os import sched_getaffinity

import numpy as np
from numpy.typing import NDArray

from hflray.assignment import build_assigner
from hflray.rl.cli import ceilings_app
from hflray.rl.fleets import FleetSpec
from hflray.seeding import stream
from hflray.terminal.app import exit_code

STARTS = ("geographic", "best_gain")


def labels_of(spec: FleetSpec, index: int, runs: int) -> NDArray[np.intp]:
    """Return the labels that each of `runs` runs of the teacher gives to fleet `index`, (runs, H), int."""
    fleet, work = spec.draw(index)
    teacher, devices = build_assigner(spec.teacher, **spec.options), np.arange(fleet.num_devices)
    return np.stack(
        [
            np.asarray(teacher.assign(fleet, work, devices, stream(spec.seed, "assigner/ceiling", index, run)))
            for run in range(runs)
        ]
    )


def ceiling(labels: NDArray[np.intp]) -> tuple[float, float]:
    """Compute the return of choosing each device's commonest label, from the labels (runs, H) of one fleet.

    Returns:
        The mean over runs of the ±1 rewards, summed over the devices: first with all runs determining the commonest
        label, then with the compared run left out.
    """
    runs, devices = labels.shape
    counts = np.zeros((devices, int(labels.max()) + 1))
    np.add.at(counts, (np.arange(devices), labels), 1)
    commonest = counts.max(axis=1).sum() / runs
    agreements = 0.0
    for row in labels:
        other_counts = counts.copy()
        other_counts[np.arange(devices), row] -= 1
        agreements += float((other_counts.argmax(axis=1) == row).sum())
    return 2.0 * commonest - devices, 2.0 * agreements / runs - devices


def ceilings(spec: FleetSpec, fleets: int, runs: int) -> Iterator[tuple[float, float]]:
    """Yield `ceiling` of each of the first `fleets` fleets of `spec`, solved on all CPUs."""
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
        for labels in threads.map(lambda index: labels_of(spec, index, runs), range(fleets)):
            yield ceiling(labels)


def estimate(spec: FleetSpec, start: str, fleets: int, runs: int, report: Callable[[str, int], None]) -> str:
    """Return one line with the mean ceiling over `fleets` fleets for a start of the teacher.

    Args:
        spec: the specification of the fleets and the teacher.
        start: the assignment from which the teacher starts.
        fleets: the number of fleets.
        runs: the teacher's runs on each fleet.
        report: called after each fleet with `start` and the number of fleets so far.
    """
    pairs = []
    started = replace(spec, options={**spec.options, "start": start})
    for number, pair in enumerate(ceilings(started, fleets, runs), start=1):
        pairs.append(pair)
        report(start, number)
    means = np.mean(pairs, axis=0)
    error = np.std(pairs, axis=0) / np.sqrt(fleets)
    return (
        f"{spec.teacher} from the {start} start, H = {spec.num_scheduled[1]}: choosing the commonest label of "
        f"{runs} runs returns {means[0]:.1f} ± {error[0]:.1f}; leave-one-out {means[1]:.1f} ± {error[1]:.1f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m hflray.rl.ceilings`` and return its exit code."""
    return exit_code(ceilings_app, arguments, "python -m hflray.rl.ceilings")


if __name__ == "__main__":
    sys.exit(main())
