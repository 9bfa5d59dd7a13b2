"""The leaderboards of assigners and schedulers: the shipped ones, and the user's own, on fixed instances.

**Assigners**: their costs, proven gaps and times on the first fleets of ``tune_configs/fig6_assignment.yaml``: H = 50
of N = 100 devices, M = 5 edges, λ = 1, on five deployments of the edges. Each assigner gets every fleet, directly after
the others, so that times can be compared. A time is given as a multiple of best gain's, because machines differ.

**Schedulers**: rounds, simulated seconds and joules to a target accuracy over ten seeds of
``tune_configs/benchmark_scheduling.yaml`` on digits, with 80 % of a device's samples in its majority class and local
search: H = 12 of N = 60 devices, M = 3 edges, to 80 % within 30 rounds. What the shipped schedulers need was measured
once (``leaderboard.json``, which ``python -m tests.reproduction.leaderboard_values`` writes from the exports). Only the
user's own schedulers train, a run for each seed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hflray import metrics
from hflray.assignment import configured_assigner
from hflray.config import ExperimentConfig, load_config
from hflray.experiment import Experiment
from hflray.experiment.study import Instance
from hflray.report.labels import hfel, label_apart, pretty
from hflray.report.ranking import QUANTITIES, outcome_texts
from hflray.support.pairs import Pairs

FIGURE_6 = ("fleet.num_devices=100", "fleet.num_edges=5", "scheduling.num_scheduled=50", "cost.delay_weight=1",
            "cost.model_kb=448")  # fmt: skip
DEPLOYMENTS = range(5)
JOINT = "allocation.coupling=joint"
BEST_GAIN, HFEL, SEARCH, D3QN = pretty("best_gain"), hfel(300), pretty("local_search"), pretty("d3qn")
EXCHANGES = ("assignment.name=hfel", "assignment.exchanges=300")
POLISHED = ("assignment.name=d3qn", "assignment.polish_ms=optimum")
ASSIGNERS: dict[str, tuple[str, ...]] = {
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
class AssignerScore:
    """What an assigner reached on the fleets of Figure 6.

    Attributes:
        name: the assigner.
        objective_j: mean objective E + λT over the fleets, J.
        ratio: geometric mean over the fleets of its objective divided by best gain's.
        gap, worst_gap: median and largest share by which it is above a proven lower bound.
        time_ratio: median time divided by best gain's median time.
        is_own: whether it is the user's own.
    """

    name: str
    objective_j: float
    ratio: float
    gap: float
    worst_gap: float
    time_ratio: float
    is_own: bool


def assigners(references: Sequence[str]) -> dict[str, ExperimentConfig]:
    """Return the configuration of each shipped assigner, and of those that are named, on deployment 0.

    Raises:
        ConfigError: a name is unknown, or a reference leads nowhere.
    """
    named = {label: (f"assignment.name={name}",) for name, label in label_apart(references, list(ASSIGNERS)).items()}
    return {name: load_config(None, [*FIGURE_6, *more]) for name, more in (ASSIGNERS | named).items()}


def score_assigners(references: Sequence[str] = (), fleets: int = 20) -> list[AssignerScore]:
    """Return the scores of all assigners, the least cost first.

    Args:
        references: assigners of the user's own, such as ``mine.py:Mine``, or registered names.
        fleets: number of fleets of each of five deployments.

    Raises:
        ConfigError: see `assigners`.
        InfeasibleError: an edge's allocation failed.
    """
    configs = assigners(references)
    objective_j: dict[str, list[float]] = {name: [] for name in configs}
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    bounds_j: list[float] = []
    for deployment, index in itertools.product(DEPLOYMENTS, range(fleets + 1)):
        placed = {
            name: config.model_copy(update={"fleet": config.fleet.model_copy(update={"deployment_seed": deployment})})
            for name, config in configs.items()
        }
        instance = Instance.of(placed[BEST_GAIN], index)
        for name, config in placed.items():
            assignment, spent_s = instance.assigned(configured_assigner(config), config.seed)
            if index:  # fleet 0 warms up
                seconds[name].append(spent_s)
                objective_j[name].append(instance.bill(assignment, config.allocation).objective)
        if index:
            bounds_j.append(instance.bound())
    best, best_s = np.array(objective_j[BEST_GAIN]), float(np.median(seconds[BEST_GAIN]))
    named = set(label_apart(references, list(ASSIGNERS)).values())
    scores = []
    for name, values in objective_j.items():
        gaps, ratio = 1.0 - np.array(bounds_j) / np.array(values), np.exp(np.log(np.array(values) / best).mean())
        gap, worst, time_ratio = float(np.median(gaps)), float(gaps.max()), float(np.median(seconds[name])) / best_s
        scores.append(AssignerScore(name, float(np.mean(values)), float(ratio), gap, worst, time_ratio, name in named))
    return sorted(scores, key=lambda score: score.ratio)


FILE = Path(__file__).with_name("leaderboard.json")
REFERENCE = "ikc"
SEEDS = tuple(range(10))
DIGITS = (
    "data.name=digits", "data.majority_fraction=0.8", "target_accuracy=0.8", "max_rounds=30", "fleet.num_devices=60",
    "fleet.num_edges=3", "scheduling.num_scheduled=12", "assignment.name=local_search", "training.local_iterations=2",
    "training.edge_iterations=2", "training.batch_size=16", "training.backend=serial",
)  # fmt: skip
SPENT = ("rounds", "seconds", "joules")
Values = dict[str, list[float]]  # by quantity, a value for each seed; and "reached", 1 or 0


@dataclass(frozen=True)
class SchedulerScore:
    """What a scheduler needed to its target on digits.

    Attributes:
        name: the scheduler.
        reached: in how many runs it reached the target.
        runs: the number of its runs, one for each seed.
        medians: by quantity, the median over the seeds; inf where at least half of the runs missed the target.
        ratios: by quantity, the median ratio to IKC on the same seed as bounds, which are equal if nothing is censored.
        tests: by quantity, what the signed-rank test against IKC says, in words.
        is_own: whether it is the user's own.
    """

    name: str
    reached: int
    runs: int
    medians: dict[str, float]
    ratios: dict[str, tuple[float, float]]
    tests: dict[str, str]
    is_own: bool


def measured() -> dict[str, Values]:
    """Return what each shipped scheduler needed, by its name."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: _finite(values) for name, values in content["schedulers"].items()}


def scheduler_config(name: str, seed: int) -> ExperimentConfig:
    """Return the configuration of a run. Raises ConfigError: the scheduler is unknown, or cannot be loaded."""
    return load_config(None, [*DIGITS, f"scheduling.name={name}", f"seed={seed}"])


def train(name: str, seeds: Sequence[int] = SEEDS, progress: Callable[[int], None] = lambda seed: None) -> Values:
    """Return what a scheduler needs to the target, a run for each seed.

    Args:
        name: a registered name, or a reference such as ``mine.py:Mine``.
        seeds: the seeds.
        progress: is called with a seed when its run has ended.

    Raises:
        ConfigError: see `scheduler_config`.
    """
    values: Values = {quantity: [] for quantity in (*SPENT, "reached")}
    for config in [scheduler_config(name, seed) for seed in seeds]:
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


def score_schedulers(needed: Mapping[str, Values], by: str = "seconds") -> list[SchedulerScore]:
    """Return the scores of the shipped schedulers and of the user's own, the least first.

    A run that missed the target is censored in seconds and joules, and has the worst rank in rounds. The tests are
    exact signed-rank tests over the seeds against IKC, by Holm's method over all others.

    Args:
        needed: what each of the user's own schedulers needed.
        by: the quantity whose median ratio to IKC orders the scores; where it is censored, its upper bound.
    """
    everyone = measured() | dict(needed)
    reference = everyone[REFERENCE]
    pairs = {name: {q: _pairs(values, reference, q) for q in SPENT} for name, values in everyone.items()}
    tests = {
        quantity: outcome_texts({n: p[quantity] for n, p in pairs.items() if n != REFERENCE}) for quantity in SPENT
    }
    scores = [
        SchedulerScore(
            name, int(sum(values["reached"])), len(values["reached"]),
            {q: float(np.median(np.where(values["reached"], values[q], np.inf))) for q in SPENT},
            {q: pairs[name][q].median for q in SPENT},
            {q: tests[q].get(name, "") for q in SPENT}, name in needed,
        )
        for name, values in everyone.items()
    ]  # fmt: skip
    return sorted(scores, key=lambda score: score.ratios[by][::-1])


def _pairs(values: Values, reference: Values, quantity: str) -> Pairs:
    count = min(len(values["reached"]), len(reference["reached"]))
    spent, other = values[quantity][:count], reference[quantity][:count]
    if quantity == "rounds":
        return Pairs.ordered(spent, other)
    return Pairs.censored(spent, np.array(values["reached"][:count]), other, np.array(reference["reached"][:count]))


def _finite(values: Mapping[str, Sequence[float | None]]) -> Values:
    return {key: [np.inf if value is None else float(value) for value in row] for key, row in values.items()}
