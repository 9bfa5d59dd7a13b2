"""Evaluation of policies on held-out fleets: of the assigner against references, of the scheduler against rivals.

The goal of an assigner is a low objective, not agreement with the teacher: a policy that agrees with it on 73 % of the
devices may cost 17 % more. Both figures are reported. The references, which are the teacher, the paper's HFEL, local
search and the lower bound, are solved once and kept in the held-out fleets' cache.

Each scheduler plays one episode of ``hflray/Scheduling-v0`` on each fleet. What it needs to the target is compared with
the agent's, fleet by fleet, by Wilcoxon's signed-rank test (`hflray.support.pairs`). IKC gets the devices' majority
classes as its clusters, so that it never clusters wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray import metrics
from hflray.assignment import build_assigner
from hflray.assignment.bounds import lower_bound
from hflray.assignment.network import QNetwork, padded_batch
from hflray.assignment.state import assigned_objective
from hflray.data.npz import UNREADABLE, read_archive
from hflray.errors import DivergedError
from hflray.rl.fleets import FleetSpec, SolvedFleet
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.rl.solved_fleets import FleetPool
from hflray.scheduling import Scheduler, build_scheduler, choose_devices
from hflray.scheduling.learned import ScoreNetwork, scores_of
from hflray.seeding import stream
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.files import replacing
from hflray.support.limits import available_cpus
from hflray.support.pairs import Pairs

TEACHER, BOUND = "teacher", "lower_bound"
# HFEL starts from the geographic assignment here, and local search from the best gain (docs/design.md, D8).
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "hfel-100": ("hfel", {"exchanges": 100}),
    "hfel-300": ("hfel", {"exchanges": 300}),
    "local_search": ("local_search", {}),
}
AT_ONCE = 50  # fleets per pass of the network
TO_TARGET = ("joules", "seconds", "rounds")
Choose = Callable[[SchedulingEnv], IntArray]


@dataclass(frozen=True)
class AssignerQuality:
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


class AssignerEvaluation:
    """An evaluation of policies on held-out fleets, against references that are solved once.

    Args:
        pool: fleets that are not used for training.
        progress: called with the number of fleets whose references are solved, and the number of all fleets.
    """

    def __init__(self, pool: FleetPool, progress: Callable[[int, int], None] | None = None) -> None:
        self.pool = pool
        self.references = references(pool, progress)

    def __call__(self, network: QNetwork) -> AssignerQuality:
        """Evaluate the greedy policy.

        Raises:
            DivergedError: a Q-value is not finite.
        """
        objectives, matches = judged(network, self.pool.fleets)
        mean = float(objectives.mean())
        ratio = {name: mean / float(values.mean()) for name, values in self.references.items()}
        returns = [2 * int(right.sum()) - len(right) for right in matches]
        return AssignerQuality(float(np.mean(returns)), float(np.concatenate(matches).mean()), mean, ratio, objectives)


def judged(network: QNetwork, fleets: Sequence[SolvedFleet]) -> tuple[FloatArray, list[BoolArray]]:
    """Return the objectives of the greedy policy, (fleets,), J, and which devices get the teacher's edge, (H,) each.

    Raises:
        DivergedError: a Q-value is not finite.
    """
    pairs = list(zip(fleets, greedy(network, fleets), strict=True))
    objectives = np.array([assigned_objective(fleet.problem, edges) for fleet, edges in pairs])
    return objectives, [edges == fleet.labels for fleet, edges in pairs]


def greedy(network: QNetwork, fleets: Sequence[SolvedFleet]) -> list[IntArray]:
    """Return the policy's assignment of each fleet, (H,). Raises DivergedError: a Q-value is not finite."""
    assignments: list[IntArray] = []
    for first in range(0, len(fleets), AT_ONCE):
        batch = fleets[first : first + AT_ONCE]
        edges = max(network.spec.num_edges, *(len(fleet.problem.bandwidth) for fleet in batch))
        with torch.inference_mode():
            q = network(*padded_batch([fleet.rows(network.spec.features, edges) for fleet in batch]))
        if not bool(torch.isfinite(q).all()):
            raise DivergedError("the network's Q-values are not finite; lower learning.learning_rate")
        best = q.argmax(-1).numpy()
        assignments += [best[i, : len(fleet.labels)].astype(np.intp) for i, fleet in enumerate(batch)]
    return assignments


def references(pool: FleetPool, progress: Callable[[int, int], None] | None = None) -> dict[str, NDArray[np.float64]]:
    """Return each reference's objectives on the pool's fleets, (fleets,), J, by name; solve and cache them once."""
    path, names = pool.folder / "references.npz", (*REFERENCES, BOUND)
    columns: dict[str, NDArray[np.float64]] = {}
    if path.exists():
        with suppress(*UNREADABLE):  # a damaged file is written anew
            columns = read_archive(path)
    if not columns.keys() >= {*names}:
        columns = {name: np.zeros(0) for name in names}
    num_cached = len(columns[BOUND])
    if num_cached < len(pool):
        solved: list[list[float]] = []
        with ThreadPoolExecutor(len(available_cpus())) as threads:
            for objectives in threads.map(partial(_solve_references, pool.spec), range(num_cached, len(pool))):
                solved.append(objectives)
                if progress:
                    progress(num_cached + len(solved), len(pool))
        columns = {
            name: np.concatenate([columns[name], values])
            for name, values in zip(names, np.transpose(solved), strict=True)
        }
        with replacing(path) as scratch:
            np.savez(scratch, **columns)  # type: ignore[arg-type]
    teacher = np.array([fleet.objective for fleet in pool.fleets])
    return {TEACHER: teacher, **{name: columns[name][: len(pool)] for name in names}}


def _solve_references(spec: FleetSpec, index: int) -> list[float]:
    """Return the objective of each reference and the lower bound on fleet `index`."""
    fleet, work = spec.draw(index)
    devices, problem = np.arange(fleet.num_devices), spec.problem(fleet, work)
    objectives = []
    for name, (assigner, options) in REFERENCES.items():
        rng = stream(spec.seed, f"assigner/reference/{name}", index)
        assignment = build_assigner(assigner, **options).assign(fleet, work, devices, rng)
        objectives.append(assigned_objective(problem, assignment))
    return [*objectives, lower_bound(fleet, work, devices)]


@dataclass(frozen=True)
class PlayedEpisodes:
    """A player's episodes, one on each held-out fleet.

    Attributes:
        episode_return: sum of the rewards, (fleets,).
        rounds: rounds played, (fleets,).
        joules, seconds: simulated energy and delay of all rounds, (fleets,).
        reached: whether the episode reached its target, (fleets,).
    """

    episode_return: FloatArray
    rounds: FloatArray
    joules: FloatArray
    seconds: FloatArray
    reached: FloatArray


class SchedulerEvaluation:
    """An evaluation on held-out fleets. The other schedulers play once, and the agent each time.

    Args:
        arguments: those of the environment.
        fleets: number of held-out fleets.
        seed: root seed of the fleets, which no training episode shares.
    """

    def __init__(self, arguments: dict[str, Any], fleets: int, seed: int) -> None:
        self.env, self.fleets, self.seed = SchedulingEnv(**arguments), fleets, seed
        self.rivals = {name: self._played(partial(_scheduler_player, name, self.env)) for name in metrics.RIVALS}

    def __call__(self, network: ScoreNetwork) -> dict[str, float]:
        """Return the metrics of the agent and of the others, by name; those of the target over episodes that reach it.

        A ratio is left out where fleets on which the target was missed leave it open. A p-value is left out where the
        fleets are too few for one below 0.05.
        """
        agent = self.play(network)
        values: dict[str, float] = {}
        for name, played in {"": agent, **self.rivals}.items():
            reached = played.reached > 0
            values[metrics.agent_metric("return", name)] = float(played.episode_return.mean())
            values[metrics.agent_metric("reached", name)] = float(reached.mean())
            for quantity in TO_TARGET if reached.any() else ():
                values[metrics.agent_metric(quantity, name)] = float(getattr(played, quantity)[reached].mean())
        for name, pairs in self.compared(agent).items():
            low, high = pairs.median
            if low == high:
                values[metrics.agent_metric("ratio", name)] = low
            if np.isfinite(pairs.p):
                values[metrics.agent_metric("p", name)] = pairs.p
        return values

    def play(self, network: ScoreNetwork) -> PlayedEpisodes:
        """Return the episodes of the greedy policy of a network."""

        def choose(env: SchedulingEnv) -> IntArray:
            rows = env.observation().reshape(env.fleet_config.num_devices, -1)
            return np.argsort(-scores_of(network, rows), kind="stable")[: env.num_scheduled]

        return self._played(lambda: (choose, lambda env: None))

    def compared(self, agent: PlayedEpisodes) -> dict[str, Pairs]:
        """Return the agent's joules to the target against each other scheduler's, by its name.

        Where the target is missed, they are censored at the joules of the whole episode.
        """
        return {
            name: Pairs.censored(agent.joules, agent.reached, played.joules, played.reached)
            for name, played in self.rivals.items()
        }

    def _played(self, player: Callable[[], tuple[Choose, Callable[[SchedulingEnv], None]]]) -> PlayedEpisodes:
        rows = []
        for index in range(self.fleets):
            self.env.begin(stream(self.seed, "scheduler/held-out", index))
            choose, observe = player()
            total, joules, seconds, ended, cut = 0.0, 0.0, 0.0, False, False
            while not (ended or cut):
                action = self.env.scores_of(choose(self.env))
                _, reward, ended, cut, info = self.env.step(action)
                observe(self.env)
                total, joules, seconds = total + reward, joules + info["energy_j"], seconds + info["delay_s"]
            rows.append((total, self.env.round, joules, seconds, ended))
        return PlayedEpisodes(*np.array(rows, dtype=np.float64).T)


def _scheduler_player(name: str, env: SchedulingEnv) -> tuple[Choose, Callable[[SchedulingEnv], None]]:
    """Return a new scheduler's choice, and how it observes a round."""
    scheduler: Scheduler = build_scheduler(
        name,
        num_devices=env.fleet_config.num_devices,
        num_scheduled=env.num_scheduled,
        clusters=np.unique(env.class_counts.argmax(axis=1), return_inverse=True)[1],
    )
    return lambda env: choose_devices(scheduler, env.context()), lambda env: scheduler.observe(env.played)
