"""How much of a device's delay is its own: the share of the variance of ln delay that lies between devices.

    python -m tests.scheduling.delay_shares

A scheduler that learns from observed delays can learn this share only. Random schedules of the benchmark's fleets
(N = 60, H = 12, M = 5, digits, 150 rounds) are assigned and allocated, and nothing is trained. The share is that of a
random-effects analysis of variance. Beside it is the mean standard deviation of ln delay within an edge and a round.
"""

from __future__ import annotations

import numpy as np

from hflray.allocation import Method, allocate_round
from hflray.assignment import configured_assigner
from hflray.config import load_config
from hflray.cost import Workload, round_cost
from hflray.experiment.scenario import Scenario
from hflray.models import initial_vector
from hflray.models.problem import Problem
from hflray.models.vector import BITS_PER_PARAMETER
from hflray.support.arrays import FloatArray, IntArray

ROUNDS, SEEDS = 150, range(4)


def share_between(groups: IntArray, values: FloatArray) -> float:
    """Return the part of the variance of values (n,) that lies between their groups (n,), from 0 to 1."""
    times = np.bincount(groups)
    groups, times = np.unique(groups, return_inverse=True)[1], times[times > 0]
    means = np.bincount(groups, values) / times
    within = ((values - means[groups]) ** 2).sum() / (len(values) - len(times))
    each = (len(values) - (times**2).sum() / len(values)) / (len(times) - 1)
    between = ((times * (means - values.mean()) ** 2).sum() / (len(times) - 1) - within) / each
    return float(max(0.0, between) / (max(0.0, between) + within))


def measured(assigner: str, method: Method, seed: int) -> tuple[float, float]:
    """Return the share between devices, and the mean deviation within an edge, of one fleet."""
    config = load_config(
        None,
        [
            *("data.name=digits", "fleet.num_devices=60", "fleet.num_edges=5", "scheduling.num_scheduled=12"),
            *("training.local_iterations=2", "training.edge_iterations=2"),
            *(f"assignment.name={assigner}", f"seed={seed}"),
        ],
    )
    scenario, rng = Scenario.build(config), np.random.default_rng(seed)
    fleet, assign = scenario.fleet, configured_assigner(config).assign
    parameters = len(initial_vector(Problem.of(scenario.dataset, config), seed))
    work = Workload.of(config, BITS_PER_PARAMETER * parameters)
    who, logs, within = list[IntArray](), list[FloatArray](), list[float]()
    for _ in range(ROUNDS):
        devices = np.sort(rng.choice(60, 12, replace=False))
        edges = assign(fleet, work, devices, rng)
        allocation = allocate_round(fleet, work, devices, edges, method=method)
        who.append(devices)
        logs.append(np.log(round_cost(fleet, work, devices, edges, allocation).iteration_delay_s))
        within += [float(logs[-1][edges == edge].std()) for edge in np.unique(edges)]
    return share_between(np.concatenate(who), np.concatenate(logs)), float(np.mean(within))


def main() -> None:
    """Print the shares by allocation and assigner, a number for each seed."""
    methods: tuple[Method, ...] = ("newton", "equal")
    for method in methods:
        for assigner in ("geographic", "local_search"):
            shares, within = zip(*(measured(assigner, method, seed) for seed in SEEDS), strict=True)
            print(f"{method} {assigner}: {', '.join(f'{share:.2f}' for share in shares)}", end="")
            print(f"; within an edge {np.mean(within):.1g}")


if __name__ == "__main__":
    main()
