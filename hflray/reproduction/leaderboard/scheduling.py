"""The leaderboard of schedulers: rounds, simulated seconds and joules to a target accuracy over ten seeds.

The instances are those of ``tune_configs/benchmark_scheduling.yaml`` on digits with 80 % of a device's samples in its
majority class and local search: H = 12 of N = 60 devices, M = 3 edges, to 80 % within 30 rounds. What the shipped
schedulers need was measured once: ``scheduling.json`` has it, and ``python -m hflray.reproduction.leaderboard``
writes it from the exports. Only the user's own schedulers train, a run for each seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hflray import metrics
from hflray.config import ExperimentConfig, load_config
from hflray.experiment import Experiment
from hflray.report.ranking import QUANTITIES, has_reached, spent
from hflray.report.runs import Sweep
from hflray.support.pairs import LEVEL, Pairs, family_p

FILE = Path(__file__).with_name("scheduling.json")
REFERENCE = "ikc"
SEEDS = tuple(range(10))
SETTINGS = (
    "data.name=digits", "data.majority_fraction=0.8", "target_accuracy=0.8", "max_rounds=30", "fleet.num_devices=60",
    "fleet.num_edges=3", "scheduling.num_scheduled=12", "assignment.name=local_search", "training.local_iterations=2",
    "training.edge_iterations=2", "training.batch_size=16", "training.backend=serial",
)  # fmt: skip
SPENT = ("rounds", "seconds", "joules")
Values = dict[str, list[float]]  # by quantity, a value for each seed; and "reached", 1 or 0


@dataclass(frozen=True)
class Place:
    """What a scheduler needed.

    Attributes:
        name: the scheduler.
        reached: in how many runs it reached the target.
        runs: the number of its runs, one for each seed.
        medians: by quantity, the median over the seeds; inf where at least half of the runs missed the target.
        ratios: by quantity, the median ratio to IKC on the same seed as bounds, which are equal if nothing is censored.
        tests: by quantity, what the signed-rank test against IKC says, in words.
        own: whether it is the user's own.
    """

    name: str
    reached: int
    runs: int
    medians: dict[str, float]
    ratios: dict[str, tuple[float, float]]
    tests: dict[str, str]
    own: bool


def shipped() -> dict[str, Values]:
    """Return what each shipped scheduler needed, by its name."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: _finite(values) for name, values in content["schedulers"].items()}


def config_of(name: str, seed: int) -> ExperimentConfig:
    """Return the configuration of a run. Raises ConfigError: the scheduler is unknown, or cannot be loaded."""
    return load_config(None, [*SETTINGS, f"scheduling.name={name}", f"seed={seed}"])


def run(name: str, seeds: Sequence[int] = SEEDS, progress: Callable[[int], None] = lambda seed: None) -> Values:
    """Return what a scheduler needs to the target, a run for each seed.

    Args:
        name: a registered name, or a reference such as ``mine.py:Mine``.
        seeds: the seeds.
        progress: is called with a seed when its run has ended.

    Raises:
        ConfigError: see `config_of`.
    """
    values: Values = {quantity: [] for quantity in (*SPENT, "reached")}
    for config in [config_of(name, seed) for seed in seeds]:
        last: dict[str, float] = {}
        with Experiment(config, cpus=1) as experiment:
            for record in experiment:
                last = record.metrics()
            ends = experiment.summary()
        reached = metrics.ROUNDS_TO_TARGET in ends
        values["reached"].append(float(reached))
        for quantity in SPENT:
            to_target, total = QUANTITIES[quantity]
            missed = np.inf if quantity == "rounds" else last[total]
            values[quantity].append(float(ends[to_target]) if reached else float(missed))
        progress(config.seed)
    return values


def compete(own: Mapping[str, Values], by: str = "seconds") -> list[Place]:
    """Return the places of the shipped schedulers and of the user's own, the least first.

    A run that missed the target is censored in seconds and joules, and has the worst rank in rounds. The tests are
    exact signed-rank tests over the seeds against IKC, by Holm's method over all others.

    Args:
        own: what each of the user's own schedulers needed.
        by: the quantity whose median ratio to IKC orders the places; where it is censored, its upper bound.
    """
    everyone = shipped() | dict(own)
    reference = everyone[REFERENCE]
    pairs = {name: {q: _pairs(values, reference, q) for q in SPENT} for name, values in everyone.items()}
    tests = {quantity: _tests({n: p[quantity] for n, p in pairs.items() if n != REFERENCE}) for quantity in SPENT}
    places = [
        Place(
            name, int(sum(values["reached"])), len(values["reached"]),
            {q: float(np.median(np.where(values["reached"], values[q], np.inf))) for q in SPENT},
            {q: pairs[name][q].median for q in SPENT},
            {q: tests[q].get(name, "") for q in SPENT}, name in own,
        )
        for name, values in everyone.items()
    ]  # fmt: skip
    return sorted(places, key=lambda place: place.ratios[by][::-1])


def _pairs(values: Values, reference: Values, quantity: str) -> Pairs:
    count = min(len(values["reached"]), len(reference["reached"]))
    own, other = values[quantity][:count], reference[quantity][:count]
    if quantity == "rounds":
        return Pairs.ordered(own, other)
    return Pairs.censored(own, np.array(values["reached"][:count]), other, np.array(reference["reached"][:count]))


def _tests(pairs: Mapping[str, Pairs]) -> dict[str, str]:
    return {
        name: f"{pairs[name].units} seeds cannot give p < {LEVEL}" if np.isnan(p) else f"p = {p:.3f}"
        for name, p in family_p(pairs).items()
    }


def collect(sweep: Sweep) -> dict[str, Any]:
    """Return what the runs of the benchmark's sweep needed on the instances of this leaderboard, ready for JSON."""
    schedulers: dict[str, dict[int, dict[str, float | None]]] = {}
    for one in sweep.runs:
        config = one.config
        is_instance = (config.data.name, config.data.majority_fraction, config.assignment.name) == (
            "digits", 0.8, "local_search",
        )  # fmt: skip
        options = config.scheduling.options
        if is_instance and one.ended and (not options or options == {"max_wait": 2}):
            needed = {quantity: spent(one, quantity) for quantity in SPENT}
            row = {quantity: value if np.isfinite(value) else None for quantity, value in needed.items()}
            schedulers.setdefault(config.scheduling.name, {})[config.seed] = row | {"reached": float(has_reached(one))}
    whole = {name: rows for name, rows in schedulers.items() if set(rows) == set(SEEDS)}
    return {
        "schedulers": {
            name: {quantity: [rows[seed][quantity] for seed in SEEDS] for quantity in (*SPENT, "reached")}
            for name, rows in sorted(whole.items())
        }
    }


def _finite(values: Mapping[str, Sequence[float | None]]) -> Values:
    return {key: [np.inf if value is None else float(value) for value in row] for key, row in values.items()}
