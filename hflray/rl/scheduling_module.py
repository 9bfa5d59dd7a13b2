"""The learned scheduler as an RLlib module, and a runner that plays whole episodes of ``hflray/Scheduling-v0``.

The actor is the network of `hflray.scheduling.network`, so that RLlib trains the network that inference loads. The
critic is another network, over the mean of the devices' rows as a small network sees them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from torch import Tensor, nn

from hflray.rl.plackett_luce import PlackettLuce, noisy
from hflray.rl.runner import SeededRunner
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.scheduling.network import ScoreNetwork, ScoreSpec
from hflray.scheduling.rows import OWN


class ScoreModule(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]
    """An actor that scores devices, and a critic.

    ``model_config`` holds ``network``, a `ScoreSpec` as a dictionary, ``num_devices``, ``num_scheduled``, and ``seed``,
    the seed of the initial weights.
    """

    def setup(self) -> None:
        """Build both networks, whose initial weights depend on the seed alone."""
        spec = ScoreSpec(**self.model_config["network"])
        width = spec.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.model_config["seed"])
            self.network = ScoreNetwork(spec)
            self.of_devices = nn.Sequential(nn.Linear(OWN, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def get_train_action_dist_cls(self) -> Any:
        return PlackettLuce.get_partial_dist_cls(count=self.model_config["num_scheduled"])

    get_exploration_action_dist_cls = get_inference_action_dist_cls = get_train_action_dist_cls

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Return the value of each state, (B,)."""
        values: Tensor = self.value(self.of_devices(self._rows(batch)[..., :OWN]).mean(dim=1))
        return values[..., 0]

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self.network(self._rows(batch))}

    def _rows(self, batch: dict[str, Any]) -> Tensor:
        """Return the rows of a batch of observations, (B, N, 6 + C)."""
        rows: Tensor = batch[Columns.OBS]
        return rows.view(len(rows), self.model_config["num_devices"], -1)


class ConfiguredSchedulingEnv(SchedulingEnv):
    """The environment for RLlib, which passes all arguments as one mapping, ``env_config``."""

    def __init__(self, context: dict[str, Any]) -> None:
        super().__init__(**context)


class ScoreRunner(SeededRunner):
    """A runner that plays one whole episode in each environment, all of them together."""

    streams: ClassVar[str] = "scheduler"

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Any]:
        count = self.module.model_config["num_scheduled"]
        played = [_Played(env.reset()[0]) for env in self.raw]
        active = list(range(len(played)))
        while active:
            rows = torch.from_numpy(np.stack([played[number].observations[-1] for number in active]))
            with torch.no_grad():
                scores = self.module.forward_inference({Columns.OBS: rows})[Columns.ACTION_DIST_INPUTS]
                uniform = torch.as_tensor(self.rng.random(scores.shape, dtype=np.float32))
                actions = noisy(scores, uniform) if explore else torch.nn.functional.softsign(scores)
                logp = PlackettLuce(scores, count).logp(actions).numpy()
            for place, number in enumerate(active):
                played[number].step(self.raw[number], actions[place].numpy(), scores[place].numpy(), logp[place])
            active = [number for number in active if not played[number].done]
        spaces = self.env.single_observation_space, self.env.single_action_space
        done = [one.episode(spaces) for one in played]
        steps = sum(len(episode) for episode in done)
        self._done_episodes_for_metrics.extend(done)
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=steps)
        self._increase_sampled_metrics(steps, len(done))
        return done


class _Played:
    """An episode while it is played."""

    def __init__(self, observation: NDArray[np.float32]) -> None:
        self.observations = [observation]
        self.actions: list[NDArray[np.float32]] = []
        self.scores: list[NDArray[np.float32]] = []
        self.rewards: list[float] = []
        self.logp: list[np.float32] = []
        self.terminated = self.truncated = False

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def step(
        self, env: SchedulingEnv, action: NDArray[np.float32], scores: NDArray[np.float32], logp: np.float32
    ) -> None:
        """Play a round; `scores` and `logp` are the distribution of the action and its probability."""
        observation, reward, self.terminated, self.truncated, _ = env.step(action)
        self.observations.append(observation)
        self.actions.append(action)
        self.scores.append(scores)
        self.rewards.append(reward)
        self.logp.append(logp)

    def episode(self, spaces: tuple[Any, Any]) -> SingleAgentEpisode:
        """Return the finished episode as RLlib knows it."""
        return SingleAgentEpisode(
            observations=self.observations,
            actions=self.actions,
            rewards=self.rewards,
            infos=[{}] * len(self.observations),
            terminated=self.terminated,
            truncated=self.truncated,
            extra_model_outputs={Columns.ACTION_DIST_INPUTS: self.scores, Columns.ACTION_LOGP: self.logp},
            len_lookback_buffer=0,
            observation_space=spaces[0],
            action_space=spaces[1],
        ).to_numpy()
