"""Evaluation of a learned scheduler in ``hflray/Scheduling-v0``, beside other schedulers on the same held-out fleets.

Every player plays one episode on each fleet. What it needs to the target is compared with the agent's, fleet by fleet,
by Wilcoxon's signed-rank test (`hflray.support.pairs`). IKC gets the devices' majority classes as its clusters, so that
it never clusters wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hflray import metrics
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.scheduling import Scheduler, build_scheduler, choose_devices
from hflray.scheduling.learned import scores_of
from hflray.scheduling.network import ScoreNetwork
from hflray.seeding import stream
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.pairs import Pairs

TO_TARGET = ("joules", "seconds", "rounds")
Choose = Callable[[SchedulingEnv], IntArray]


@dataclass(frozen=True)
class Played:
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


class SchedulingEvaluation:
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

    def play(self, network: ScoreNetwork) -> Played:
        """Return the episodes of the greedy policy of a network."""

        def choose(env: SchedulingEnv) -> IntArray:
            rows = env.observation().reshape(env.fleet_config.num_devices, -1)
            return np.argsort(-scores_of(network, rows), kind="stable")[: env.num_scheduled]

        return self._played(lambda: (choose, lambda env: None))

    def compared(self, agent: Played) -> dict[str, Pairs]:
        """Return the agent's joules to the target against each other scheduler's, by its name.

        Where the target is missed, they are censored at the joules of the whole episode.
        """
        return {
            name: Pairs.censored(agent.joules, agent.reached, played.joules, played.reached)
            for name, played in self.rivals.items()
        }

    def _played(self, player: Callable[[], tuple[Choose, Callable[[SchedulingEnv], None]]]) -> Played:
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
        return Played(*np.array(rows, dtype=np.float64).T)


def _scheduler_player(name: str, env: SchedulingEnv) -> tuple[Choose, Callable[[SchedulingEnv], None]]:
    """Return a new scheduler's choice, and how it observes a round."""
    scheduler: Scheduler = build_scheduler(
        name,
        num_devices=env.fleet_config.num_devices,
        num_scheduled=env.num_scheduled,
        clusters=np.unique(env.class_counts.argmax(axis=1), return_inverse=True)[1],
    )
    return lambda env: choose_devices(scheduler, env.context()), lambda env: scheduler.observe(env.played)
