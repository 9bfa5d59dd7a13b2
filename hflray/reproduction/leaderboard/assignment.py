"""The leaderboard of assigners: their costs, proven gaps and times on the fleets of Figure 6.

The instances are the first fleets of ``tune_configs/fig6_assignment.yaml``: H = 50 of N = 100 devices, M = 5 edges,
λ = 1, on five deployments of the edges. Each assigner gets every fleet, directly after the others, so that times can
be compared. A time is given as a multiple of best gain's, because machines differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hflray.assignment import configured_assigner
from hflray.config import ExperimentConfig, load_config
from hflray.experiment.study import Instance
from hflray.report.labels import hfel, label_apart, pretty
from hflray.support.arrays import FloatArray

SETTINGS = ("fleet.num_devices=100", "fleet.num_edges=5", "scheduling.num_scheduled=50", "cost.delay_weight=1",
            "cost.model_kb=448")  # fmt: skip
DEPLOYMENTS = range(5)
JOINT = "allocation.coupling=joint"
BEST_GAIN, HFEL, SEARCH, D3QN = pretty("best_gain"), hfel(300), pretty("local_search"), pretty("d3qn")
EXCHANGES = ("assignment.name=hfel", "assignment.exchanges=300")
POLISHED = ("assignment.name=d3qn", "assignment.polish_ms=optimum")
SHIPPED: dict[str, tuple[str, ...]] = {
    **{
        pretty(name): (f"assignment.name={name}",) for name in ("best_gain", "geographic", "even_gain", "load_balanced")
    },
    HFEL: EXCHANGES,
    f"{HFEL}, {BEST_GAIN} start": (*EXCHANGES, "assignment.start=best_gain"),
    SEARCH: ("assignment.name=local_search",),
    f"{SEARCH}, one deadline": ("assignment.name=local_search", JOINT),
    D3QN: ("assignment.name=d3qn",),
    f"{D3QN}, polished": POLISHED,
    f"{D3QN}, polished, one deadline": (*POLISHED, JOINT),
}


@dataclass(frozen=True)
class Place:
    """What an assigner reached.

    Attributes:
        name: the assigner.
        objective_j: mean objective E + λT over the fleets, J.
        ratio: geometric mean over the fleets of its objective divided by best gain's.
        gap, worst_gap: median and largest share by which it is above a proven lower bound.
        time_ratio: median time divided by best gain's median time.
        own: whether it is the user's own.
    """

    name: str
    objective_j: float
    ratio: float
    gap: float
    worst_gap: float
    time_ratio: float
    own: bool


def contestants(references: Sequence[str]) -> dict[str, ExperimentConfig]:
    """Return the configuration of each shipped assigner, and of those that are named, on deployment 0.

    Raises:
        ConfigError: a name is unknown, or a reference leads nowhere.
    """
    own = {label: (f"assignment.name={name}",) for name, label in label_apart(references, list(SHIPPED)).items()}
    return {name: load_config(None, [*SETTINGS, *more]) for name, more in (SHIPPED | own).items()}


def compete(
    references: Sequence[str] = (), fleets: int = 20, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Place]:
    """Return the places of all assigners, the least cost first.

    Args:
        references: assigners of the user's own, such as ``mine.py:Mine``, or registered names.
        fleets: number of fleets of each of five deployments.
        progress: is called with the fleets that are done, and their number.

    Raises:
        ConfigError: see `contestants`.
        InfeasibleError: an edge's allocation failed.
    """
    configs = contestants(references)
    objective_j: dict[str, list[float]] = {name: [] for name in configs}
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    bounds_j: list[float] = []
    total = fleets * len(DEPLOYMENTS)
    for instance, placed in _instances(configs, fleets):
        for name, config in placed.items():
            assignment, spent_s = instance.assigned(configured_assigner(config), config.seed)
            if instance.index:  # fleet 0 warms up
                seconds[name].append(spent_s)
                objective_j[name].append(instance.bill(assignment, config.allocation).objective)
        if instance.index:
            bounds_j.append(instance.bound())
            progress(len(bounds_j), total)
    best, best_s = np.array(objective_j[BEST_GAIN]), float(np.median(seconds[BEST_GAIN]))
    own = set(label_apart(references, list(SHIPPED)).values())
    places = [
        _place(name, np.array(values), best, np.array(bounds_j), float(np.median(seconds[name])) / best_s, name in own)
        for name, values in objective_j.items()
    ]
    return sorted(places, key=lambda place: place.ratio)


def _instances(
    configs: dict[str, ExperimentConfig], fleets: int
) -> Iterator[tuple[Instance, dict[str, ExperimentConfig]]]:
    """Yield each fleet, and the configuration of each contestant on its deployment."""
    for deployment in DEPLOYMENTS:
        placed = {
            name: config.model_copy(update={"fleet": config.fleet.model_copy(update={"deployment_seed": deployment})})
            for name, config in configs.items()
        }
        for index in range(fleets + 1):
            yield Instance.of(placed[BEST_GAIN], index), placed


def _place(name: str, values: FloatArray, best: FloatArray, bounds: FloatArray, time_ratio: float, own: bool) -> Place:
    gaps = 1.0 - bounds / values
    ratio = float(np.exp(np.log(values / best).mean()))
    return Place(name, float(values.mean()), ratio, float(np.median(gaps)), float(gaps.max()), time_ratio, own)
