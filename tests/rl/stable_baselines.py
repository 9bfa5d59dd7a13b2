"""Solve hflray's two environments with Stable-Baselines3, a library that hflray neither uses nor installs.

    python3 -m venv ~/sb3 && ~/sb3/bin/pip install -e . stable-baselines3
    ~/sb3/bin/python -m tests.rl.stable_baselines assignment --steps 200000
    ~/sb3/bin/python -m tests.rl.stable_baselines scheduling --steps 200000

PPO with that library's defaults learns from the observations and rewards that any agent gets, with one seed per row.
Every row is a mean over the same held-out episodes. The other rows are what an agent must beat: edges and devices at
random, the edge of the best gain, and shipped schedulers that play in the agent's place.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hflray.assignment.state import assigned_objective
from hflray.rl import env as assignment
from hflray.rl import scheduling_env as scheduling
from hflray.rl.fleets import FleetSpec
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.scheduling import build_scheduler, choose_devices
from tests.rl.strongest_gain import strongest

SEED_OF_EPISODES = 1_000_000  # no training episode has this seed or one of the following
SCHEDULERS = ("fedavg", "fastest", "best_channel", "energy_aware", "coverage")
Act = Callable[[gym.Env[Any, Any], NDArray[np.float32]], Any]


def assignment_env() -> gym.Env[Any, Any]:
    """Return the assignment of 50 devices to 5 edges, rewarded by cost."""
    return gym.make(assignment.ENV_ID, reward="cost")


def scheduling_env() -> gym.Env[Any, Any]:
    """Return the choice of 5 of 20 devices, rewarded by cost."""
    return gym.make(scheduling.ENV_ID)


def play(env: gym.Env[Any, Any], act: Act, episodes: int) -> tuple[float, float]:
    """Return the mean return and the mean length of held-out episodes."""
    returns, lengths = [], []
    for episode in range(episodes):
        observation, _ = env.reset(seed=SEED_OF_EPISODES + episode)
        total, length, over = 0.0, 0, False
        while not over:
            observation, reward, ended, cut, _ = env.step(act(env, observation))
            total, length, over = total + float(reward), length + 1, ended or cut
        returns.append(total)
        lengths.append(length)
    return float(np.mean(returns)), float(np.mean(lengths))


def rules_of_assignment(episodes: int) -> dict[str, float]:
    """Return the objective of what needs no learning, in the unit of the rewards: the teacher has −H."""
    spec, rng, returns = FleetSpec(), np.random.default_rng(0), []
    for episode in range(episodes):
        # The environment draws the fleet's number from the seed of the episode.
        number = int(gym.utils.seeding.np_random(SEED_OF_EPISODES + episode)[0].integers(2**31))
        fleet = spec.solve(number)
        count, unit = len(fleet.labels), fleet.objective / len(fleet.labels)
        random = rng.integers(0, len(fleet.problem.bandwidth), count)
        costs = [assigned_objective(fleet.problem, edges) / unit for edges in (random, strongest(fleet))]
        returns.append([-float(count), *(-cost for cost in costs)])
    means = np.mean(returns, axis=0)
    return dict(zip(("teacher (HFEL-300)", "random edges", "best gain"), map(float, means), strict=True))


def shipped(name: str) -> Act:
    """Return what a shipped scheduler does in the agent's place."""

    def act(env: gym.Env[Any, Any], observation: NDArray[np.float32]) -> Any:
        inner = env.unwrapped
        assert isinstance(inner, SchedulingEnv)
        count = inner.fleet_config.num_devices
        scheduler = build_scheduler(name, num_devices=count, num_scheduled=inner.num_scheduled)
        return inner.scores_of(choose_devices(scheduler, inner.context()))

    return act


def learned(make: Callable[[], gym.Env[Any, Any]], steps: int, seed: int) -> Act:
    """Train PPO and return its deterministic policy."""
    from stable_baselines3 import PPO  # type: ignore[import-not-found]  # the environment of this script has it

    model = PPO("MlpPolicy", make(), seed=seed, device="cpu", verbose=0)
    model.learn(total_timesteps=steps)
    return lambda env, observation: model.predict(observation, deterministic=True)[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", choices=("assignment", "scheduling"))
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of a training")
    parser.add_argument("--seeds", type=int, default=3, help="trainings")
    parser.add_argument("--episodes", type=int, default=100, help="held-out episodes of each row")
    options = parser.parse_args(arguments)
    make = assignment_env if options.environment == "assignment" else scheduling_env
    if options.environment == "assignment":
        for name, value in rules_of_assignment(options.episodes).items():
            print(f"{name:32s} return {value:8.2f}", flush=True)
    else:
        for name in SCHEDULERS:
            value, length = play(make(), shipped(name), options.episodes)
            print(f"{name:32s} return {value:8.2f}, {length:.1f} rounds", flush=True)
    for seed in range(options.seeds):
        begin = time.perf_counter()
        act = learned(make, options.steps, seed)
        seconds = time.perf_counter() - begin
        value, length = play(make(), act, options.episodes)
        print(
            f"PPO of Stable-Baselines3, seed {seed} return {value:8.2f}, {length:.1f} steps an episode; trained "
            f"{options.steps:,} steps in {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
