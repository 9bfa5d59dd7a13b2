"""The learned scheduler as an RLlib module, and a runner that plays whole episodes of ``hflray/Scheduling-v0``.

The actor is the network of `hflray.scheduling.network`, so that RLlib trains the network that inference loads. The
critic is another network, over the mean of the devices' rows as a small network sees them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from torch import Tensor, nn

from hflray.rl.plackett_luce import PlackettLuce, noisy
from hflray.rl.runner import SeededRunner
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


class ScoreRunner(SeededRunner):
    """A runner that plays one whole episode in each environment, all of them together."""

    streams: ClassVar[str] = "scheduler"

    def _sample(self, *, explore: bool, **_: Any) -> list[Any]:
        count = self.module.model_config["num_scheduled"]
        spaces = {"observation_space": self.env.single_observation_space, "action_space": self.env.single_action_space}
        played = [SingleAgentEpisode(**spaces) for _ in self.raw]
        for episode, env in zip(played, self.raw, strict=True):
            episode.add_env_reset(env.reset()[0])
        while active := [number for number, episode in enumerate(played) if not episode.is_done]:
            rows = torch.from_numpy(np.stack([played[number].get_observations(-1) for number in active]))
            with torch.no_grad():
                scores = self.module.forward_inference({Columns.OBS: rows})[Columns.ACTION_DIST_INPUTS]
                uniform = torch.as_tensor(self.rng.random(scores.shape, dtype=np.float32))
                actions = noisy(scores, uniform) if explore else torch.nn.functional.softsign(scores)
                logp = PlackettLuce(scores, count).logp(actions).numpy()
            for place, number in enumerate(active):
                action, extra = actions[place].numpy(), {Columns.ACTION_DIST_INPUTS: scores[place].numpy()}
                observation, reward, ended, cut, _info = self.raw[number].step(action)
                extra[Columns.ACTION_LOGP] = logp[place]
                played[number].add_env_step(
                    observation, action, reward, terminated=ended, truncated=cut, extra_model_outputs=extra
                )
        return self.counted([episode.to_numpy() for episode in played])
