"""A seeded and resumable replay buffer of whole episodes, which can also draw single transitions.

The state of a transition contains all rows of its episode. The buffer therefore holds episodes, and a draw of single
transitions consists of the episodes and of how often each of their steps was drawn.

RLlib's own buffer seeds itself from the system, and its state is a pickle of episodes. RLlib recognises a buffer of
episodes by ``EpisodeReplayBuffer`` in the name of its class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

from hflray.rl.module import TEACHER, Drawn


class WholeEpisodeReplayBuffer(EpisodeReplayBuffer):  # type: ignore[misc]
    """A buffer of the latest episodes, from which `sample` draws uniformly and with replacement.

    Args:
        capacity: largest number of transitions; at least one episode is always kept.
        seed: seed of the draws.
        transitions: draw single transitions, as Algorithm 5 does, instead of whole episodes.
    """

    def __init__(self, capacity: int, seed: int = 0, transitions: bool = False) -> None:
        super().__init__(capacity=capacity)
        self.rng, self.transitions = np.random.default_rng(seed), transitions

    def add(self, episodes: list[SingleAgentEpisode]) -> None:
        """Append complete episodes, and drop the oldest ones while there are more transitions than `capacity`."""
        for episode in episodes:
            self.episodes.append(episode)
            self._num_timesteps += len(episode)
            self._num_timesteps_added += len(episode)
            while self._num_timesteps > self.capacity and len(self.episodes) > 1:
                self._num_timesteps -= len(self.episodes.popleft())
                self._num_episodes_evicted += 1

    def sample(self, num_items: int, **kwargs: Any) -> list[SingleAgentEpisode]:
        """Draw whole episodes of at least `num_items` transitions together, or exactly `num_items` transitions."""
        if self.transitions:
            return self._single(num_items)
        drawn: list[SingleAgentEpisode] = []
        transitions = 0
        while transitions < num_items:
            drawn.append(self.episodes[int(self.rng.integers(len(self.episodes)))])
            transitions += len(drawn[-1])
        self.sampled_timesteps += transitions
        return drawn

    def _single(self, num_items: int) -> Drawn:
        ends = np.cumsum([len(episode) for episode in self.episodes])
        flat = np.bincount(self.rng.integers(ends[-1], size=num_items), minlength=ends[-1])
        counts = np.split(flat, ends[:-1])
        indices = [i for i, episode_counts in enumerate(counts) if episode_counts.any()]
        self.sampled_timesteps += num_items
        first = self._num_episodes_evicted
        return Drawn([self.episodes[i] for i in indices], [counts[i] for i in indices], [first + i for i in indices])

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        """Return the number of transitions in the buffer."""
        return int(self._num_timesteps)

    def get_metrics(self) -> dict[str, Any]:
        """Return RLlib's metrics; this class adds none."""
        metrics: dict[str, Any] = self.metrics.reduce()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the state, generator included, as arrays and JSON values that `hflray.support.checkpoint` can save."""
        episodes = list(self.episodes)
        return {
            "lengths": np.array([len(episode) for episode in episodes], dtype=np.int64),
            "rows": _joined([episode.observations.data[:-1] for episode in episodes], np.float32),
            "actions": _joined([episode.actions.data for episode in episodes], np.int16),
            "rewards": _joined([episode.rewards.data for episode in episodes], np.float64),
            "teacher": _joined([episode.extra_model_outputs[TEACHER].data for episode in episodes], np.int16),
            "counts": [self._num_timesteps_added, self.sampled_timesteps, self._num_episodes_evicted],
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any], spaces: tuple[Any, Any]) -> None:
        """Restore a state of `state_dict`; `spaces` are the environment's observation and action spaces."""
        self.episodes.clear()
        end = 0
        for n in state["lengths"].tolist():
            part, end = slice(end, end + n), end + n
            self.episodes.append(
                whole_episode(
                    state["rows"][part], state["actions"][part], state["rewards"][part], state["teacher"][part], spaces
                )
            )
        self._num_timesteps = end
        self._num_timesteps_added, self.sampled_timesteps, self._num_episodes_evicted = state["counts"]
        self.rng.bit_generator.state = state["rng"]


def _joined(parts: list[Any], dtype: type) -> np.ndarray[Any, Any]:
    return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype=dtype)


def whole_episode(rows: Any, actions: Any, rewards: Any, teacher: Any, spaces: tuple[Any, Any]) -> SingleAgentEpisode:
    """Return a finished episode of H devices, from `rows` (H, row) and from the other arrays, (H,) each."""
    last = np.zeros((1, rows.shape[1]), dtype=np.float32)
    return SingleAgentEpisode(
        observations=list(np.concatenate([rows, last])),
        actions=list(np.asarray(actions, dtype=np.int64)),
        rewards=list(np.asarray(rewards, dtype=np.float64)),
        infos=[{}] * (len(rows) + 1),
        terminated=True,
        extra_model_outputs={TEACHER: list(np.asarray(teacher, dtype=np.int64))},
        len_lookback_buffer=0,
        observation_space=spaces[0],
        action_space=spaces[1],
    ).to_numpy()
