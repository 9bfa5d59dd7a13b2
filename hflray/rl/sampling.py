"""Whole episodes: how they are sampled, and the replay buffer that keeps them.

RLlib's own runner calls the module once per step. `WholeEpisodeRunner` calls it once per episode, and still steps the
Gymnasium environment for every reward.

The state of a transition contains all rows of its episode. The buffer therefore holds episodes, and a draw of single
transitions consists of the episodes and of how often each of their steps was drawn. RLlib's own buffer seeds itself
from the system, and its state is a pickle of episodes. RLlib recognises a buffer of episodes by
``EpisodeReplayBuffer`` in the name of its class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.rllib.core import COMPONENT_ENV_RUNNER
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

from hflray.assignment.network import padded_batch
from hflray.errors import ConfigError
from hflray.rl.portable import flatten, restore
from hflray.seeding import stream
from hflray.support import checkpoint
from hflray.support.ray_private import learner_module

LENGTHS = "lengths"  # number of devices of each episode, (B,)
DRAWS = "draws"  # uniform numbers for exploration, (B, T, 2)
NUMBERS = "numbers"  # number of each episode, (B,); in batches of single transitions only
EPSILON = "epsilon"  # probability of exploration
TEACHER = "teacher"  # the teacher's edge of each device, in an episode's extra_model_outputs
STATE = "hflray_state"  # the folder of the state in that of a checkpoint


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


class SeededAlgorithm:
    """What RLlib's algorithms with a `SeededRunner` have beside: complete checkpoints without pickles."""

    def network(self) -> Any:
        """Return the network that is being trained."""
        return learner_module(self).network

    def whole(self: Any) -> Any:
        """Return the state as a tree: RLlib's, or one that has it under ``rllib``."""
        return self.get_state()

    def beside(self) -> dict[str, Any]:
        """Return the arrays and JSON values that are saved beside the tree."""
        return {}

    def take(self, state: dict[str, Any], tree: Any) -> None:
        """Restore what is RLlib's state not, from what was saved beside the tree, and from the tree."""

    def save_to_path(self: Any, path: Any = None, **kwargs: Any) -> str:
        """Write the whole state, with every random generator, to the folder `path`."""
        state = self.beside() | {"generators": self.env_runner.generators(), "ray": ray.__version__}
        checkpoint.save(Path(path) / STATE, state | flatten(self.whole()))
        return str(path)

    def restore_from_path(self: Any, path: Any, **kwargs: Any) -> None:
        """Restore everything that `save_to_path` saved.

        Raises:
            DamagedError: `path` holds no whole checkpoint.
            ConfigError: it is one of another version.
        """
        state = checkpoint.load(Path(path) / STATE)
        if (version := state.get("ray")) != ray.__version__:
            raise ConfigError(
                f"checkpoint {path}: made with Ray {version}, this is Ray {ray.__version__}, and RLlib's state works "
                f"only with the version that made it; install ray=={version} to go on, or begin anew"
            )
        tree = restore(state)
        of_rllib = tree.get("rllib", tree)
        self.set_state(of_rllib)
        # RLlib has just set the runner's count of steps, on which ε depends, to that of metrics restored later.
        self.env_runner.set_state(of_rllib[COMPONENT_ENV_RUNNER])
        self.env_runner.set_generators(state["generators"])
        self.take(state, tree)


def local_config(
    algorithm: Any, env_id: str, environment: dict[str, Any], environments: int, runner: type, seed: int
) -> Any:
    """Return RLlib's configuration of an algorithm that samples whole episodes and learns, both in this process."""
    return (
        algorithm.get_default_config()
        .environment(env_id, env_config=environment, disable_env_checking=True)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=environments,
            env_runner_cls=runner,
            batch_mode="complete_episodes",
        )
        # RLlib would scan for NaN 48 times per update. `ResumableTraining.advance` checks that the loss is finite.
        .framework("torch", torch_skip_nan_gradients=True)
        .learners(num_learners=0)
        .debugging(seed=seed)
    )


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


class DrawnTransitions(list[SingleAgentEpisode]):
    """The distinct episodes that a draw of single transitions came from.

    Attributes:
        counts: for each episode, how often each of its transitions was drawn, (H,).
        numbers: each episode's number, counted from the first episode that was ever added to the buffer.
    """

    def __init__(self, episodes: list[SingleAgentEpisode], counts: list[NDArray[np.intp]], numbers: list[int]) -> None:
        super().__init__(episodes)
        self.counts, self.numbers = counts, numbers


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

    def _single(self, num_items: int) -> DrawnTransitions:
        ends = np.cumsum([len(episode) for episode in self.episodes])
        flat = np.bincount(self.rng.integers(ends[-1], size=num_items), minlength=ends[-1])
        counts = np.split(flat, ends[:-1])
        indices = [i for i, episode_counts in enumerate(counts) if episode_counts.any()]
        self.sampled_timesteps += num_items
        first = self._num_episodes_evicted
        return DrawnTransitions(
            [self.episodes[i] for i in indices], [counts[i] for i in indices], [first + i for i in indices]
        )

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        """Return the number of transitions in the buffer."""
        return int(self._num_timesteps)

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
            rows, actions, rewards, teacher = (state[name][part] for name in ("rows", "actions", "rewards", "teacher"))
            self.episodes.append(whole_episode(rows, actions, rewards, teacher, spaces))
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
