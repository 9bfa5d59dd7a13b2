"""Sampling of whole episodes, in which one pass of the network decides all devices of several fleets.

RLlib's own runner calls the module once per step. This runner calls it once per episode, and still steps the Gymnasium
environment for every reward.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from hflray.assignment.network import padded_batch
from hflray.rl.module import DRAWS, EPSILON, LENGTHS
from hflray.rl.replay import whole_episode
from hflray.seeding import stream


class SeededRunner(SingleAgentEnvRunner):  # type: ignore[misc]
    """An environment runner with random generators of its own, which can be saved.

    Attributes:
        streams: the first part of the names of its random streams.
    """

    streams: ClassVar[str]

    def make_env(self) -> None:
        """Make the environments and seed each of them once.

        RLlib would seed them again at every sample, and so draw the same fleets for ever.
        """
        super().make_env()
        self.raw: list[Any] = [env.unwrapped for env in self.env.unwrapped.envs]
        seed, worker = self.config.seed or 0, int(self.worker_index or 0)
        for number, env in enumerate(self.raw):
            env.np_random = stream(seed, f"{self.streams}/episodes", worker, number)
        self.rng = stream(seed, f"{self.streams}/exploration", worker)

    def generators(self) -> list[dict[str, Any]]:
        """Return the state of every generator, JSON-ready."""
        return [dict(rng.bit_generator.state) for rng in (self.rng, *(env.np_random for env in self.raw))]

    def set_generators(self, states: list[dict[str, Any]]) -> None:
        """Restore the states that `generators` returned."""
        for rng, state in zip((self.rng, *(env.np_random for env in self.raw)), states, strict=True):
            rng.bit_generator.state = state

    def counted(self, episodes: list[Any]) -> list[Any]:
        """Return finished episodes, of which RLlib's metrics now know."""
        steps = sum(len(episode) for episode in episodes)
        self._done_episodes_for_metrics.extend(episodes)
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=steps)
        self._increase_sampled_metrics(steps, len(episodes))
        return episodes


class WholeEpisodeRunner(SeededRunner):
    """A runner that samples whole episodes of the assigner, with one pass of the network for each."""

    streams: ClassVar[str] = "assigner"

    def _sample(
        self, *, num_timesteps: int | None = None, num_episodes: int | None = None, explore: bool,
        random_actions: bool = False, **_: Any,
    ) -> list[Any]:  # fmt: skip
        done: list[Any] = []
        steps = 0
        while steps < num_timesteps if num_timesteps is not None else len(done) < (num_episodes or 1):
            infos = [env.reset()[1] for env in self.raw]
            rows = [info["rows"] for info in infos]
            actions = self._decide(rows, explore, random_actions, steps)
            spaces = self.env.single_observation_space, self.env.single_action_space
            for env, info, chosen in zip(self.raw, infos, actions, strict=True):
                n = len(info["rows"])
                rewards = [env.step(edge)[1] for edge in chosen[:n].tolist()]
                done.append(whole_episode(info["rows"], chosen[:n], rewards, info["teacher"], spaces))
                steps += n
        return self.counted(done)

    def _decide(
        self, rows: list[NDArray[np.float32]], explore: bool, random_actions: bool, steps: int
    ) -> NDArray[np.int64]:
        """Return the actions (B, T) for episodes with these rows."""
        batch = batch_of(rows)
        if not explore and not random_actions:
            return np.asarray(self.module.forward_inference(batch)[Columns.ACTIONS].numpy())
        shape = (*batch[Columns.OBS].shape[:2], 2)
        batch[DRAWS] = torch.as_tensor(self.rng.random(shape, dtype=np.float32))
        batch[EPSILON] = 1.0 if random_actions else self._epsilon(self.num_env_steps_sampled_lifetime + steps)
        return np.asarray(self.module.forward_exploration(batch)[Columns.ACTIONS].numpy())

    def _epsilon(self, step: int) -> float:
        """Return ε at `step`, by the configured schedule ``[(step, value), …]``, which is linear between its points."""
        return float(np.interp(step, *np.transpose(self.config.epsilon)))


def batch_of(rows: list[NDArray[np.float32]]) -> dict[str, Any]:
    """Return the rows (H_i, row) of several fleets as the module's padded batch."""
    batch, lengths = padded_batch(rows)
    return {Columns.OBS: batch, LENGTHS: lengths}
