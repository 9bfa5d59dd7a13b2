"""The PPO that trains the learned scheduler, on RLlib's new API stack: its module, distribution, runner and settings.

The actor is the network of `hflray.scheduling.learned`, so that RLlib trains the network that inference loads. The
critic is another network, over the mean of the devices' rows as a small network sees them.

The agent draws H of N devices one after the other, in proportion to exp(score). An action is one number for each
device, and its H largest, in order, are the devices drawn. Their probability is that
of Plackett and Luce: the product, over the draws, of ``exp(score) / Σ exp(score of the devices that are left)``.
Adding a Gumbel number to each score and sorting makes such a draw (Yellott, 1977). Only the order of the H devices
counts for the probability of an action, because nothing else of it reaches the environment.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.ppo.ppo import PPO, PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.distribution import Distribution
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from torch import Tensor, nn

from hflray.config import ExperimentConfig
from hflray.rl.sampling import SeededAlgorithm, SeededRunner, local_config
from hflray.rl.scheduling_env import ENV_ID, environment
from hflray.scheduling.context import BEFORE_CLASSES
from hflray.scheduling.learned import ScoreNetwork, ScoreSpec


class PlackettLuce(Distribution):  # type: ignore[misc]
    """The distribution of the actions of one state, or of a batch of states.

    Args:
        scores: (…, N).
        count: H.
    """

    def __init__(self, scores: Tensor, count: int) -> None:
        super().__init__()
        self.scores, self.count = scores, count

    @classmethod
    def from_logits(cls, logits: Tensor, count: int = 1, **kwargs: Any) -> PlackettLuce:
        return PlackettLuce(logits, count)

    def logp(self, value: Tensor, **kwargs: Any) -> Tensor:
        """Return the logarithm of the probability of each action's first H devices, in order, (…,)."""
        ordered = self.scores.gather(-1, value.argsort(dim=-1, descending=True, stable=True))
        left = ordered.flip(-1).logcumsumexp(-1).flip(-1)
        return (ordered - left)[..., : self.count].sum(-1)

    def entropy(self, **kwargs: Any) -> Tensor:
        """Return the entropy of the first draw, (…,); that of all draws has no closed form."""
        logp = self.scores.log_softmax(-1)
        return -(logp.exp() * logp).sum(-1)

    def sample(self, *, sample_shape: Any = None, **kwargs: Any) -> Tensor:
        uniform = torch.rand(self.scores.shape)
        return noisy(self.scores, uniform)

    def rsample(self, *, sample_shape: Any = None, **kwargs: Any) -> Any:
        raise NotImplementedError("a draw of devices has no gradient")

    def kl(self, other: Distribution, **kwargs: Any) -> Any:
        raise NotImplementedError("the divergence of two draws has no closed form; set use_kl_loss=False")

    @staticmethod
    def required_input_dim(space: gym.Space[Any], **kwargs: Any) -> int:
        return int(space.shape[0]) if space.shape else 0


def noisy(scores: Tensor, uniform: Tensor) -> Tensor:
    """Return the action that uniform numbers in [0, 1) draw, (…, N), scaled into (-1, 1) without a change of order."""
    tiny = torch.finfo(torch.float32).tiny
    gumbel = -torch.log(-torch.log(uniform.clamp(tiny, 1 - 2**-24)))
    return torch.nn.functional.softsign(scores + gumbel)


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
            self.of_devices = nn.Sequential(
                nn.Linear(BEFORE_CLASSES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
            )
            self.value = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def get_train_action_dist_cls(self) -> Any:
        return PlackettLuce.get_partial_dist_cls(count=self.model_config["num_scheduled"])

    get_exploration_action_dist_cls = get_inference_action_dist_cls = get_train_action_dist_cls

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Return the value of each state, (B,)."""
        values: Tensor = self.value(self.of_devices(self._rows(batch)[..., :BEFORE_CLASSES]).mean(dim=1))
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


class SchedulerPPO(SeededAlgorithm, PPO):  # type: ignore[misc]
    """RLlib's PPO with complete checkpoints."""

    @classmethod
    def get_default_config(cls) -> PPOConfig:
        return PPOConfig(algo_class=cls)

    def whole(self) -> dict[str, Any]:
        """Return the state with that of NumPy's global generator, by which RLlib shuffles a batch."""
        return {"rllib": self.get_state(), "numpy": np.random.get_state()}  # noqa: NPY002

    def take(self, state: dict[str, Any], tree: Any) -> None:
        """Restore NumPy's global generator."""
        np.random.set_state(tree["numpy"])  # noqa: NPY002


def ppo_config(config: ExperimentConfig) -> PPOConfig:
    """Return RLlib's configuration; see `local_config`."""
    agent = config.agent
    model_config = {
        "network": asdict(ScoreSpec(agent.width)),
        "num_devices": config.fleet.num_devices,
        "num_scheduled": config.scheduling.num_scheduled,
        "seed": config.seed,
    }
    rllib_config: PPOConfig = (
        local_config(SchedulerPPO, ENV_ID, environment(config), agent.environments, ScoreRunner, config.seed)
        .training(
            lr=agent.learning_rate,
            gamma=agent.gamma,
            lambda_=agent.gae_lambda,
            train_batch_size=agent.train_batch,
            minibatch_size=min(agent.minibatch, agent.train_batch),
            num_epochs=agent.epochs,
            clip_param=agent.clip,
            vf_clip_param=float("inf"),  # RLlib would give no gradient to large errors of the critic
            entropy_coeff=agent.entropy,
            use_kl_loss=False,
            grad_clip=agent.grad_clip,
        )
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ScoreModule, model_config=model_config))
        .reporting(metrics_num_episodes_for_smoothing=100)
    )
    return rllib_config
