"""How good a policy is: on held-out fleets, against its teacher, the paper's HFEL, local search and the lower bound.

Agreement with the teacher is not the goal, the objective is: a policy of 73 % agreement may cost 17 % more. Both are
reported. References are solved once and kept in the cache of the held-out fleets.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import sched_getaffinity
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray import metrics
from hflray.assignment import build_assigner
from hflray.assignment.bounds import lower_bound
from hflray.assignment.features import FeatureSet
from hflray.assignment.network import QNetwork, padded_batch
from hflray.errors import DivergedError
from hflray.rl.fleets import FleetSpec, objective_of
from hflray.rl.pool import FleetPool, write_file
from hflray.seeding import stream

TEACHER, BOUND = "teacher", "lower_bound"
# The paper's HFEL starts from the geographic assignment (design, decision 5.8), local search from the best gain.
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "hfel-100": ("hfel", {"exchanges": 100}),
    "hfel-300": ("hfel", {"exchanges": 300}),
    "local_search": ("local_search", {}),
}
AT_ONCE = 50  # fleets in one pass of the network


@dataclass(frozen=True)
class Quality:
    """A policy on held-out fleets.

    Attributes:
        greedy_return: mean over fleets of the ±1 rewards' sum, equation (26).
        agreement: share of devices that get the teacher's edge.
        objective: mean over fleets, J.
        ratio: mean objective over the mean of each reference.
        objectives: of each fleet, J.
    """

    greedy_return: float
    agreement: float
    objective: float
    ratio: dict[str, float]
    objectives: NDArray[np.float64] = field(repr=False)

    def metrics(self) -> dict[str, float]:
        """The entries of the glossary, by name."""
        return {
            metrics.ASSIGNER_GREEDY_RETURN: self.greedy_return,
            metrics.ASSIGNER_AGREEMENT: self.agreement,
            metrics.ASSIGNER_OBJECTIVE: self.objective,
            **{metrics.assigner_ratio(name): value for name, value in self.ratio.items()},
        }


class Evaluation:
    """Held-out fleets with their references.

    Args:
        pool: fleets that training never sees.
        features: the set the network takes.
        num_edges: rows are padded to so many edges.
        progress: called with the fleets whose references are known, and all.
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
        """Evaluate the greedy policy. Raises DivergedError: a Q-value is not finite."""
        returns, same, devices, objectives = [], 0, 0, []
        for solved, assignment in zip(self.pool.fleets, self._assign(network), strict=True):
            agree = int((assignment == solved.labels).sum())
            same, devices = same + agree, devices + len(assignment)
            returns.append(2 * agree - len(assignment))
            objectives.append(objective_of(solved.problem, assignment))
        mean = float(np.mean(objectives))
        ratio = {name: mean / float(values.mean()) for name, values in self.references.items()}
        return Quality(float(np.mean(returns)), same / devices, mean, ratio, np.array(objectives))

    def _assign(self, network: QNetwork) -> list[NDArray[np.intp]]:
        found: list[NDArray[np.intp]] = []
        for first in range(0, len(self._rows), AT_ONCE):
            rows = self._rows[first : first + AT_ONCE]
            with torch.inference_mode():
                q = network(*padded_batch(rows))
            if not bool(torch.isfinite(q).all()):
                raise DivergedError("the network's Q-values are not finite; lower learning.learning_rate")
            best = q.argmax(-1).numpy()
            found += [best[i, : len(matrix)].astype(np.intp) for i, matrix in enumerate(rows)]
        return found


def references(pool: FleetPool, progress: Callable[[int, int], None] | None = None) -> dict[str, NDArray[np.float64]]:
    """Objective of each reference on each fleet of the pool, by name, (fleets,) each; solved once and kept."""
    known: list[dict[str, float]] = []
    path = pool.folder / "references.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        if {*REFERENCES, BOUND} <= set(columns):
            known = [{name: float(columns[name][i]) for name in columns} for i in range(len(columns[BOUND]))]
    if len(known) < len(pool):
        with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
            missing = range(len(known), len(pool))
            for done in threads.map(lambda index: _solve(pool.spec, index), missing):
                known.append(done)
                if progress:
                    progress(len(known), len(pool))
        whole: dict[str, Any] = {name: np.array([fleet[name] for fleet in known]) for name in known[0]}
        write_file(path, lambda scratch: np.savez(scratch, **whole))
    teacher = np.array([fleet.objective for fleet in pool.fleets])
    mine = {name: np.array([fleet[name] for fleet in known[: len(pool)]]) for name in (*REFERENCES, BOUND)}
    return {TEACHER: teacher, **mine}


def _solve(spec: FleetSpec, index: int) -> dict[str, float]:
    fleet, work = spec.draw(index)
    devices = np.arange(fleet.num_devices)
    problem = spec.problem(fleet, work)
    found = {}
    for name, (assigner, options) in REFERENCES.items():
        rng = stream(spec.seed, f"assigner/reference/{name}", index)
        found[name] = objective_of(problem, build_assigner(assigner, **options).assign(fleet, work, devices, rng))
    return found | {BOUND: lower_bound(fleet, work, devices)}
