"""Sampling whole episodes: one pass of the network decides all devices of several fleets.

RLlib's own runner calls the module once a step. Here it is called once an episode; the Gymnasium environment is still
stepped for every reward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from hflray.assignment.network import padded_batch
from hflray.rl.env import DeviceAssignmentEnv
from hflray.rl.module import DRAWS, EPSILON, LENGTHS
from hflray.rl.replay import whole_episode
from hflray.seeding import stream


class ConfiguredEnv(DeviceAssignmentEnv):
    """The environment as RLlib makes it: from one mapping, ``env_config``."""

    def __init__(self, context: dict[str, Any]) -> None:
        super().__init__(**context)


class WholeEpisodeRunner(SingleAgentEnvRunner):  # type: ignore[misc]
    """An environment runner whose samples are whole episodes; its random numbers are its own and part of its state."""

    def make_env(self) -> None:
        """Make the environments and seed each once. (RLlib would seed them again at every sample: the same fleets.)"""
        super().make_env()
        self.raw: list[DeviceAssignmentEnv] = [env.unwrapped for env in self.env.unwrapped.envs]
        seed, worker = self.config.seed or 0, int(self.worker_index or 0)
        for number, env in enumerate(self.raw):
            env.np_random = stream(seed, "assigner/episodes", worker, number)
        self.rng = stream(seed, "assigner/exploration", worker)

    def generators(self) -> list[dict[str, Any]]:
        """State of every generator, JSON-ready."""
        return [dict(rng.bit_generator.state) for rng in (self.rng, *(env.np_random for env in self.raw))]

    def set_generators(self, states: list[dict[str, Any]]) -> None:
        """Take over what `generators` gave."""
        for rng, state in zip((self.rng, *(env.np_random for env in self.raw)), states, strict=True):
            rng.bit_generator.state = state

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Any]:
        done: list[Any] = []
        steps = 0
        while steps < num_timesteps if num_timesteps is not None else len(done) < (num_episodes or 1):
            begun = [env.reset()[1] for env in self.raw]
            rows = [info["rows"] for info in begun]
            actions = self._decide(rows, explore, random_actions, steps)
            spaces = self.env.single_observation_space, self.env.single_action_space
            for env, info, chosen in zip(self.raw, begun, actions, strict=True):
                n = len(info["rows"])
                rewards = [env.step(edge)[1] for edge in chosen[:n].tolist()]
                done.append(whole_episode(info["rows"], chosen[:n], rewards, info["teacher"], spaces))
                steps += n
        self._done_episodes_for_metrics.extend(done)
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=steps)
        self._increase_sampled_metrics(steps, len(done))
        return done

    def _decide(
        self, rows: list[NDArray[np.float32]], explore: bool, random_actions: bool, steps: int
    ) -> NDArray[np.int64]:
        """Actions (B, T) for episodes of these rows."""
        batch = batch_of(rows)
        if not explore and not random_actions:
            return np.asarray(self.module.forward_inference(batch)[Columns.ACTIONS].numpy())
        shape = (*batch[Columns.OBS].shape[:2], 2)
        batch[DRAWS] = torch.as_tensor(self.rng.random(shape, dtype=np.float32))
        batch[EPSILON] = 1.0 if random_actions else self._epsilon(self.num_env_steps_sampled_lifetime + steps)
        return np.asarray(self.module.forward_exploration(batch)[Columns.ACTIONS].numpy())

    def _epsilon(self, step: int) -> float:
        """The schedule of the algorithm's configuration, ``[(step, value), …]``, linear between its points."""
        points = self.config.epsilon
        if not isinstance(points, list | tuple):
            return float(points)
        return float(np.interp(step, [at for at, _ in points], [value for _, value in points]))


def batch_of(rows: list[NDArray[np.float32]]) -> dict[str, Any]:
    """Rows of several fleets (H_i, row) as the module's padded batch."""
    batch, lengths = padded_batch(rows)
    return {Columns.OBS: batch, LENGTHS: lengths}
