"""Evaluation of policies on held-out fleets, against the teacher, the paper's HFEL, local search and the lower bound.

The goal is a low objective, not agreement with the teacher: a policy that agrees with it on 73 % of the devices may
cost 17 % more. Both figures are reported. The references are solved once and kept in the held-out fleets' cache.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from os import sched_getaffinity
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray import metrics
from hflray.assignment import build_assigner
from hflray.assignment.bounds import lower_bound
from hflray.assignment.features import FeatureSet
from hflray.assignment.network import QNetwork, padded_batch
from hflray.assignment.policy import load_policy, save_policy
from hflray.data.npz import UNREADABLE, read_archive
from hflray.errors import DivergedError
from hflray.rl.fleets import FleetSpec, assignment_objective, reporting
from hflray.rl.solved_fleets import FleetPool, prepare
from hflray.seeding import stream
from hflray.support.files import replacing
from hflray.support.provenance import git_commit

TEACHER, BOUND = "teacher", "lower_bound"
# HFEL starts from the geographic assignment here, and local search from the best gain (docs/design.md, D8).
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "hfel-100": ("hfel", {"exchanges": 100}),
    "hfel-300": ("hfel", {"exchanges": 300}),
    "local_search": ("local_search", {}),
}
AT_ONCE = 50  # fleets per pass of the network


@dataclass(frozen=True)
class Quality:
    """The quality of a policy on held-out fleets.

    Attributes:
        greedy_return: sum of the ±1 rewards (26) of a fleet, mean over fleets.
        agreement: share of devices that get the teacher's edge.
        objective: mean objective over fleets, J.
        ratio: the mean objective divided by each reference's mean objective, by the reference's name.
        objectives: objective of each fleet, (fleets,), J.
    """

    greedy_return: float
    agreement: float
    objective: float
    ratio: dict[str, float]
    objectives: NDArray[np.float64] = field(repr=False)

    def metrics(self) -> dict[str, float]:
        """Return the logged metrics by name; `hflray.metrics` explains them."""
        return {
            metrics.ASSIGNER_GREEDY_RETURN: self.greedy_return,
            metrics.ASSIGNER_AGREEMENT: self.agreement,
            metrics.ASSIGNER_OBJECTIVE: self.objective,
            **{metrics.assigner_ratio(name): value for name, value in self.ratio.items()},
        }

    def summary(self) -> dict[str, Any]:
        """Return the figures of a policy's card, JSON-ready; the fleets are then reporting fleets."""
        return {
            "reporting_fleets": len(self.objectives),
            "agreement": round(self.agreement, 4),
            "greedy_return": round(self.greedy_return, 2),
            "objective": round(self.objective, 3),
            "ratio": {name: round(value, 4) for name, value in self.ratio.items()},
        }


class Evaluation:
    """An evaluation of policies on held-out fleets, against references that are solved once.

    Args:
        pool: fleets that are not used for training.
        features: the network's feature set.
        num_edges: number of edges that rows are padded to.
        progress: called with the number of fleets whose references are solved, and the number of all fleets.
    """

    def __init__(
        self,
        pool: FleetPool,
        features: FeatureSet,
        num_edges: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.pool = pool
        self.references = references(pool, progress)
        self._rows = [fleet.rows(features, num_edges) for fleet in pool.fleets]

    def __call__(self, network: QNetwork) -> Quality:
        """Evaluate the greedy policy.

        Raises:
            DivergedError: a Q-value is not finite.
        """
        returns, matches, devices, objectives = [], 0, 0, []
        for solved, assignment in zip(self.pool.fleets, self._assign(network), strict=True):
            fleet_matches = int((assignment == solved.labels).sum())
            matches, devices = matches + fleet_matches, devices + len(assignment)
            returns.append(2 * fleet_matches - len(assignment))
            objectives.append(assignment_objective(solved.problem, assignment))
        mean = float(np.mean(objectives))
        ratio = {name: mean / float(values.mean()) for name, values in self.references.items()}
        return Quality(float(np.mean(returns)), matches / devices, mean, ratio, np.array(objectives))

    def _assign(self, network: QNetwork) -> list[NDArray[np.intp]]:
        assignments: list[NDArray[np.intp]] = []
        for first in range(0, len(self._rows), AT_ONCE):
            rows = self._rows[first : first + AT_ONCE]
            with torch.inference_mode():
                q = network(*padded_batch(rows))
            if not bool(torch.isfinite(q).all()):
                raise DivergedError("the network's Q-values are not finite; lower learning.learning_rate")
            best = q.argmax(-1).numpy()
            assignments += [best[i, : len(matrix)].astype(np.intp) for i, matrix in enumerate(rows)]
        return assignments


def measure(path: Path, count: int) -> None:
    """Measure a policy on reporting fleets of its specification, and write the figures into its card.

    Neither training nor the choice of a snapshot used the reporting fleets.

    Args:
        path: the policy's file, which is rewritten.
        count: number of fleets.

    Raises:
        ConfigError: `path` holds no policy.
    """
    network, card = load_policy(path)
    spec = reporting(FleetSpec.from_dict(card["trained_on"]["specification"]))
    evaluation = Evaluation(prepare(spec, count), network.spec.features, network.spec.num_edges)
    quality = evaluation(network)
    mean_ratio = float((quality.objectives / evaluation.references["local_search"]).mean())
    reported = quality.summary() | {"mean_ratio": round(mean_ratio, 4), "git_commit": git_commit()}
    save_policy(path, network, card | {"reported": reported})


def references(pool: FleetPool, progress: Callable[[int, int], None] | None = None) -> dict[str, NDArray[np.float64]]:
    """Return each reference's objectives on the pool's fleets, (fleets,), J, by name; solve and cache them once."""
    solved: list[dict[str, float]] = []
    columns: dict[str, NDArray[np.float64]] = {}
    path = pool.folder / "references.npz"
    if path.exists():
        with suppress(*UNREADABLE):  # a damaged file is written anew
            columns = read_archive(path)
        if {*REFERENCES, BOUND} <= set(columns):
            solved = [{name: float(columns[name][i]) for name in columns} for i in range(len(columns[BOUND]))]
    if len(solved) < len(pool):
        with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
            missing = range(len(solved), len(pool))
            for fleet_objectives in threads.map(lambda index: _solve(pool.spec, index), missing):
                solved.append(fleet_objectives)
                if progress:
                    progress(len(solved), len(pool))
        arrays: dict[str, Any] = {name: np.array([fleet[name] for fleet in solved]) for name in solved[0]}
        with replacing(path) as scratch:
            np.savez(scratch, **arrays)
    teacher = np.array([fleet.objective for fleet in pool.fleets])
    by_name = {name: np.array([fleet[name] for fleet in solved[: len(pool)]]) for name in (*REFERENCES, BOUND)}
    return {TEACHER: teacher, **by_name}


def _solve(spec: FleetSpec, index: int) -> dict[str, float]:
    fleet, work = spec.draw(index)
    devices = np.arange(fleet.num_devices)
    problem = spec.problem(fleet, work)
    objectives = {}
    for name, (assigner, options) in REFERENCES.items():
        rng = stream(spec.seed, f"assigner/reference/{name}", index)
        objectives[name] = assignment_objective(
            problem, build_assigner(assigner, **options).assign(fleet, work, devices, rng)
        )
    return objectives | {BOUND: lower_bound(fleet, work, devices)}
